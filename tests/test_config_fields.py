"""Fields set from texts: what each type of field reads, and the one line that refuses the rest."""

import pytest
from ml_collections import ConfigDict

from configs import base
from transformer.config_fields import override
from transformer.config_files import config_differences


@pytest.fixture
def config():
    return base.get_config()


def value_of(config, name):
    for part in name.split('.'):
        config = config[part]
    return config


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
    override(config, name, text)
    assert value_of(config, name) == value
    assert type(value_of(config, name)) is type(value)
    assert kind is None or config.get_type(name) is kind
    if isinstance(value, tuple):
        assert [type(v) for v in value_of(config, name)] == [type(v) for v in value]


def test_override_leaves_every_other_field_alone(config):
    override(config, 'model.rope.base', '5e5')
    assert config_differences(config, base.get_config()) == ['model.rope.base']


def test_an_optional_field_can_be_set_and_unset_in_turn(config):
    for text, value in [('4', 4), ('none', None), ('8', 8), ('none', None)]:
        override(config, 'model.num_kv_heads', text)
        assert config.model.num_kv_heads == value
        assert config.model.get_type('num_kv_heads') is int


def test_elements_of_a_tuple_keep_the_type_of_the_present_ones(refusal):
    config = ConfigDict({'ints': (1, 2), 'floats': (0.5,), 'words': ('a',)})
    for name, text, value in [
        ('ints', '3,4', (3, 4)),
        ('ints', '0.5,1', (0.5, 1)),
        ('floats', '1,2', (1.0, 2.0)),
        ('words', '1,2', ('1', '2')),
    ]:
        override(config, name, text)
        assert repr(config[name]) == repr(value)
    assert 'tuple' in refusal(override, config, 'floats', 'x,y')


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
def test_override_refuses_by_name_and_leaves_the_config_as_it_was(
    config, name, text, words, refusal
):
    message = refusal(override, config, name, text)
    for word in words:
        assert word in message
    assert config_differences(config, base.get_config()) == []


def test_a_field_that_no_text_can_give_says_so(refusal):
    config = ConfigDict({'items': [1, 2]})
    assert 'items is a list' in refusal(override, config, 'items', '3')
