"""Spaces: what the combinators make, and that every mistake is found before a trial runs."""

import math

import numpy as np
import pytest

from configs import base
from transformer.config_fields import override
from transformer.errors import UserError
from transformer.training.sweep import space as spaces
from transformer.training.sweep.groups import check_space
from transformer.training.sweep.space import (
    choice,
    grid,
    integers,
    load_space,
    log_uniform,
    make_space,
    product,
    to_text,
    uniform,
    with_overrides,
    zipped,
)

CONFIG = base.get_config()


def test_combinators():
    assert grid({'a': [1, 2], 'b': 'xy'}) == [
        {'a': 1, 'b': 'x'},
        {'a': 1, 'b': 'y'},
        {'a': 2, 'b': 'x'},
        {'a': 2, 'b': 'y'},
    ]
    assert zipped({'a': [1, 2], 'b': [3, 4]}) == [{'a': 1, 'b': 3}, {'a': 2, 'b': 4}]
    assert product([{'a': 1}], grid({'b': range(2)})) == [{'a': 1, 'b': 0}, {'a': 1, 'b': 1}]


def test_zipped_fields_of_different_length():
    with pytest.raises(UserError, match='a: 2, b: 1'):
        zipped({'a': [1, 2], 'b': [3]})


def test_list_of_trials_becomes_points_with_every_field():
    space = make_space([{'seed': np.int64(1)}, {'optimizer.learning_rate': 0.1}], CONFIG)
    assert space.points == (
        {'seed': 1, 'optimizer.learning_rate': 1e-3},
        {'seed': 0, 'optimizer.learning_rate': 0.1},
    )
    assert type(space.points[0]['seed']) is int
    assert space.distributions['seed'] == choice(1, 0)


@pytest.mark.parametrize(
    ('field', 'value'),
    [
        ('seed', 7),
        ('optimizer.learning_rate', 1 / 3),
        ('optimizer.learning_rate', 1e-30),
        ('model.qk_norm', True),
        ('model.position', 'alibi'),
        ('model.num_kv_heads', None),
        ('model.layer_pattern', ('local', 'global')),
        ('model.layer_pattern', ('local',)),
        ('data.weights', (0.5, 2.0)),
        ('model.layer_pattern', ()),
    ],
)
def test_text_of_a_value_sets_that_value(field, value):
    """So that the printed command line reproduces a trial."""
    config = base.get_config()
    override(config, field, to_text(value))
    section, _, name = field.rpartition('.')
    assert (config[section] if section else config)[name] == value


def test_overrides_leave_the_config_alone():
    config = base.get_config()
    assert with_overrides(config, {'seed': 3}).seed == 3
    assert config.seed == 0
    assert with_overrides(config, {}) == config


MISTAKES = [
    ({}, 'not an empty one'),
    ([], 'not an empty one'),
    (3, 'a mapping from field to distribution'),
    ([{}, {}], 'without a field'),
    ({'optimizer.learning_rate': 0.1}, 'optimizer.learning_rate must have a distribution'),
    ({'seed': choice()}, 'seed: choice.. needs at least one'),
    ({'optimizer.learning_rate': uniform(1.0, 0.1)}, 'lower bound 1.0 must be below'),
    ({'optimizer.learning_rate': log_uniform(0.0, 0.1)}, 'must be above 0'),
    ({'optimizer.learning_rate': uniform(0.0, math.inf)}, 'bound inf is not a finite number'),
    ({'seed': integers(0, 1.5)}, 'bound 1.5 is not an int'),
    ([{'seed': 1}, {'seed': 1}], 'lists trial 1 twice'),
    ({'optimizer.learning_rat': uniform(0.1, 0.2)}, "Did you mean 'optimizer.learning_rate'"),
    ({'optimizer': choice(1, 2)}, 'optimizer is a section'),
    ({'train.steps': uniform(1.5, 2.5)}, 'train.steps must be an int'),
    ({'model.qk_norm': choice('perhaps')}, 'model.qk_norm must be a bool'),
    ({'model.position': choice('rope', 'roap')}, "model.position must be one of .* 'rope'"),
    ({'dropout.residual': uniform(0.0, 1.0)}, r'dropout.residual=1.0: .* must be in \[0, 1\)'),
    ({'model.embed_dim': integers(510, 514)}, 'embed_dim=510.* not a multiple'),
    ({'model.embed_dim': choice(512, 96), 'model.num_heads': choice(8, 5)}, 'num_heads=5'),
    ([{'seed': 1}, {'model.embed_dim': 100}], 'model.embed_dim=100.* not a multiple'),
    ({'train.log_every': choice(1, 2)}, 'train.log_every changes no number of a trial'),
]


@pytest.mark.parametrize(('raw', 'message'), MISTAKES)
def test_mistakes(raw, message):
    with pytest.raises(UserError, match=message) as error:
        check_space(make_space(raw, CONFIG), CONFIG)
    assert '\n' not in str(error.value)


def test_good_spaces_pass():
    raw = {
        'optimizer.learning_rate': log_uniform(1e-5, 1.0),
        'model.num_layers': integers(1, 3),
        'model.layer_pattern': choice((), ('global',)),
        'data.seed': integers(0, 5),
    }
    check_space(make_space(raw, CONFIG), CONFIG)


def test_space_of_a_file(tmp_path):
    file = tmp_path / 'some.py'
    names = 'from transformer.training.sweep import choice\n'
    file.write_text(f"{names}def get_space():\n    return {{'seed': choice(1, 2)}}\n")
    assert load_space(str(file)) == load_space(f'{file}:word') == {'seed': spaces.Choice((1, 2))}
    file.write_text('def get_space():\n    return 1 / 0\n')
    with pytest.raises(UserError, match=r'get_space\(\): ZeroDivisionError'):
        load_space(str(file))
    file.write_text('')
    with pytest.raises(UserError, match='has no get_space'):
        load_space(str(file))
