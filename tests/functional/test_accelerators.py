"""Kernels of accelerators: equal to the plain implementation.

TPU kernels are computed here by plain operations (Pallas's interpreter). In the place of cuDNN
stands JAX's own plain attention, behind the same function and the same arguments.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import SEGMENTS, SINKS, B, inputs, pretend

from transformer.functional import splash
from transformer.functional.attention import IMPLEMENTATIONS, dot_product_attention

JAX_ATTENTION = jax.nn.dot_product_attention


@pytest.fixture
def pallas(monkeypatch):
    """The TPU's kernel here, in blocks of 128."""
    monkeypatch.setattr(splash, 'LARGEST_BLOCK', 128)
    interpreted = functools.partial(splash.splash_attention, interpret=True)
    monkeypatch.setitem(IMPLEMENTATIONS, 'pallas', interpreted)
    pretend(monkeypatch, 'pallas')


@pytest.fixture
def cudnn(monkeypatch):
    """cuDNN's function here, for any dtype, and the list of arguments that it was called with."""
    calls = []

    def plain(*operands, implementation, **arguments):
        assert implementation == 'cudnn'
        calls.append(arguments)
        return JAX_ATTENTION(*operands, implementation='xla', **arguments)

    monkeypatch.setattr(jax.nn, 'dot_product_attention', plain)
    pretend(monkeypatch, 'cudnn', refuses=lambda arguments: None)
    return calls


def results(arrays, implementation, **arguments):
    """Output and the gradients by query, key, value and what is a float among the arguments."""
    variables = {name: arguments.pop(name) for name in ('scale', 'sinks') if name in arguments}

    def loss(arrays, variables):
        output = dot_product_attention(
            *arrays, implementation=implementation, **variables, **arguments
        )
        signs = jnp.cos(jnp.arange(output.size)).reshape(output.shape)
        return (output.astype(jnp.float32) * signs).sum(), output

    gradients, output = jax.grad(loss, (0, 1), has_aux=True)(arrays, variables)
    return output, *jax.tree.leaves(gradients)


def assert_equal_to_xla(name, arrays, tolerance=3e-6, **arguments):
    """Outputs and gradients, within `tolerance` of the largest element of each."""
    run = jax.jit(lambda x: [results(x, i, **arguments) for i in (name, 'xla')])
    mine, plain = run([jnp.asarray(x) for x in arrays])
    for one, other in zip(mine, plain, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
        # The gradient of a scale is a sum of terms that cancel: they round, each, by their size.
        size = np.abs(arrays[0] * plain[1]).sum() if other.ndim == 0 else np.abs(other).max()
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * size)


PACKED = np.repeat([[1, 2, 3, 0], [1, 1, 2, 2]], [50, 100, 50, 100], axis=1)  # [B, 300]
CASES = {
    'padded lengths and heads': (inputs(t=5, s=9), {}),
    'causal, more keys': (inputs(t=130, s=200), {'is_causal': True, 'softcap': 0.8}),
    'causal, more queries': (
        inputs(t=260, s=120),
        {'is_causal': True, 'local_window_size': (100, 9), 'scale': np.float32(0.3)},
    ),
    'window to both sides and lengths': (
        inputs(t=20, s=9),
        {
            'local_window_size': (3, 2),
            'query_seq_lengths': np.array([7, 20]),
            'key_value_seq_lengths': np.array([0, 8]),
        },
    ),
    'packed rows and sinks': (
        inputs(t=300, s=300),
        {
            'is_causal': True,
            'local_window_size': (40, 0),
            'query_segment_ids': PACKED,
            'sinks': SINKS.astype(np.float32),
        },
    ),
    'one segment each, positions that do not matter': (
        inputs(t=9, s=12, k=1),
        {
            'query_segment_ids': np.arange(9) % 4,
            'key_value_segment_ids': np.arange(12) % 3,
            'query_positions': np.arange(9),
            'key_value_positions': np.arange(12),
        },
    ),
}


@pytest.mark.parametrize('name', CASES)
def test_splash_equals_the_plain_implementation(name, pallas):
    arrays, arguments = CASES[name]
    assert_equal_to_xla('pallas', arrays, **arguments)


def test_splash_rounds_like_the_plain_implementation(pallas):
    arrays = [jnp.asarray(x, jnp.bfloat16) for x in inputs(t=140, s=140)]
    assert_equal_to_xla('pallas', arrays, tolerance=2**-7, is_causal=True)


def test_splash_compiles_to_kernels_of_a_tpu(monkeypatch):
    """As far as that goes without one: forward, and backward by keys and by queries."""
    pretend(monkeypatch, 'pallas')
    arrays = [jax.ShapeDtypeStruct(x.shape, jnp.bfloat16) for x in inputs(t=300, s=300)]
    run = functools.partial(
        results, implementation='pallas', is_causal=True, query_segment_ids=PACKED
    )
    program = jax.export.export(jax.jit(lambda *x: run(x)), platforms=['tpu'])(*arrays)
    assert program.mlir_module().count('@tpu_custom_call') == 3


@pytest.mark.parametrize(('length', 'block'), [(1, 128), (512, 512), (640, 384), (1100, 384)])
def test_blocks_pad_little(length, block):
    assert splash._block(length) == block


# Queries 2 and 4 of the first row may attend to nothing, and no query to keys 2 and 4.
EMPTY = {'query_segment_ids': np.array([[1, 2, 3, 4, 0, 5], [1] * 6])} | {
    'key_value_segment_ids': np.array([[1, 2, 0, 4, 0, 5], [1] * 6]),
    'local_window_size': (0, 9),
}


@pytest.mark.parametrize('name', ['pallas', 'cudnn'])
def test_queries_without_keys_are_exactly_zero(name, pallas, cudnn):
    arrays = [jnp.asarray(x) for x in inputs(v=8)]
    output, of_query, of_key, of_value = jax.jit(lambda x: results(x, name, **EMPTY))(arrays)
    np.testing.assert_array_equal(output[0, [2, 4]], 0)
    np.testing.assert_array_equal(of_query[0, [2, 4]], 0)
    np.testing.assert_array_equal(of_key[0, [2, 4]], 0)
    np.testing.assert_array_equal(of_value[0, [2, 4]], 0)
    assert np.all(np.abs(output[1]) > 0)


# The arguments of cuDNN. Structure: what the function is told, by name.

STRUCTURE = {
    'nothing': ({}, {}),
    'causal': ({'is_causal': True}, {'is_causal': True}),
    'causal window': (
        {'is_causal': True, 'local_window_size': (2, 3)},
        {'is_causal': True, 'local_window_size': (2, 0)},
    ),
    'window to the left': (
        {'local_window_size': (2, 0)},
        {'is_causal': True, 'local_window_size': (2, 0)},
    ),
    'window to both sides': ({'local_window_size': 1}, {'mask': True}),
    'segments': ({'is_causal': True, 'query_segment_ids': SEGMENTS}, {'is_causal': True}),
    'mask and window': (
        {'mask': np.tri(6, dtype=bool), 'local_window_size': (1, 0)},
        {'is_causal': True, 'mask': True},
    ),
    'positions': ({'is_causal': True, 'query_positions': np.arange(6)[::-1]}, {'mask': True}),
    'traced scale': ({'scale': np.float32(0.3)}, {}),
    'lengths': ({'key_value_seq_lengths': np.array([4, 6])}, {'mask': True}),
}


@pytest.mark.parametrize('name', STRUCTURE)
def test_cudnn_gets_the_same_attention_in_its_own_words(name, cudnn):
    arguments, told = STRUCTURE[name]
    assert_equal_to_xla('cudnn', inputs(v=8), **arguments)
    told = {'is_causal': False, 'local_window_size': None} | told
    assert {name: cudnn[0][name] for name in ('is_causal', 'local_window_size')} == {
        name: told[name] for name in ('is_causal', 'local_window_size')
    }
    mask = cudnn[0]['mask']
    assert (mask is not None) == ('mask' in told or 'segment' in name)
    assert mask is None or mask.shape == (B, 1, 6, 6)


@pytest.mark.parametrize('lengths', [(4, 6), (6, 4)])
def test_causality_of_other_lengths_is_not_left_to_cudnn(lengths, cudnn):
    t, s = lengths
    assert_equal_to_xla('cudnn', inputs(t=t, s=s, v=8), is_causal=True)
    assert cudnn[0]['mask'] is not None
    assert not cudnn[0]['is_causal']


@pytest.mark.parametrize('name', ['pallas', 'cudnn'])
def test_vmap_equals_one_by_one(name, pallas, cudnn):
    """Over examples that share their keys, segments and some of them nothing."""
    query, key, value = (jnp.asarray(x) for x in inputs(v=8))
    queries = jnp.stack([query, 2 * query, -query], axis=2)  # [B, T, 3, N, H]

    def gradients(query, value, implementation=name):
        arguments = {'is_causal': True, 'query_segment_ids': SEGMENTS}
        return results((query, key, value), implementation, **arguments)

    @jax.jit
    def both(queries):
        together = jax.vmap(gradients, (2, None))(queries, value)
        alone = [gradients(queries[:, :, i], value, 'xla') for i in range(3)]
        return together, jax.tree.map(lambda *x: jnp.stack(x), *alone)

    for mine, other in zip(*both(queries), strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-5)
