"""One update: exact under accumulation, padding and chunking, and safe with bad numbers."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import base
from transformer.config import TransformerConfig
from transformer.modules import Transformer
from transformer.training.experiment import init_params
from transformer.training.optimizers import make_optimizer
from transformer.training.state import TrainState
from transformer.training.step import (
    Recipe,
    eval_step,
    hyperparameters,
    row_keys,
    tokens_at_a_time,
    train_step,
)

CONFIG = TransformerConfig(
    vocab_size=11,
    num_layers=1,
    embed_dim=8,
    num_heads=2,
    mlp_dim=16,
    scan_layers=False,
    init='fan_in',
    embedding_std=1.0,
)
RECIPE = Recipe(Transformer(CONFIG), optimizer='sgd', schedule='constant')
HPARAMS = hyperparameters(base.get_config()) | {'warmup_steps': 0, 'clip_norm': 0.0}


def make_batch(seed=0):
    """Four rows with very different numbers of targets."""
    rng = np.random.default_rng(seed)
    lengths = np.array([8, 1, 3, 0])
    valid = np.arange(8) < lengths[:, None]
    return {
        'tokens': rng.integers(0, 11, (4, 8)),
        'targets': rng.integers(0, 11, (4, 8)),
        'weights': valid.astype(np.float32),
        'segment_ids': valid.astype(np.int32),
        'positions': np.arange(8) * valid,
    }


def make_state(recipe=RECIPE):
    optimizer = make_optimizer(recipe.optimizer, HPARAMS, 0.0, recipe.no_decay)
    return TrainState.create(init_params(recipe.model, 0), optimizer)


def run(recipe=RECIPE, batch=None, steps=1, state=None, **hparams):
    step = jax.jit(functools.partial(train_step, hparams=HPARAMS | hparams, recipe=recipe))
    state = state or make_state(recipe)
    for n in range(steps):
        state, sums = step(state, make_batch(n) if batch is None else batch)
    return state, sums


def assert_close(a, b, **tolerance):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerance), a, b)


@pytest.mark.parametrize('dropout', [0.0, 0.3])
@pytest.mark.parametrize('accumulation', [2, 4])
def test_accumulation_is_exact_under_uneven_padding(accumulation, dropout):
    rates = {'dropout_residual': dropout, 'dropout_attention': dropout}
    whole, sums = run(**rates)
    recipe = dataclasses.replace(RECIPE, accumulation=accumulation)
    parts, part_sums = run(recipe, **rates)
    assert_close(parts.params, whole.params, rtol=1e-5, atol=1e-6)
    assert_close(part_sums, sums, rtol=1e-5)
    assert float(sums['weight']) == 12


@pytest.mark.parametrize('chunk', [4, 16])
def test_chunked_loss_equals_whole(chunk):
    hparams = {'label_smoothing': 0.1, 'z_loss': 1e-3}
    whole, sums = run(**hparams)
    chunked, chunk_sums = run(dataclasses.replace(RECIPE, chunk=chunk), **hparams)
    assert_close(chunked.params, whole.params, rtol=1e-5, atol=1e-6)
    assert_close(chunk_sums, sums, rtol=1e-5)


def test_without_a_chunk_as_many_tokens_as_divide_the_batch_and_stay_below_the_limit():
    assert tokens_at_a_time(None, 2048, 4096) == 2048
    assert tokens_at_a_time(None, 8192, 50_257) == 512  # at most 667
    assert tokens_at_a_time(None, 3 * 1024, 128_256) == 256  # at most 261
    assert tokens_at_a_time(None, 1021, 128_256) == 1021  # a prime
    assert tokens_at_a_time(0, 8192, 50_257) == 8192
    assert tokens_at_a_time(96, 8192, 50_257) == 32


def test_reported_loss_is_plain_cross_entropy():
    _, plain = run()
    _, smoothed = run(label_smoothing=0.2, z_loss=0.1)
    np.testing.assert_allclose(smoothed['loss'], plain['loss'], rtol=1e-6)
    assert smoothed['objective'] > plain['objective']
    evaluated = jax.jit(functools.partial(eval_step, recipe=RECIPE))(
        make_state().params, make_batch()
    )
    np.testing.assert_allclose(evaluated['loss'], plain['loss'], rtol=1e-6)


def test_padding_content_is_irrelevant():
    """What stands in padding (and what its targets would be) changes no bit of the update."""
    clean = make_batch()
    dirty = dict(clean)
    padding = clean['weights'] == 0
    dirty['tokens'] = np.where(padding, 7, clean['tokens'])
    dirty['targets'] = np.where(padding, 10**6, clean['targets'])  # out of the vocabulary
    assert_close(run(batch=dirty)[0].params, run(batch=clean)[0].params, rtol=0)


def test_batch_without_targets_changes_nothing():
    batch = make_batch() | {'weights': np.zeros((4, 8), np.float32)}
    recipe = dataclasses.replace(RECIPE, optimizer='adamw')
    good, _ = run(recipe)
    state, sums = run(recipe, batch, state=good)
    assert_close((state.params, state.opt_state), (good.params, good.opt_state), rtol=0)
    assert float(sums['gradient_norm']) == 0
    assert int(state.bad_step) == -1


def test_bad_update_is_skipped_and_named():
    recipe = dataclasses.replace(RECIPE, optimizer='adamw')
    good, _ = run(recipe, steps=2)
    poisoned = make_batch() | {'weights': np.full((4, 8), np.inf, np.float32)}
    bad, sums = run(recipe, poisoned, state=good)
    assert not np.isfinite(sums['gradient_norm'])
    assert (int(bad.step), int(bad.bad_step)) == (3, 2)
    assert_close((bad.params, bad.opt_state), (good.params, good.opt_state), rtol=0)
    later, _ = run(recipe, poisoned, state=bad)
    assert (int(later.step), int(later.bad_step)) == (4, 2)
    after, _ = run(recipe, make_batch(), state=later)
    assert np.isfinite(jax.tree.leaves(after.params)[0]).all()
    assert (int(after.step), int(after.bad_step)) == (5, 2)


def test_traced_numbers_give_what_python_numbers_give():
    """Two trials in one vmapped step, dropout and smoothing included, against each alone."""
    trials = {'learning_rate': [0.1, 0.01], 'dropout_residual': [0.1, 0.4], 'seed': [0, 5]}
    trials |= {'label_smoothing': [0.1, 0.2], 'weight_decay': [0.1, 0.0], 'clip_norm': [1.0, 0.5]}
    state, batch = make_state(), make_batch()

    def step(numbers):
        return train_step(state, batch, HPARAMS | numbers, RECIPE)[0].params

    together = jax.jit(jax.vmap(step))(
        jax.tree.map(np.array, trials, is_leaf=lambda x: isinstance(x, list))
    )
    for trial in range(2):
        alone, _ = run(**{name: values[trial] for name, values in trials.items()})
        got = jax.tree.map(lambda a, trial=trial: a[trial], together)
        assert_close(got, alone.params, rtol=1e-5, atol=1e-6)


def test_dropout_is_a_function_of_seed_step_and_row():
    rates = {'dropout_residual': 0.5, 'dropout_embedding': 0.2}
    batch = make_batch()

    def loss(step=0, **changes):
        state = make_state().replace(step=jnp.int32(step))
        return float(run(state=state, batch=batch, **rates, **changes)[1]['loss'])

    assert loss() == loss()
    assert len({loss(), loss(step=1), loss(seed=1)}) == 3
    keys = row_keys(0, 3, jnp.arange(4))
    np.testing.assert_array_equal(
        jax.random.key_data(keys[2:]), jax.random.key_data(row_keys(0, 3, jnp.arange(2, 4)))
    )


def test_tied_table_is_one_parameter_with_both_gradients():
    tied, untied = (
        Transformer(dataclasses.replace(CONFIG, tie_embeddings=tie)) for tie in (True, False)
    )
    params = init_params(tied, 0)
    assert 'head' not in params
    table = params['embedding']['table']
    both = params | {'head': {'output': {'kernel': table.T}}}

    def gradient(model, params):
        recipe = dataclasses.replace(RECIPE, model=model)

        def loss(params):
            return eval_step(params, make_batch(), recipe)['loss']

        return jax.jit(jax.grad(loss))(params)

    one = gradient(tied, params)['embedding']['table']
    two = gradient(untied, both)
    total = two['embedding']['table'] + two['head']['output']['kernel'].T
    np.testing.assert_allclose(one, total, rtol=1e-5, atol=1e-6)


def test_ragged_bfloat16_batch_has_finite_gradients():
    model = Transformer(dataclasses.replace(CONFIG, dtype='bfloat16'))
    _, sums = run(dataclasses.replace(RECIPE, model=model))
    assert np.isfinite(sums['gradient_norm'])


def test_moving_average_is_its_recurrence_and_skips_bad_updates():
    state = make_state()
    state = state.replace(ema=jax.tree.map(jnp.copy, state.params))
    expected = state.ema
    for n in range(3):
        state, _ = run(batch=make_batch(n), state=state, ema_decay=0.15)
        decay = min(0.15, (1 + n) / (10 + n))
        expected = jax.tree.map(lambda e, p, d=decay: d * e + (1 - d) * p, expected, state.params)
    assert_close(state.ema, expected, rtol=1e-5, atol=1e-6)
    assert_close(state.best_params, state.ema, rtol=0)
    poisoned = make_batch() | {'weights': np.full((4, 8), np.inf, np.float32)}
    bad, _ = run(batch=poisoned, state=state, ema_decay=0.15)
    assert_close(bad.ema, state.ema, rtol=0)
    assert make_state().best_params is not None


@pytest.mark.parametrize('optimizer', ['adamw', 'muon'])
@pytest.mark.parametrize('has_ema', [False, True])
def test_the_state_is_updated_in_place(optimizer, has_ema):
    config = dataclasses.replace(CONFIG, vocab_size=4096, embed_dim=64, tie_embeddings=False)
    recipe = dataclasses.replace(RECIPE, model=Transformer(config), optimizer=optimizer)
    state = jax.eval_shape(lambda: make_state(recipe))
    state = state.replace(ema=state.params if has_ema else None)
    step = functools.partial(train_step, hparams=HPARAMS, recipe=recipe)
    memory = jax.jit(step, donate_argnums=0).lower(state, make_batch()).compile().memory_analysis()
    size, total = (
        sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
        for tree in (state.params, state)
    )
    assert memory.alias_size_in_bytes >= total  # the given buffers are those of the result
    # Beside the gradients, and half of that again for logits and so on, no copy of any part of it.
    assert memory.temp_size_in_bytes < 1.9 * size
