"""Attention with sinks, and with biases that are functions of positions."""

import jax
import numpy as np
import pytest
from attention_cases import BIAS, SINKS, SLOPES, B, H, N, S, T, V, alibi, buckets, compiled, inputs

from transformer.functional.attention import dot_product_attention


def test_a_sink_is_a_key_without_a_value():
    query, key, value = inputs(k=N)
    sinks = SINKS * [1, 1, 1, 100]  # exp(300) overflows
    extra = np.zeros((B, 1, N, H), np.float32), np.zeros((B, 1, N, V), np.float32)
    wider = [np.concatenate([x, y], 1) for x, y in zip((key, value), extra, strict=True)]
    bias = np.zeros((1, N, 1, S + 1), np.float32)
    bias[0, :, 0, S] = sinks
    with_sink = compiled(query, key, value, sinks=sinks, return_residual=True, return_weights=True)
    with_key = compiled(query, *wider, bias=bias, return_residual=True, return_weights=True)
    for mine, other in zip(with_sink, (*with_key[:2], with_key[2][..., :S]), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


def test_a_query_with_a_sink_and_no_key_is_zero_with_zero_gradients():
    query, key, value = inputs()
    mask = np.zeros((1, 1, T, S), bool)

    def loss(query, key, value, sinks):
        output = dot_product_attention(query, key, value, mask=mask, sinks=sinks)
        return (output + 1).sum()

    output, residual = dot_product_attention(
        query, key, value, mask=mask, sinks=SINKS, return_residual=True
    )
    np.testing.assert_array_equal(output, 0)
    np.testing.assert_allclose(residual, np.broadcast_to(SINKS, residual.shape), atol=1e-6)
    for gradient in jax.jit(jax.grad(loss, (0, 1, 2, 3)))(query, key, value, SINKS):
        np.testing.assert_array_equal(gradient, 0)


TABLE = BIAS.reshape(-1, N)[:7]


@pytest.mark.parametrize(
    ('bias_fn', 'params', 'positions'),
    [
        (alibi, SLOPES, None),
        (buckets, TABLE, np.arange(T) * 2),
        (buckets, TABLE, np.array([[1], [5]]) + np.arange(T)),
    ],
)
def test_structured_bias_equals_dense_bias(bias_fn, params, positions):
    query, key, value = inputs()
    params = params.astype(np.float32)
    indices = np.arange(T) if positions is None else positions

    def output(params, structured):
        bias = (bias_fn, params) if structured else bias_fn(params, indices, indices)
        return dot_product_attention(query, key, value, bias=bias, query_positions=positions)

    @jax.jit
    def results(params):
        loss = jax.value_and_grad(lambda *arguments: (output(*arguments) ** 2).sum())
        return [(output(params, flag), *loss(params, flag)) for flag in (True, False)]

    structured, dense = results(params)
    for mine, other in zip(structured, dense, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)
    assert np.abs(structured[0] - dot_product_attention(query, key, value)).max() > 1e-2
    assert np.abs(structured[2]).max() > 1e-2


def test_alibi_depends_on_relative_positions_only():
    arguments = {'bias': (alibi, SLOPES), 'is_causal': True}
    shifted = dot_product_attention(*inputs(), query_positions=np.arange(T) + 1000, **arguments)
    np.testing.assert_allclose(shifted, dot_product_attention(*inputs(), **arguments), atol=1e-6)
