"""A trial among others equals the same trial trained alone, as train.py does it."""

import dataclasses

import jax
import numpy as np
import pytest

from transformer.errors import UserError
from transformer.training.evaluation import evaluate, means
from transformer.training.experiment import load_experiment
from transformer.training.optimizers import OPTIMIZERS
from transformer.training.step import hyperparameters
from transformer.training.sweep.groups import INIT_FIELDS, field_classes
from transformer.training.sweep.space import with_overrides
from transformer.training.sweep.trainer import VectorTrainer

A = {
    'optimizer.learning_rate': 1e-2,
    'optimizer.weight_decay': 0.5,
    'optimizer.clip_norm': 0.0,
    'schedule.warmup_steps': 0,
    'dropout.residual': 0.0,
    'model.init_std': 0.02,
    'seed': 0,
    'train.steps': 12,
}
B = {
    'optimizer.learning_rate': 3e-3,
    'optimizer.weight_decay': 0.0,
    'optimizer.clip_norm': 0.1,
    'schedule.warmup_steps': 7,
    'dropout.residual': 0.3,
    'model.init_std': 0.05,
    'seed': 2**31 - 1,
    'train.steps': 9,
}


@pytest.fixture(scope='module')
def alone(config):
    """Metrics and parameters of A, B, and B on another stream of batches, each trained alone."""
    results = {}
    for name, overrides, seeds in ('A', A, [0]), ('B', B, [0, 5]):
        experiment = load_experiment(with_overrides(config, overrides))
        update, evaluation = experiment.train_step(), experiment.eval_step()
        for seed in seeds:
            stream = dataclasses.replace(experiment.data.train, seed=seed)
            state, parallel = experiment.initial_state(), experiment.parallel
            for n in range(overrides['train.steps']):
                state, _ = update(state, parallel.split(stream.batch(n)))
            dataset = experiment.data.validation
            sums = evaluate(evaluation, state.params, dataset, parallel, 4, 2)
            metrics = means(sums, experiment.bytes_per_token(dataset))
            results[name, seed] = metrics, jax.device_get(state.params)
    return results


def assert_equal(trainer, slot, expected):
    metrics, params = expected
    assert trainer.evaluate()[slot] == pytest.approx(metrics, rel=1e-5)
    for a, b in zip(jax.tree.leaves(trainer.params(slot)), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_trials_in_lockstep_equal_trials_alone(config, alone):
    """Though one of them diverges."""
    trainer = VectorTrainer(config, A, 3)
    trials = A, B, A | {'optimizer.learning_rate': 1e30}
    trainer.start({slot: with_overrides(config, one) for slot, one in enumerate(trials)})
    trainer.train(9)
    assert_equal(trainer, 1, alone['B', 0])
    trainer.train(3)
    assert_equal(trainer, 0, alone['A', 0])
    assert trainer.bad_steps()[:2].tolist() == [-1, -1]
    assert 0 < trainer.bad_steps()[2] < 9


def test_trial_in_a_slot_that_became_free_equals_it_alone(config, alone):
    """A trial starts at its own step 0, with its own batches, while another is under way."""
    trainer = VectorTrainer(config, [*A, 'data.seed'], 2, lockstep=False, chunk=1)
    trainer.start({slot: with_overrides(config, A) for slot in (0, 1)})
    trainer.train(3)
    trainer.start({0: with_overrides(config, B | {'data.seed': 5})})
    assert trainer.steps.tolist() == [0, 3]
    trainer.train(9)
    assert_equal(trainer, 0, alone['B', 5])
    assert_equal(trainer, 1, alone['A', 0])


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_every_traced_field_can_be_traced(config, name):
    """With every optimizer, masking and an average of the parameters; nothing is compiled."""
    overrides = {
        'optimizer.name': name,
        'task': 'masked_lm',
        'model.topology': 'encoder',
        'model.embedding_std': 0.1,
        'train.ema_decay': 0.9,
        'model.param_dtype': 'bfloat16',
    }
    config = with_overrides(config, overrides)
    fields = [field for field, kind in field_classes(config).items() if kind == 'traced']
    trainer = VectorTrainer(config, fields, 1)
    batch = trainer.experiment.data.train.batch(0)
    numbers = {name: column[0] for name, column in trainer.columns([config]).items()}
    assert set(numbers) == {*hyperparameters(config), *INIT_FIELDS}
    state = jax.eval_shape(trainer.created, numbers)
    after, sums = jax.eval_shape(trainer.updated, state, batch, numbers)
    assert after == state  # structure, shapes and dtypes
    assert sums['loss'].shape == ()


def test_fields_that_one_program_cannot_vary(config):
    with pytest.raises(UserError, match=r'model\.num_layers changes the program'):
        VectorTrainer(config, ['model.num_layers'], 2)
    with pytest.raises(UserError, match=r'data\.seed .* lockstep'):
        VectorTrainer(config, ['data.seed'], 2)
    trainer = VectorTrainer(config, ['seed'], 2)
    with pytest.raises(UserError, match='static field'):
        trainer.start({0: with_overrides(config, {'model.num_layers': 2})})
