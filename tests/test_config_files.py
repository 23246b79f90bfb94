"""Configs as files: those that load, those that are refused, and JSON that gives all back."""

import json
import subprocess
import sys

import pytest
from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import base
from transformer.config_fields import field_names, locate, override
from transformer.config_files import (
    ROOT,
    config_differences,
    config_from_json,
    config_to_json,
    load_config,
)


@pytest.fixture
def config():
    return base.get_config()


def write(tmp_path, text, name='mine.py'):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_every_config_file_of_the_project_loads_locked():
    for path in sorted((ROOT / 'configs').glob('[!_]*.py')):
        config = load_config(path)
        assert config.is_locked
        assert config.model.is_locked
        assert not set(field_names(base.get_config())) - set(field_names(config))


def test_a_config_file_imports_base_wherever_python_was_started(tmp_path):
    path = write(tmp_path, 'from configs import base\nget_config = base.get_config\n')
    (tmp_path / 'transformer').symlink_to(ROOT / 'transformer')
    code = (
        'import sys; from transformer.config_files import load_config\n'
        f'print(load_config({str(path)!r}).model.num_layers)\n'
        'print("jax" in sys.modules, "flax" in sys.modules)\n'
    )
    result = subprocess.run(
        [sys.executable, '-c', code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.stdout.split() == ['6', 'False', 'False'], result.stderr


def test_a_missing_config_file_names_the_nearest(tmp_path, refusal):
    near = write(tmp_path, '', 'lm_small.py')
    message = refusal(load_config, tmp_path / 'lm_smal.py')
    assert 'lm_smal.py' in message
    assert f'{near.name}?' in message
    assert 'configs/base.py?' in refusal(load_config, ROOT / 'config' / 'bas.py')
    assert 'Did you mean' not in refusal(load_config, tmp_path / 'zzzzzz.py')
    assert 'no Python file' in refusal(load_config, tmp_path)


@pytest.mark.parametrize(
    ('text', 'words'),
    [
        ('x = 1\n', ['no function get_config']),
        ('def get_config():\n    return {}\n', ['returns a dict', 'ConfigDict']),
        ('def get_config(:\n', ['SyntaxError', 'line 1']),
        ('\nimport no_such_thing\n', ['ModuleNotFoundError in line 2', 'no_such_thing']),
        ('def get_config():\n\n    return {}["key"]\n', ['KeyError in line 3', "'key'"]),
        ('def get_config():\n    raise ValueError("a\\nb")\n', ['ValueError in line 2: a b']),
        (
            'from configs import base\n\ndef get_config():\n    config = base.get_config().lock()\n'
            '    config.model.num_layres = 3\n',
            ['line 5', 'num_layres', '"num_layers"'],
        ),
        (
            'from configs import base\n\ndef get_config():\n    config = base.get_config()\n'
            '    config.model.num_layers = 2.5\n',
            ['line 5', 'num_layers', '2.5', 'int'],
        ),
        (
            'from configs import base\n\ndef get_config():\n    config = base.get_config()\n'
            '    config.model.rope.base = None\n    return config\n',
            ['model.rope.base is None', 'placeholder'],
        ),
        ('raise SystemExit(3)\n', ['SystemExit in line 1: 3']),
        (
            'from ml_collections import ConfigDict\ndef get_config():\n    return ConfigDict()\n',
            ['is missing', 'base.get_config()'],
        ),
        (
            'from configs import base\n\ndef get_config():\n    config = base.get_config()\n'
            '    with config.unlocked():\n        config.data.lenght = 3\n    return config\n',
            ['data.lenght is not a field', "'data.length'"],
        ),
        (
            'from configs import base\n\ndef get_config():\n    config = base.get_config()\n'
            '    with config.ignore_type():\n        config.seed = "x"\n    return config\n',
            ['seed is a str, not a int'],
        ),
    ],
)
def test_a_faulty_config_file_is_named_with_the_cause_and_line(tmp_path, text, words, refusal):
    path = write(tmp_path, text)
    message = refusal(load_config, path)
    assert len(message) < 300 + len(str(path))
    for word in [str(path), *words]:
        assert word in message


def changed(config):
    """The config with every field set to something else than its default."""
    texts = {int: '7', float: '0.7', bool: 'true', str: 'word', tuple: 'x,y'}
    for name in field_names(config):
        section, last, kind, _ = locate(config, name)
        override(config, name, 'false' if section[last] is True else texts[kind])
    return config


def test_json_gives_every_field_back(config):
    default = base.get_config()
    for stored in default, changed(config):
        text = config_to_json(stored)
        restored = config_from_json(text, default)
        assert restored.is_locked
        assert restored.to_dict() == stored.to_dict()
        assert repr(restored.to_dict()) == repr(stored.to_dict())  # types too: (1,) and 1.0
        override(restored, 'model.num_kv_heads', 'none')  # still a placeholder
    assert set(config_differences(stored, default)) == set(field_names(default))
    assert default.to_dict() == base.get_config().to_dict()  # the template is only read


def test_json_gives_numbers_back_to_the_bit_and_nested_tuples():
    values = {'x': 0.1 + 0.2, 'tiny': 5e-324, 'big': 2**70, 'whole': 1.0, 'pairs': ((1, 'a'), ())}
    restored = config_from_json(config_to_json(ConfigDict(values)), ConfigDict(values))
    assert repr(restored.to_dict()) == repr(ConfigDict(values).to_dict())


@pytest.mark.parametrize(
    ('change', 'words'),
    [
        ({'data.extra': 3}, ['unknown field data.extra']),
        ({'seed': ...}, ['missing field seed']),
        ({'data.seed': 'zero'}, ['data.seed', "'zero'", 'int']),
        ({'data.seed': None}, ['data.seed', 'None', 'int']),
        ({'data.path': 'stdlib'}, ['data.path', "'stdlib'", 'tuple']),
        ({'data': 3}, ['unknown field data,', 'missing field data.path']),
    ],
)
def test_a_stored_config_that_does_not_fit_is_refused(config, change, words, refusal):
    values = json.loads(config_to_json(config))
    for name, value in change.items():
        *sections, last = name.split('.')
        section = values[sections[0]] if sections else values
        section[last] = value
        if value is ...:
            del section[last]
    message = refusal(config_from_json, json.dumps(values), base.get_config())
    for word in words:
        assert word in message


@pytest.mark.parametrize('text', ['', '{', '[1]', '3', '[' * 100_000])
def test_what_is_no_json_object_is_refused(text, refusal):
    assert 'JSON object' in refusal(config_from_json, text, base.get_config())


def test_differences_are_fields_of_another_value_or_of_one_side():
    a = ConfigDict({'x': 1, 'y': (1, 2), 's': {'only_a': 1, 'z': None}})
    b = ConfigDict({'x': 1, 'y': (1, 3), 's': {'only_b': 1, 'z': placeholder(int)}})
    assert sorted(config_differences(a, b)) == ['s.only_a', 's.only_b', 'y']
    assert config_differences(a, a) == []
