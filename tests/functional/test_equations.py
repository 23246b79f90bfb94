"""docs/equations.md: the functions and the tests that it names exist, and none is left out."""

import importlib
import pathlib
import re

import transformer.functional

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMES = re.findall(r'`(\w+)\.(\w+)`', (ROOT / 'docs' / 'equations.md').read_text())


def test_every_test_of_the_table_exists():
    tests = [(file, name) for file, name in NAMES if file.startswith('test_')]
    assert tests
    for file, name in tests:
        source = (ROOT / 'tests' / 'functional' / f'{file}.py').read_text()
        assert f'\ndef {name}(' in source, f'{file}.{name}'


def test_every_function_is_in_the_table():
    functions = {(file, name) for file, name in NAMES if not file.startswith('test_')}
    for file, name in functions:
        assert hasattr(importlib.import_module(f'transformer.functional.{file}'), name), name
    public = set(transformer.functional.__all__) - {'ACTIVATIONS'}
    assert {name for _, name in functions} == public
