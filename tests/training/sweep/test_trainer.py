"""A trial among others equals the same trial trained alone by train.py."""

import jax
import numpy as np
import pytest

from transformer.training.checkpoint import Checkpoints
from transformer.training.experiment import load_experiment
from transformer.training.loop import train
from transformer.training.sweep.space import with_overrides
from transformer.training.sweep.trainer import VectorTrainer

TRIALS = [
    {
        'optimizer.learning_rate': 1e-2,
        'optimizer.weight_decay': 0.5,
        'optimizer.clip_norm': 0.0,
        'schedule.warmup_steps': 0,
        'dropout.residual': 0.0,
        'seed': 0,
        'train.steps': 12,
    },
    {
        'optimizer.learning_rate': 3e-3,
        'optimizer.weight_decay': 0.0,
        'optimizer.clip_norm': 0.1,
        'schedule.warmup_steps': 7,
        'dropout.residual': 0.3,
        'seed': 2**31 - 1,
        'train.steps': 9,
    },
]


@pytest.fixture(scope='module')
def alone():
    """The metrics and parameters of trials trained alone, by their overrides."""
    return {}


def train_alone(config, overrides, tmp_path):
    config = with_overrides(config, overrides)
    metrics = train(config, tmp_path)
    experiment = load_experiment(config)
    with Checkpoints(tmp_path / 'checkpoints') as checkpoints:
        state = checkpoints.restore(jax.eval_shape(experiment.initial_state))
    return metrics, state.best_params


def assert_equal(trainer, slot, expected):
    metrics, params = expected
    assert trainer.evaluate()[slot] == pytest.approx(metrics, rel=1e-5)
    for a, b in zip(jax.tree.leaves(trainer.params(slot)), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_trials_in_lockstep_equal_trials_alone(config, tmp_path):
    expected = [train_alone(config, one, tmp_path / str(n)) for n, one in enumerate(TRIALS)]
    trainer = VectorTrainer(config, TRIALS[0], 3)
    trainer.start({slot: with_overrides(config, one) for slot, one in enumerate(TRIALS)})
    trainer.train(9)
    assert_equal(trainer, 1, expected[1])
    trainer.train(3)
    assert_equal(trainer, 0, expected[0])
