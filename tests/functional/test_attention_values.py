"""Attention: values and gradients against float64 numpy, finite differences and jax.nn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import (
    BAND,
    BIAS,
    DISTANCE,
    FEATURES,
    KEYS,
    MASK,
    SINKS,
    SLOPES,
    B,
    H,
    K,
    N,
    T,
    V,
    alibi,
    gradients,
    inputs,
    reference,
)
from jax.test_util import check_grads

from transformer.functional.attention import dot_product_attention, multi_head_attention


@pytest.mark.parametrize('name', FEATURES)
def test_equals_the_equations_in_float64(name):
    arguments, of_reference = FEATURES[name]
    query, key, value = inputs(dtype=np.float64)
    with jax.enable_x64(True):
        results = dot_product_attention(
            query, key, value, return_residual=True, return_weights=True, **arguments
        )
        assert {x.dtype for x in results} == {np.dtype('float64')}
        results = [np.asarray(x) for x in results]
    for mine, other in zip(results, reference(query, key, value, **of_reference), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize('results', ['output', 'weights'])
def test_derivatives_equal_finite_differences_with_every_feature(results):
    """The first and the second, in forward and reverse mode, also where a query has no key."""
    arguments = {**FEATURES['all'][0], 'return_weights': results == 'weights'}
    del arguments['bias'], arguments['sinks']

    def function(query, key, value, slopes, sinks, rate):
        biases = {'bias': (alibi, slopes), 'sinks': sinks}
        dropout = {'dropout_rate': rate, 'dropout_key': KEYS}
        found = dot_product_attention(query, key, value, **biases, **dropout, **arguments)
        return found if results == 'output' else found[1]

    with jax.enable_x64(True):
        operands = (*inputs(dtype=np.float64), SLOPES.astype(np.float64), SINKS, 0.3)
        check_grads(jax.jit(function), operands, order=2, modes=['fwd', 'rev'], eps=1e-4)


SWAPS = {
    'plain': ({'implementation': 'xla'}, {}),
    'causal, more queries than keys': ({'is_causal': True}, {'t': 8, 's': 3}),
    'causal and window, more keys': ({'is_causal': True, 'local_window_size': (3, 1)}, {'s': 9}),
    'window, one key head, scale and bias': (
        {'local_window_size': 2, 'scale': 0.3, 'bias': BIAS[None].astype(np.float32)},
        {'k': 1},
    ),
    'mask': ({'mask': MASK | np.eye(T, dtype=bool)}, {'k': N}),
    'lengths': (
        {
            'query_seq_lengths': np.array([4, 6], np.int32),
            'key_value_seq_lengths': np.array([3, 7], np.int32),
        },
        {'s': 7},
    ),
}


@pytest.mark.parametrize('name', SWAPS)
def test_equals_jax_nn(name):
    arguments, sizes = SWAPS[name]
    arrays = inputs(**{'v': H, **sizes})

    @jax.jit
    def results(*arrays):
        def loss(function, *qkv):
            output, residual = function(*qkv, return_residual=True, **arguments)
            return (output**2).sum(), (output, residual)

        gradient = jax.grad(loss, (1, 2, 3), has_aux=True)
        return [
            jax.tree.leaves(gradient(function, *arrays))
            for function in (dot_product_attention, jax.nn.dot_product_attention)
        ]

    for mine, other in zip(*results(*arrays), strict=True):
        assert mine.shape == other.shape
        assert mine.dtype == other.dtype
        attends = other > -1e30  # jax.nn adds log(S) to the residual of a query with no key
        np.testing.assert_allclose(
            np.where(attends, mine, 0), np.where(attends, other, 0), rtol=1e-5, atol=1e-5
        )


# Precision.


@pytest.mark.parametrize('dtype', [jnp.bfloat16, jnp.float16])
def test_low_precision_rounds_only_what_it_stores(dtype):
    query, key, value = (jnp.asarray(x, dtype) for x in inputs())
    output, residual, weights = dot_product_attention(
        query, key, value, is_causal=True, return_residual=True, return_weights=True
    )
    assert (output.dtype, residual.dtype, weights.dtype) == (dtype, jnp.float32, jnp.float32)
    expected = reference(query, key, value, mask=DISTANCE >= 0)
    unit = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(np.asarray(output, np.float64), expected[0], rtol=unit, atol=unit)
    np.testing.assert_allclose(residual, expected[1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(weights, expected[2], rtol=1e-5, atol=1e-6)


def test_bfloat16_gradients_are_close_to_float32_and_keep_their_dtype():
    arrays = [jnp.asarray(x, jnp.bfloat16) for x in inputs()]
    low = gradients(*arrays, mask=BAND)
    high = gradients(*(x.astype(jnp.float32) for x in arrays), mask=BAND)
    for mine, other in zip(low, high, strict=True):
        assert mine.dtype == jnp.bfloat16
        np.testing.assert_allclose(mine.astype(np.float32), other, atol=0.02, rtol=0.02)


# Multi-head attention.


@pytest.mark.parametrize('cross', [False, True])
@pytest.mark.parametrize('biased', [False, True])
def test_multi_head_attention_is_the_concatenation_of_heads(cross, biased):
    D = 10
    random = np.random.default_rng(0)
    x, memory = random.normal(size=(B, T, D)), random.normal(size=(B, 7, D))
    shapes = (D, N, H), (D, K, H), (D, K, V), (N, V, D)
    weights = [random.normal(size=shape) for shape in shapes]
    biases = [random.normal(size=shape) * biased for shape in (*(s[1:] for s in shapes[:3]), (D,))]
    names = 'b_query', 'b_key', 'b_value', 'b_out'
    source = memory if cross else x
    heads = []
    for n in range(N):
        k = n // (N // K)
        query = x @ weights[0][:, n] + biases[0][n]
        key = source @ weights[1][:, k] + biases[1][k]
        value = source @ weights[2][:, k] + biases[2][k]
        exponentials = np.exp(query @ key.swapaxes(1, 2) / np.sqrt(H))
        heads.append(exponentials / exponentials.sum(-1, keepdims=True) @ value)
    expected = np.concatenate(heads, -1) @ weights[3].reshape(N * V, D) + biases[3]
    with jax.enable_x64(True):
        output = multi_head_attention(
            x,
            memory if cross else None,
            *weights,
            **(dict(zip(names, biases, strict=True)) if biased else {}),
        )
    np.testing.assert_allclose(output, expected, rtol=1e-11, atol=1e-12)


def test_multi_head_attention_hands_arguments_and_results_on():
    random = np.random.default_rng(0)
    x = random.normal(size=(T, 10)).astype(np.float32)
    weights = [random.normal(size=(10, N, H)).astype(np.float32) for _ in range(3)]
    w_out = random.normal(size=(N, H, 10)).astype(np.float32)
    attend = jax.jit(
        lambda x: multi_head_attention(
            x, None, *weights, w_out, is_causal=True, return_weights=True
        )
    )
    output, probabilities = attend(x)
    assert output.shape == (T, 10)
    np.testing.assert_array_equal(np.triu(probabilities, 1), 0)
    np.testing.assert_allclose(attend(x[:3])[0], output[:3], rtol=1e-4, atol=1e-5)
