"""Optimizers by name: the same updates for scanned and looped layers, the right decay."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from transformer.config import TransformerConfig
from transformer.modules import Transformer, stack_layers, unstack_layers
from transformer.modules.axes import map_parameters, path_name
from transformer.training.optimizers import OPTIMIZERS, clip_by_global_norm, make_optimizer

CONFIG = TransformerConfig(
    vocab_size=7,
    num_layers=2,
    embed_dim=8,
    num_heads=2,
    mlp_dim=160,
    norm='layernorm',
    attention_bias='all',
    mlp_bias=True,
    scan_layers=False,
)
HPARAMS = {
    'weight_decay': 0.1,
    'b1': 0.9,
    'b2': 0.95,
    'eps': 1e-8,
    'adam_factor': 0.5,
}
NO_DECAY = r'(scale|bias)$'
TOKENS = np.ones((1, 2), int)


def random_like(tree, seed):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda a: rng.standard_normal(a.shape).astype(np.float32), tree)


def two_updates(name, params, grads):
    optimizer = make_optimizer(name, HPARAMS, 1e-2, NO_DECAY)

    @jax.jit
    def run(params):
        state = optimizer.init(params)
        for _ in range(2):
            updates, state = optimizer.update(grads, state, params)
            params = optax.apply_updates(params, updates)
        return params

    return run(params)


@pytest.fixture(scope='module')
def params():
    shapes = jax.eval_shape(Transformer(CONFIG).init, jax.random.key(0), {'tokens': TOKENS})
    return random_like(shapes['params'], 0)


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_scanned_layers_train_like_looped_ones(name, params):
    scanned = dataclasses.replace(CONFIG, scan_layers=True)
    grads = random_like(params, 1)
    looped = two_updates(name, params, grads)
    stacked = two_updates(name, stack_layers(params, scanned), stack_layers(grads, scanned))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        unstack_layers(stacked, scanned),
        looped,
    )
    jax.tree.map(lambda a, b: np.testing.assert_array_less(0, np.abs(a - b).max()), looped, params)


@pytest.mark.parametrize('name', OPTIMIZERS)
@pytest.mark.parametrize('scan', [False, True])
def test_decay_leaves_scales_and_biases_alone(name, scan, params):
    """With zero gradients an update is decay alone: -rate * decay * parameter, or nothing."""
    params = stack_layers(params, CONFIG) if scan else params
    zeros = jax.tree.map(np.zeros_like, params)
    optimizer = make_optimizer(name, HPARAMS, 1e-2, NO_DECAY)
    updates, _ = jax.jit(lambda p: optimizer.update(zeros, optimizer.init(p), p))(params)
    decayed = {
        path_name(path) for path, u in jax.tree_util.tree_leaves_with_path(updates) if u.any()
    }
    names = []
    map_parameters(lambda name, _: names.append(name), params)
    assert decayed == {name for name in names if not name.endswith(('scale', 'bias'))}
    rate = 1e-2 * HPARAMS['weight_decay'] * (HPARAMS['adam_factor'] if name == 'muon' else 1)
    table = params['embedding']['table']
    np.testing.assert_allclose(updates['embedding']['table'], -rate * table, rtol=1e-5)


def test_adafactor_factors_projections_as_matrices():
    """The second moment of a kernel [256, 4, 64] is a row and a column of [256, 256]."""
    config = dataclasses.replace(CONFIG, embed_dim=256, num_heads=4)
    params = jax.eval_shape(Transformer(config).init, jax.random.key(0), {'tokens': TOKENS})
    optimizer = make_optimizer('adafactor', HPARAMS, 1e-2, NO_DECAY)
    state = jax.eval_shape(optimizer.init, params['params'])
    kernel = params['params']['decoder']['layer_0']['self_attention']['query']['kernel']
    assert kernel.shape == (256, 4, 64)
    largest = max(leaf.size for leaf in jax.tree.leaves(state))
    assert largest < kernel.size


def test_muon_orthogonalises_whole_projections(params):
    """An attention kernel [D, N, H] is one matrix [D, N H], updated with equal singular values."""
    hparams = HPARAMS | {'weight_decay': 0.0}
    optimizer = make_optimizer('muon', hparams, 1.0, NO_DECAY)
    grads = random_like(params, 1)
    updates, _ = jax.jit(lambda p: optimizer.update(grads, optimizer.init(p), p))(params)
    layer = updates['decoder']['layer_0']
    for kernel, rows in (
        (layer['self_attention']['query']['kernel'], 8),
        (layer['self_attention']['out']['kernel'], 8),
        (layer['feed_forward']['down']['kernel'], 160),
    ):
        values = np.linalg.svd(np.asarray(kernel).reshape(rows, -1), compute_uv=False)
        scale = 0.2 * max(rows, kernel.size // rows) ** 0.5
        assert (values > 0.6 * scale).all()
        assert (values < 1.3 * scale).all()


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_numbers_may_be_traced(name, params):
    table = {'embedding': params['embedding']}
    grads = random_like(table, 1)

    def update(decay, rate):
        optimizer = make_optimizer(name, HPARAMS | {'weight_decay': decay}, rate, NO_DECAY)
        return optimizer.update(grads, optimizer.init(table), table)[0]['embedding']['table']

    got = jax.jit(jax.vmap(update))(np.array([0.1, 0.2]), np.array([1e-2, 1e-3]))
    expected = jax.jit(lambda: update(0.2, 1e-3))()
    np.testing.assert_allclose(got[1], expected, rtol=1e-4, atol=1e-7)


def test_clipping_measures_in_float32():
    grads = {'a': jnp.full(10**6, 1e3, jnp.bfloat16)}
    clipped, norm = clip_by_global_norm(grads, 1.0)
    assert float(norm) == pytest.approx(1e6, rel=1e-2)
    assert float(jnp.linalg.norm(clipped['a'].astype(jnp.float32))) == pytest.approx(1, rel=1e-2)
    assert clipped['a'].dtype == jnp.bfloat16


def test_clipping_of_zero_and_of_small_gradients():
    zeros, norm = clip_by_global_norm({'a': jnp.zeros(3)}, 1.0)
    assert float(norm) == 0
    np.testing.assert_array_equal(zeros['a'], 0)
    small = {'a': jnp.array([0.3, 0.4])}
    np.testing.assert_array_equal(clip_by_global_norm(small, 1.0)[0]['a'], small['a'])
    large = {'a': jnp.array([3.0, 4.0])}
    np.testing.assert_array_equal(clip_by_global_norm(large, 0.0)[0]['a'], large['a'])


def test_adamw_is_that_of_optax_and_waits_where_it_is_not_applied(params):
    ours = make_optimizer('adamw', HPARAMS, 1e-2, NO_DECAY)
    numbers = {name: HPARAMS[name] for name in ('b1', 'b2', 'eps', 'weight_decay')}

    def decays(params):
        return map_parameters(lambda path, _: not path.endswith(('scale', 'bias')), params)

    theirs = optax.adamw(1e-2, mask=decays, **numbers)
    (state, expected), update = (one.init(params) for one in (ours, theirs)), jax.jit(ours.update)
    assert jax.tree.structure(state) == jax.tree.structure(expected)  # a checkpoint fits both
    for seed in range(3):
        grads = random_like(params, seed)
        # Bad gradients in between leave no trace.
        bad = jax.tree.map(lambda g: g * np.nan, grads)
        _, state = update(bad, state, params, applied=jnp.array(False))
        found, state = update(grads, state, params, applied=jnp.array(True))
        updates, expected = jax.jit(theirs.update)(grads, expected, params)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6),
            (found, state),
            (updates, expected),
        )
