"""Every field of a config is of one class, and the classes are right."""

import pytest

from configs import base
from transformer.config_fields import field_names
from transformer.training.step import hyperparameters
from transformer.training.sweep.groups import (
    HOST_FIELDS,
    INIT_FIELDS,
    describe_groups,
    field_classes,
    group_key,
    group_name,
    hyperparameter_fields,
)
from transformer.training.sweep.space import grid, make_space, product, with_overrides

CONFIG = base.get_config()
CLASSES = field_classes(CONFIG)


def fields(kind):
    return {field for field, one in CLASSES.items() if one == kind}


def test_every_field_is_of_one_class():
    assert list(CLASSES) == field_names(CONFIG)
    assert set(CLASSES.values()) == {'traced', 'static', 'host'}
    assert len(set(HOST_FIELDS)) == len(HOST_FIELDS) == len(fields('host'))


def test_numbers_of_the_step_are_traced():
    """Each is found, and the usual ones are among them."""
    reached = {name for names in hyperparameter_fields(CONFIG).values() for name in names}
    assert reached == set(hyperparameters(CONFIG))
    assert {
        'optimizer.learning_rate',
        'schedule.warmup_steps',
        'optimizer.weight_decay',
        'optimizer.b2',
        'optimizer.eps',
        'optimizer.clip_norm',
        'dropout.attention',
        'loss.label_smoothing',
        'loss.z_loss',
        'model.init_std',
        'corruption.rate',
        'seed',
    } <= fields('traced')


def test_fields_that_are_not_traced_change_no_number_of_the_step():
    """A static or host field, but for the end of training, leaves `hyperparameters` alone."""
    assert set(hyperparameter_fields(CONFIG)) - fields('traced') == {'train.steps'}
    assert fields('traced') - set(hyperparameter_fields(CONFIG)) == set(INIT_FIELDS)


def test_model_is_static_but_for_its_initial_scale():
    model = {field for field in CLASSES if field.startswith('model.')}
    assert model - fields('static') == set(INIT_FIELDS)


def test_shape_of_span_corruption_depends_on_its_rate():
    config = with_overrides(CONFIG, {'task': 'span_corruption'})
    assert field_classes(config)['corruption.rate'] == 'static'
    assert CLASSES['corruption.rate'] == 'traced'


@pytest.mark.parametrize(
    ('overrides', 'same'),
    [
        ({'optimizer.learning_rate': 0.5, 'seed': 9, 'data.seed': 3, 'train.steps': 7}, True),
        ({'train.log_every': 1}, True),
        ({'train.ema_decay': 0.9}, False),  # there is an average, or there is none
        ({'model.embedding_std': 0.1}, False),
        ({'model.norm_eps': 1e-5}, False),
        ({'data.batch_size': 32}, False),
        ({'optimizer.name': 'sgd'}, False),
        ({'train.eval_batches': 3}, False),
    ],
)
def test_groups(overrides, same):
    key = group_key(with_overrides(CONFIG, overrides), CLASSES)
    base_key = group_key(CONFIG, CLASSES)
    assert (key == base_key) == same
    assert hash(key) is not None
    assert bool(group_name(key, base_key)) != same


def test_averages_of_different_lengths_are_one_group():
    keys = [
        group_key(with_overrides(CONFIG, {'train.ema_decay': decay}), CLASSES)
        for decay in (0.9, 0.99)
    ]
    assert keys[0] == keys[1]


def test_groups_are_shown():
    trials = product(
        grid({'optimizer.learning_rate': [0.1, 0.2], 'model.position': ['rope', 'alibi']}),
        grid({'data.seed': range(3)}),
    )
    lines = describe_groups(make_space(trials, CONFIG), CONFIG)
    assert lines[:5] == [
        'varied inside one program: optimizer.learning_rate',
        'varied by the host: data.seed',
        'one program for each combination: model.position',
        'group of 6: the config',
        'group of 6: model.position=alibi',
    ]
    assert lines[5].startswith('not used by a sweep: train.log_every')
