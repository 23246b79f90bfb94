"""Attention in strips of queries, plain and by slices of heads, against all queries at once."""

import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import KEYS, SINKS, SLOPES, B, N, alibi, inputs

from transformer.functional import attention_blocks, attention_strips
from transformer.functional.attention import dot_product_attention

T = 11  # strips of 2 and 3
RANDOM = np.random.default_rng(3)
FEATURES = {
    'alone': {},
    'mask': {'mask': RANDOM.random((B, N, T, 1)) < 0.6},
    'bias and softcap': {'bias': RANDOM.normal(size=(N, T, 1)), 'softcap': 0.8},
    'alibi and sinks': {'bias': (alibi, SLOPES), 'sinks': SINKS, 'scale': 0.3},
    'dropout': {'dropout_rate': 0.3, 'dropout_key': KEYS},
    'lengths': {'query_seq_lengths': np.array([9, 11]), 'key_value_seq_lengths': np.array([0, 2])},
}
BOUNDS = {
    'causal': {'is_causal': True},
    'window': {'local_window_size': (2, 1)},
    'causal window': {'is_causal': True, 'local_window_size': (2, 1)},
}


def results(arrays, **arguments):
    """Output, residual, weights and the gradients by query, key and value."""

    def attend(*arrays):
        options = {'implementation': 'xla', 'return_residual': True, 'return_weights': True}
        return dot_product_attention(*arrays, **options, **arguments)

    def both(*arrays):
        out, pull = jax.vjp(lambda *x: attend(*x)[0], *arrays)
        return attend(*arrays), pull(jnp.cos(out))

    return jax.jit(both)(*arrays)


@pytest.mark.parametrize('S', [3, T, 16])
@pytest.mark.parametrize('bounds', BOUNDS.values(), ids=BOUNDS)
@pytest.mark.parametrize('feature', FEATURES.values(), ids=FEATURES)
def test_equals_all_queries_at_once(monkeypatch, feature, bounds, S):
    arrays = inputs(T, S, dtype=np.float64)
    with jax.enable_x64(True):
        whole = results(arrays, **feature, **bounds)
        monkeypatch.setattr(attention_strips, 'SHORTEST', 2)
        strips = results(arrays, **feature, **bounds)
    for one, other in zip(*map(jax.tree.leaves, (strips, whole)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def all_gradients(arrays, implementation, variables, **arguments):
    """Output, residual and the gradients by the arrays and by all that is floating."""

    def attend(arrays, variables):
        options = {'implementation': implementation, 'return_residual': True, **arguments}
        return dot_product_attention(*arrays, **variables, **options)

    def both(arrays, variables):
        out, pull, residual = jax.vjp(attend, arrays, variables, has_aux=True)
        return out, residual, pull(jnp.cos(out))

    return jax.jit(both)(arrays, variables)


def assert_blockwise_equals_plain(monkeypatch, t, s, shortest, feature, **bounds):
    """With strips of at least `shortest` queries for the one, and none for the other."""
    rest = dict(FEATURES[feature], **bounds)
    if 'mask' in rest:
        rest['mask'] = rest['mask'][:, :, :t]
    with jax.enable_x64(True):
        variables = {'sinks': jnp.asarray(SINKS, jnp.float64), 'scale': jnp.float64(0.3)}
        if 'bias' in rest:
            variables['bias'] = jnp.asarray(rest.pop('bias')[:, :t])
        arrays = inputs(t, s, dtype=np.float64)
        plain = all_gradients(arrays, 'xla', variables, **rest)
        monkeypatch.setattr(attention_strips, 'SHORTEST', shortest)
        blockwise = all_gradients(arrays, 'blockwise', variables, **rest)
    for one, other in zip(*map(jax.tree.leaves, (blockwise, plain)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize('S', [3, T, 16])
@pytest.mark.parametrize('bounds', BOUNDS.values(), ids=BOUNDS)
@pytest.mark.parametrize('feature', [name for name in FEATURES if name != 'alibi and sinks'])
def test_slices_of_heads_in_strips_equal_all_queries_at_once(monkeypatch, feature, bounds, S):
    monkeypatch.setattr(attention_strips, 'OF_BLOCK', 4)  # two strips, of 5 and 6
    monkeypatch.setattr(attention_blocks, 'CPU_BUDGET_OF_STRIPS', 2 * 6 * S)  # of one head
    assert_blockwise_equals_plain(monkeypatch, T, S, 2, feature, **bounds)


@pytest.mark.parametrize(('side', 'strip'), [(5, 2), (2, 1)], ids=['two blocks', 'five blocks'])
@pytest.mark.parametrize('feature', [name for name in FEATURES if name != 'alibi and sinks'])
def test_strips_on_the_diagonal_and_blocks_below_it_equal_all_queries_at_once(
    monkeypatch, feature, side, strip
):
    monkeypatch.setattr(attention_strips, 'CPU_SIDE', side)
    monkeypatch.setattr(attention_strips, 'OF_BLOCK', strip)
    monkeypatch.setattr(attention_blocks, 'CPU_BUDGET', 1)  # blocks of one head
    assert_blockwise_equals_plain(monkeypatch, 10, 10, 1, feature, is_causal=True)


def strip_sides(T, S=None, heads=(4, 4), **arguments):
    """Queries of each strip, and queries and keys of the block of which they are strips."""
    shapes = {'query': (1, T, heads[0], 64), 'key': (1, S or T, heads[1], 64)}
    shapes = {name: jax.ShapeDtypeStruct(x, np.float32) for name, x in shapes.items()}
    rest = {'is_causal': True, 'window': None, 'bias_fn': None, 'by_index': True}
    strips = attention_strips.strips_of_diagonal(
        types.SimpleNamespace(**shapes, **rest | arguments)
    )
    ends = [max(sum(strip[axis]) for strip in strips) for axis in 'TS'] if strips else []
    return {strip['T'][1] for strip in strips}, ends


@pytest.mark.skipif(jax.default_backend() != 'cpu', reason='other devices have no strips')
def test_blocks_in_strips_are_equal_and_within_the_budget():
    assert strip_sides(128) == (set(), [])
    assert strip_sides(1024) == ({128}, [1024, 1024])
    assert strip_sides(4096) == ({128}, [1024, 1024])
    assert strip_sides(4096, heads=(8, 4)) == ({128}, [512, 512])
    assert strip_sides(2500) == ({156, 157}, [625, 625])
    assert strip_sides(2503) == (set(), [])  # a prime number, and too many for one block
    assert strip_sides(1511) == ({137, 138}, [1511, 1511])
    assert strip_sides(2048, S=1024) == ({128}, [2048, 1024])
    assert strip_sides(2048, window=(256, 0)) == ({128}, [2048, 2048])
    assert strip_sides(4096, window=(256, 0)) == (set(), [])


@pytest.mark.parametrize(('length', 'is_in_strips'), [(128, False), (129, True), (4096, False)])
def test_slices_of_heads_in_strips_have_no_loop_over_blocks(length, is_in_strips):
    """One over slices alone, which JAX calls a scan: its length is known."""
    arrays = [jax.ShapeDtypeStruct((1, length, 2, 8), jnp.float32) for _ in range(3)]

    def attend(*arrays):
        return dot_product_attention(*arrays, is_causal=True, implementation='blockwise').sum()

    for function in attend, jax.grad(attend):
        text = str(jax.make_jaxpr(function)(*arrays))
        assert ('while[' not in text) == is_in_strips


def largest_product(arrays, **arguments):
    """Elements of the largest array of logits."""
    arguments = {'implementation': 'xla', 'is_causal': True} | arguments
    jaxpr = jax.make_jaxpr(lambda *x: dot_product_attention(*x, **arguments))(*arrays)
    softmaxes = (e for e in jaxpr.eqns if e.primitive.name == 'custom_jvp_call')
    return max(e.outvars[0].aval.size for e in softmaxes)


@pytest.mark.parametrize(('length', 'most'), [(64, 32 * 64), (256, 64 * 256)])
def test_a_strip_has_no_logits_of_the_queries_beyond_it(length, most):
    assert largest_product(inputs(length, length)) == B * N * most


@pytest.mark.parametrize(
    'arguments',
    [
        {'is_causal': False},
        {'query_positions': np.arange(64)},  # they might be any others
        {'dtype': jnp.bfloat16},
        {'length': 63},
    ],
    ids=itertools.chain.from_iterable,
)
def test_all_queries_at_once(arguments):
    arguments = {'length': 64, 'dtype': jnp.float32} | arguments
    length, dtype = arguments.pop('length'), arguments.pop('dtype')
    arrays = inputs(length, length, dtype=dtype)
    assert largest_product(arrays, **arguments) == B * N * length**2
