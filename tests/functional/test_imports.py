"""Dependencies point one way: the walk of every import statement, and of one real import."""

import ast
import pathlib
import sys

import pytest

import transformer.functional

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = {'train', 'eval', 'generate', 'sweep'}
STANDARD = set(sys.stdlib_module_names)
# What each folder may import, beside the standard library and itself: top-level packages, and
# parts of `transformer`.
ALLOWED = {
    'functional': {'jax', 'numpy'},
    'modules': {'jax', 'numpy', 'flax', 'chex'}
    | {f'transformer.{part}' for part in ('functional', 'config', 'errors')},
}


def imports(path):
    """Dotted names of the modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f'{path} has a relative import'
            yield from (f'{node.module}.{alias.name}' for alias in node.names)


def dotted(node):
    """'jax.sharding.Mesh' for that chain of attributes, else ''."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f'{dotted(node.value)}.{node.attr}'
    return ''


def files(folder):
    found = sorted((ROOT / 'transformer' / folder).rglob('*.py'))
    assert found, f'no files in {folder}'
    return found


def starts_with(name, prefixes):
    return any(name == prefix or name.startswith(prefix + '.') for prefix in prefixes)


@pytest.mark.parametrize('folder', ALLOWED)
def test_lower_layers_import_only_what_is_below(folder):
    allowed = STANDARD | ALLOWED[folder] | {f'transformer.{folder}'}
    for path in files(folder):
        for name in imports(path):
            assert starts_with(name, allowed), f'{path} imports {name}'


def test_the_package_imports_no_script():
    for path in files('.'):
        for name in imports(path):
            assert not starts_with(name, SCRIPTS), f'{path} imports {name}'


def test_only_parallel_names_devices():
    names = {f'jax.{name}' for name in ('devices', 'local_devices', 'pmap', 'sharding')}
    users = set()
    for path in files('.'):
        used = {dotted(node) for node in ast.walk(ast.parse(path.read_text()))} | set(imports(path))
        if any(starts_with(name, names) for name in used):
            users.add(str(path.relative_to(ROOT)))
    assert users <= {'transformer/parallel.py'}


def test_functional_needs_nothing_but_jax(run_python):
    code = (
        'import sys, transformer.functional; print(*sorted(m.split(".")[0] for m in sys.modules))'
    )
    loaded = set(run_python('-c', code).stdout.split())
    assert {'jax', 'transformer'} <= loaded
    assert not loaded & {'flax', 'ml_collections', 'optax', 'chex', 'orbax', 'grain'}


def test_public_names_are_sorted_and_all_there():
    names = transformer.functional.__all__
    assert names == sorted(set(names))
    for name in names:
        assert getattr(transformer.functional, name).__doc__, name
