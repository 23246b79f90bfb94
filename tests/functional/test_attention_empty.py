"""Attention of queries that may attend to nothing: exactly zero, and as if they were absent."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import BAND, SLOPES, B, N, S, T, V, alibi, gradients, inputs, reference

from transformer.functional.attention import dot_product_attention
from transformer.functional.attention_arguments import MASKED

EMPTY = {
    'mask': {'mask': BAND},
    'bias of -inf': {'bias': np.where(BAND, 0, -np.inf).astype(np.float32)},
    'bias of finfo.min': {'bias': np.where(BAND, 0, np.finfo(np.float32).min)},
    'bias of bfloat16 finfo.min': {'bias': jnp.where(BAND, 0, jnp.finfo(jnp.bfloat16).min)},
    'lengths': {'local_window_size': 1, 'key_value_seq_lengths': np.array([3, 3])},
    'segments': {
        'local_window_size': 1,
        'query_segment_ids': np.ones(T, np.int32),
        'key_value_segment_ids': np.array([1, 1, 1, 0, 0, 0]),
    },
}


@functools.cache
def gradients_without_empty_queries():
    query, key, value = inputs()
    return gradients(query[:, :4], key, value, mask=BAND[:4])


@pytest.mark.parametrize('name', EMPTY)
def test_queries_without_keys_are_zero_and_as_if_absent(name):
    query, key, value = inputs()
    output, residual, weights = dot_product_attention(
        query, key, value, return_residual=True, return_weights=True, **EMPTY[name]
    )
    expected = reference(query, key, value, mask=BAND)
    np.testing.assert_array_equal(output[:, 4:], 0)
    np.testing.assert_array_equal(weights[:, :, 4:], 0)
    np.testing.assert_array_equal(residual[:, 4:], np.float32(MASKED))
    for mine, other in zip((output, residual, weights), expected, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)

    with_empty = gradients(query, key, value, **EMPTY[name])
    without = gradients_without_empty_queries()
    np.testing.assert_array_equal(with_empty[0][:, 4:], 0)
    np.testing.assert_allclose(with_empty[0][:, :4], without[0], atol=1e-6)
    for mine, other in zip(with_empty[1:], without[1:], strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-6)


def test_queries_without_keys_leave_the_bias_parameters_alone():
    query, key, value = inputs()

    @jax.jit
    @functools.partial(jax.grad, argnums=0)
    def gradient(slopes, lengths):
        return dot_product_attention(
            query, key, value, bias=(alibi, slopes), key_value_seq_lengths=lengths
        ).sum()

    np.testing.assert_array_equal(gradient(SLOPES, np.array([0, 0])), 0)
    assert np.all(np.abs(gradient(SLOPES, np.array([0, 4]))) > 0)


def test_no_keys_at_all():
    output = dot_product_attention(*inputs(s=0))
    np.testing.assert_array_equal(output, np.zeros((B, T, N, V)))


def test_a_head_masked_out_whole_is_zero_with_and_without_weights_returned():
    mask = np.ones((B, N, T, S), bool)
    mask[:, 0] = False
    output, weights = dot_product_attention(*inputs(), mask=mask, return_weights=True)
    np.testing.assert_array_equal(output, dot_product_attention(*inputs(), mask=mask))
    np.testing.assert_array_equal(output[:, :, 0], 0)
    np.testing.assert_array_equal(weights[:, 0], 0)
    np.testing.assert_allclose(weights[:, 1:].sum(-1), 1, rtol=1e-6)


def test_finite_contents_of_masked_slots_have_no_influence():
    query, key, value = inputs()
    lengths = np.array([4, 4])
    for x in key, value:
        x[:, 4:] = 1e10
    by_huge = gradients(query, key, value, key_value_seq_lengths=lengths)
    for x in key, value:
        x[:, 4:] = 0
    for mine, other in zip(
        by_huge, gradients(query, key, value, key_value_seq_lengths=lengths), strict=True
    ):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize('implementation', ['xla', 'blockwise'])
def test_a_low_finite_bias_on_every_key_leaves_the_query_its_keys(implementation):
    """Half of the least number takes up the logits, and all keys are alike."""
    query, key, value = inputs()
    bias = np.full((1, 1, 1, S), np.finfo(np.float32).min / 2)
    output = dot_product_attention(query, key, value, bias=bias, implementation=implementation)
    mean = np.repeat(value.mean(1, keepdims=True), N // value.shape[2], axis=2)  # [B, 1, N, V]
    np.testing.assert_allclose(output, np.broadcast_to(mean, output.shape), rtol=1e-5, atol=1e-6)
