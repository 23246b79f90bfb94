"""Command lines and config files: what is accepted, and the one line that refuses the rest."""

import argparse
import errno
import json
import subprocess
import sys

import pytest
from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import base
from transformer import flags
from transformer.errors import UserError


@pytest.fixture
def config():
    return base.get_config().lock()


def value_of(config, name):
    for part in name.split('.'):
        config = config[part]
    return config


def refusal(function, *args) -> str:
    """The message of the UserError that the call raises: one line."""
    with pytest.raises(UserError) as caught:
        function(*args)
    assert '\n' not in str(caught.value)
    return str(caught.value)


# Config files.


def write(tmp_path, text, name='mine.py'):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_every_config_file_of_the_project_loads_locked():
    for path in sorted((flags.ROOT / 'configs').glob('[!_]*.py')):
        config = flags.load_config(path)
        assert config.is_locked
        assert config.model.is_locked
        assert not set(flags.field_names(base.get_config())) - set(flags.field_names(config))


def test_a_config_file_imports_base_wherever_python_was_started(tmp_path):
    path = write(tmp_path, 'from configs import base\nget_config = base.get_config\n')
    (tmp_path / 'transformer').symlink_to(flags.ROOT / 'transformer')
    code = (
        'import sys; from transformer import flags\n'
        f'print(flags.load_config({str(path)!r}).model.num_layers)\n'
        'print("jax" in sys.modules, "flax" in sys.modules)\n'
    )
    result = subprocess.run(
        [sys.executable, '-c', code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.stdout.split() == ['6', 'False', 'False'], result.stderr


def test_a_missing_config_file_names_the_nearest(tmp_path):
    near = write(tmp_path, '', 'lm_small.py')
    message = refusal(flags.load_config, tmp_path / 'lm_smal.py')
    assert 'lm_smal.py' in message
    assert f'{near.name}?' in message
    assert 'configs/base.py?' in refusal(flags.load_config, flags.ROOT / 'config' / 'bas.py')
    assert 'Did you mean' not in refusal(flags.load_config, tmp_path / 'zzzzzz.py')
    assert 'no Python file' in refusal(flags.load_config, tmp_path)


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
def test_a_faulty_config_file_is_named_with_the_cause_and_line(tmp_path, text, words):
    path = write(tmp_path, text)
    message = refusal(flags.load_config, path)
    assert len(message) < 300 + len(str(path))
    for word in [str(path), *words]:
        assert word in message


# Overrides.


@pytest.mark.parametrize(
    ('name', 'text', 'value'),
    [
        ('model.num_layers', '4', 4),
        ('train.steps', '1e3', 1000),
        ('train.steps', '1_000', 1000),
        ('train.steps', '2.0', 2),
        ('seed', '-1', -1),
        ('optimizer.learning_rate', '3e-4', 3e-4),
        ('optimizer.learning_rate', '1', 1.0),
        ('model.pooler', 'true', True),
        ('model.pooler', 'True', True),
        ('model.scan_layers', '0', False),
        ('model.norm_bias', 'false', False),
        ('model.pooler', '1', True),
        ('task', 'masked_lm', 'masked_lm'),
        ('task', '3', '3'),
        ('optimizer.no_decay', '', ''),
        ('model.position', 'none', 'none'),
        ('model.remat', 'none', 'none'),
        ('model.rope.scaling', 'none', 'none'),
        ('model.num_kv_heads', '2', 2),
        ('model.num_kv_heads', 'none', None),
        ('model.num_kv_heads', 'None', None),
        ('model.rope.local_base', '1e4', 1e4),
        ('data.cache_dir', '/some/dir', '/some/dir'),
        ('data.cache_dir', 'none', None),
        ('model.layer_pattern', 'local,global', ('local', 'global')),
        ('model.layer_pattern', '("local", "global")', ('local', 'global')),
        ('model.layer_pattern', '"local","global"', ('local', 'global')),
        ('model.layer_pattern', "['local', 'global']", ('local', 'global')),
        ('model.layer_pattern', 'local', ('local',)),
        ('model.layer_pattern', '(local,)', ('local',)),
        ('data.path', '', ()),
        ('data.path', '()', ()),
        ('data.path', '1e3,7', ('1e3', '7')),
        ('data.path', '"a,b.txt",it\'s.txt', ('a,b.txt', "it's.txt")),
        ('data.weights', '3,4', (3, 4)),
        ('data.weights', '0.25, 1e-3', (0.25, 0.001)),
        ('data.weights', '1, 0.5', (1, 0.5)),
    ],
)
def test_override_reads_text_by_the_type_of_the_field(config, name, text, value):
    kind = config.get_type(name) if '.' not in name else None
    flags.override(config, name, text)
    assert value_of(config, name) == value
    assert type(value_of(config, name)) is type(value)
    assert kind is None or config.get_type(name) is kind
    if isinstance(value, tuple):
        assert [type(v) for v in value_of(config, name)] == [type(v) for v in value]


def test_override_leaves_every_other_field_alone(config):
    flags.override(config, 'model.rope.base', '5e5')
    assert flags.config_differences(config, base.get_config()) == ['model.rope.base']


def test_an_optional_field_can_be_set_and_unset_in_turn(config):
    for text, value in [('4', 4), ('none', None), ('8', 8), ('none', None)]:
        flags.override(config, 'model.num_kv_heads', text)
        assert config.model.num_kv_heads == value
        assert config.model.get_type('num_kv_heads') is int


def test_elements_of_a_tuple_keep_the_type_of_the_present_ones():
    config = ConfigDict({'ints': (1, 2), 'floats': (0.5,), 'words': ('a',)})
    for name, text, value in [
        ('ints', '3,4', (3, 4)),
        ('ints', '0.5,1', (0.5, 1)),
        ('floats', '1,2', (1.0, 2.0)),
        ('words', '1,2', ('1', '2')),
    ]:
        flags.override(config, name, text)
        assert repr(config[name]) == repr(value)
    assert 'tuple' in refusal(flags.override, config, 'floats', 'x,y')


@pytest.mark.parametrize(
    ('name', 'text', 'words'),
    [
        ('train.steps', '2.5', ['train.steps', 'an int', "'2.5'"]),
        ('train.steps', 'foo', ['an int', "'foo'"]),
        ('train.steps', 'inf', ['an int', "'inf'"]),
        ('train.steps', '', ['an int', "''"]),
        ('train.steps', 'none', ['an int', "'none'"]),
        ('train.steps', 'true', ['an int', "'true'"]),
        ('optimizer.learning_rate', 'fast', ['optimizer.learning_rate', 'a float', "'fast'"]),
        ('optimizer.learning_rate', 'nan', ['a float', "'nan'"]),
        ('optimizer.learning_rate', 'none', ['a float', "'none'"]),
        ('model.pooler', 'yes', ['model.pooler', 'true or false', "'yes'"]),
        ('model.pooler', '2', ['true or false', "'2'"]),
        ('model.pooler', 'none', ['true or false', "'none'"]),
        ('model.num_kv_heads', 'few', ['an int or none', "'few'"]),
        ('model.num_layres', '4', ['model.num_layres', "'model.num_layers'"]),
        ('num_layers', '4', ["'model.num_layers'"]),
        ('train.learning_rate', '4', ["'optimizer.learning_rate'"]),
        ('b1', '0.5', ["'optimizer.b1'"]),
        ('optimiser.b1', '0.5', ["'optimizer.b1'"]),
        ('seed.x', '1', ['seed.x', 'not a field']),
        ('', '1', ['not a field']),
        ('model', '4', ['model is a section', 'model.']),
        ('model.rope', 'x', ['model.rope is a section', 'set one field of it, as model.rope.']),
    ],
)
def test_override_refuses_by_name_and_leaves_the_config_as_it_was(config, name, text, words):
    message = refusal(flags.override, config, name, text)
    for word in words:
        assert word in message
    assert flags.config_differences(config, base.get_config()) == []


def test_a_field_that_no_text_can_give_says_so():
    config = ConfigDict({'items': [1, 2]})
    assert 'items is a list' in refusal(flags.override, config, 'items', '3')


# Command lines.


def parser():
    parser = argparse.ArgumentParser()
    parser.add_argument('--config', required=True, help='a config file')
    parser.add_argument('--workdir')
    parser.add_argument('--batches', type=int)
    return parser


def test_overrides_are_taken_in_order_with_either_spelling():
    argv = ['--config.a.b=1', '--config', 'c.py', '--config.a.b', '-2', '--workdir=w']
    args, overrides = flags.parse(parser(), [*argv, '--config.t=x=y', '--config.s='])
    assert (args.config, args.workdir) == ('c.py', 'w')
    assert overrides == [('a.b', '1'), ('a.b', '-2'), ('t', 'x=y'), ('s', '')]


@pytest.mark.parametrize(
    ('argv', 'words'),
    [
        (['--config=c', '--wrkdir=w'], ['--wrkdir', "'--workdir'"]),
        (['--cnofig=c'], ['--cnofig', "'--config'"]),
        (['--conf=c'], ['--conf', "'--config'"]),
        (['--config=c', '--zzz'], ['--zzz', '--workdir', '--config.FIELD=VALUE']),
        (['--config=c', '--model.num_layers=4'], ['--config.model.num_layers?']),
        (['--config=c', 'stray'], ["'stray'", '--flag=value']),
        (['--config=c', 'config.seed=1'], ["'config.seed=1'"]),
        (['--config=c', '-w'], ["'-w'"]),
        (['--config=c', '--config.seed'], ['--config.seed=VALUE']),
        (['--config=c', '--config.seed', '--workdir=w'], ['--config.seed=VALUE']),
        (['--config'], ['--config', 'expected one argument']),
        (['--config=c', '--batches=foo'], ['--batches', "'foo'"]),
        ([], ['required', '--config']),
    ],
)
def test_parse_refuses_in_one_line_and_prints_nothing(argv, words, capsys):
    message = refusal(flags.parse, parser(), argv)
    for word in words:
        assert word in message
    assert capsys.readouterr() == ('', '')


def test_help_shows_how_a_field_is_set(capsys):
    with pytest.raises(SystemExit) as caught:
        flags.parse(parser(), ['--help'])
    assert caught.value.code == 0
    assert '--config.FIELD=VALUE' in capsys.readouterr().out


def test_the_example_of_the_help_works(config):
    examples = [word for word in flags.EPILOG.split() if word.startswith('--config.')]
    _, overrides = flags.parse(argparse.ArgumentParser(), [w.rstrip(',;') for w in examples[1:]])
    for name, text in overrides:
        flags.override(config, name, text)
    assert (config.model.num_layers, config.data.path) == (4, ('a.txt', 'b.txt'))


def run(action, monkeypatch):
    monkeypatch.setattr(sys, 'argv', ['train.py', '--a', 'b'])
    seen = []

    def main(argv):
        seen.extend(argv)
        if action:
            raise action

    flags.run_main(main)
    return seen


def test_run_main_passes_the_arguments_and_returns(monkeypatch):
    assert run(None, monkeypatch) == ['--a', 'b']


@pytest.mark.parametrize(
    ('action', 'code', 'stderr'),
    [
        (UserError('it is\nwrong'), 2, 'error: it is wrong\n'),
        (KeyboardInterrupt(), 130, ''),
        (
            OSError(errno.ENOSPC, 'No space left on device', 'runs/x'),
            2,
            'error: runs/x: No space left on device.\n',
        ),
        (
            OSError(errno.ENOSPC, 'No space left on device'),
            2,
            'error: No space left on device: make room and run again.\n',
        ),
    ],
)
def test_run_main_turns_mistakes_into_exit_codes(action, code, stderr, monkeypatch, capsys):
    with pytest.raises(SystemExit) as caught:
        run(action, monkeypatch)
    assert caught.value.code == code
    assert capsys.readouterr() == ('', stderr)


@pytest.mark.parametrize('error', [MemoryError('1 TiB'), RuntimeError('RESOURCE_EXHAUSTED: a\nb')])
def test_run_main_says_what_saves_memory(error, monkeypatch, capsys):
    with pytest.raises(SystemExit) as caught:
        run(error, monkeypatch)
    assert caught.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert 'not enough memory: lower data.batch_size' in lines[0]


def test_run_main_lets_defects_through(monkeypatch):
    with pytest.raises(ZeroDivisionError):
        run(ZeroDivisionError(), monkeypatch)


# Stored configs.


def changed(config):
    """The config with every field set to something else than its default."""
    texts = {int: '7', float: '0.7', bool: 'true', str: 'word', tuple: 'x,y'}
    for name in flags.field_names(config):
        section = config
        for part in name.split('.')[:-1]:
            section = section[part]
        kind = section.get_type(name.split('.')[-1])
        text = 'false' if value_of(config, name) is True else texts[kind]
        flags.override(config, name, text)
    return config


def test_json_gives_every_field_back(config):
    default = base.get_config()
    for stored in default, changed(config):
        text = flags.config_to_json(stored)
        restored = flags.config_from_json(text, default)
        assert restored.is_locked
        assert restored.to_dict() == stored.to_dict()
        assert repr(restored.to_dict()) == repr(stored.to_dict())  # types too: (1,) and 1.0
        flags.override(restored, 'model.num_kv_heads', 'none')  # still a placeholder
    assert set(flags.config_differences(stored, default)) == set(flags.field_names(default))
    assert default.to_dict() == base.get_config().to_dict()  # the template is only read


def test_json_gives_numbers_back_to_the_bit_and_nested_tuples():
    values = {'x': 0.1 + 0.2, 'tiny': 5e-324, 'big': 2**70, 'whole': 1.0, 'pairs': ((1, 'a'), ())}
    restored = flags.config_from_json(flags.config_to_json(ConfigDict(values)), ConfigDict(values))
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
def test_a_stored_config_that_does_not_fit_is_refused(config, change, words):
    values = json.loads(flags.config_to_json(config))
    for name, value in change.items():
        *sections, last = name.split('.')
        section = values[sections[0]] if sections else values
        section[last] = value
        if value is ...:
            del section[last]
    message = refusal(flags.config_from_json, json.dumps(values), base.get_config())
    for word in words:
        assert word in message


@pytest.mark.parametrize('text', ['', '{', '[1]', '3', '[' * 100_000])
def test_what_is_no_json_object_is_refused(text):
    assert 'JSON object' in refusal(flags.config_from_json, text, base.get_config())


def test_differences_are_fields_of_another_value_or_of_one_side():
    a = ConfigDict({'x': 1, 'y': (1, 2), 's': {'only_a': 1, 'z': None}})
    b = ConfigDict({'x': 1, 'y': (1, 3), 's': {'only_b': 1, 'z': placeholder(int)}})
    assert sorted(flags.config_differences(a, b)) == ['s.only_a', 's.only_b', 'y']
    assert flags.config_differences(a, a) == []
