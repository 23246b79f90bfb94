"""Attention: the properties that define it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import (
    BAND,
    BIAS,
    DISTANCE,
    MASK,
    SINKS,
    SLOPES,
    B,
    H,
    K,
    N,
    S,
    T,
    V,
    alibi,
    buckets,
    compiled,
    gradients,
    inputs,
    reference,
)

from transformer.functional.attention import dot_product_attention
from transformer.functional.attention_arguments import MASKED


def jacobian(query, key, value, **arguments):
    """|d output[t]|/d(key[s], value[s]) of the first row, summed over the rest: [T, S]."""

    def output(key, value):
        return dot_product_attention(query[:1], key[None], value[None], **arguments)[0].sum((1, 2))

    by_key, by_value = jax.jacrev(output, (0, 1))(key[0], value[0])
    return np.abs(by_key).sum((2, 3)) + np.abs(by_value).sum((2, 3))


@pytest.mark.parametrize(
    'arguments',
    [
        {'is_causal': True},
        {'is_causal': True, 'query_segment_ids': np.array([1, 1, 1, 1, 1, 0])},
        {'is_causal': True, 'key_value_seq_lengths': np.array([5])},
        {'is_causal': True, 'mask': np.ones((1, 1, 1, S), bool)},
        {'is_causal': True, 'bias': (alibi, SLOPES)},
        {'is_causal': True, 'query_positions': np.arange(T) + 3},
        {'local_window_size': (2, 0)},
    ],
    ids=lambda arguments: '+'.join(arguments),
)
def test_no_gradient_from_the_future(arguments):
    effect = jacobian(*inputs(), **arguments)
    assert np.all(effect[np.triu_indices(T, 1)] == 0)
    assert np.all(effect[:3, 0] > 0)
    assert np.all(np.diag(effect)[:5] > 0)


def test_window_is_the_band_it_says():
    effect = jacobian(*inputs(), local_window_size=(2, 1))
    np.testing.assert_array_equal(effect > 0, (DISTANCE <= 2) & (DISTANCE >= -1))


def test_permutation_equivariance_without_positions():
    query, key, value = inputs()
    order = np.random.default_rng(3).permutation(T)
    output = dot_product_attention(query, key, value)
    shuffled_queries = dot_product_attention(query[:, order], key, value)
    np.testing.assert_allclose(shuffled_queries, output[:, order], atol=1e-6)
    np.testing.assert_allclose(
        dot_product_attention(query, key[:, order], value[:, order]), output, atol=1e-6
    )


def test_order_of_positions_not_of_slots_decides_causality_window_and_bias():
    query, key, value = inputs()
    order = np.random.default_rng(4).permutation(T)
    arguments = {'is_causal': True, 'local_window_size': (3, 0), 'bias': (alibi, SLOPES)}
    shuffled = dot_product_attention(
        query[:, order], key[:, order], value[:, order], query_positions=order, **arguments
    )
    np.testing.assert_allclose(
        shuffled, dot_product_attention(query, key, value, **arguments)[:, order], atol=1e-6
    )


def test_packed_equals_separate():
    arguments = {'is_causal': True, 'bias': (alibi, SLOPES)}
    segment_ids, positions = np.array([1, 1, 2, 2, 2, 2]), np.array([0, 1, 0, 1, 2, 3])
    packed = {'query_segment_ids': segment_ids, 'query_positions': positions, **arguments}

    def results(cut, **arguments):
        def loss(*qkv):
            output = dot_product_attention(*qkv, **arguments)
            return (output**2).sum(), output

        operands = [x[:, cut] for x in inputs()]
        gradient, output = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(*operands)
        return output, *gradient

    first, second = results(slice(0, 2), **arguments), results(slice(2, 6), **arguments)
    for mine, *parts in zip(results(slice(0, 6), **packed), first, second, strict=True):
        np.testing.assert_allclose(mine, np.concatenate(parts, 1), atol=1e-5)


def test_padded_batch_equals_rows_alone():
    query, key, value = inputs()
    lengths = np.array([3, 5])
    by_lengths = dot_product_attention(
        query, key, value, query_seq_lengths=lengths, key_value_seq_lengths=lengths, is_causal=True
    )
    ids = (np.arange(T) < lengths[:, None]).astype(np.int32)
    by_segments = dot_product_attention(query, key, value, query_segment_ids=ids, is_causal=True)
    np.testing.assert_array_equal(by_lengths, by_segments)
    for b, length in enumerate(lengths):
        row = [x[b, :length] for x in (query, key, value)]
        np.testing.assert_allclose(
            by_lengths[b, :length], compiled(*row, is_causal=True), atol=1e-6
        )
        np.testing.assert_array_equal(by_lengths[b, length:], 0)


def test_lengths_cut_the_segments_of_a_packed_row():
    ids, lengths = np.array([1, 1, 2, 2, 2, 2]), np.array([4, 6])
    cut = np.where(np.arange(T) < lengths[:, None], ids, 0)
    arguments = {'query_seq_lengths': lengths, 'key_value_seq_lengths': lengths}
    np.testing.assert_array_equal(
        dot_product_attention(*inputs(), query_segment_ids=ids, **arguments),
        dot_product_attention(*inputs(), query_segment_ids=cut),
    )


@pytest.mark.parametrize('chunk', [1, 3])
def test_a_cache_gives_what_the_whole_sequence_gives(chunk):
    query, key, value = inputs()
    arguments = {'is_causal': True, 'local_window_size': (3, 0), 'bias': (alibi, SLOPES)}
    whole = dot_product_attention(query, key, value, **arguments)
    step = jax.jit(
        lambda query, key, value, query_positions, key_ids: dot_product_attention(
            query,
            key,
            value,
            query_segment_ids=jnp.ones((B, chunk), jnp.int32),
            key_value_segment_ids=key_ids,
            query_positions=query_positions,
            key_value_positions=jnp.arange(8) * key_ids,
            **arguments,
        )
    )
    cache = [np.full((B, 8, *x.shape[2:]), 1e4, np.float32) for x in (key, value)]
    for start in range(0, T, chunk):
        now = slice(start, start + chunk)
        cache[0][:, now], cache[1][:, now] = key[:, now], value[:, now]
        key_ids = np.broadcast_to(np.arange(8) < start + chunk, (B, 8)).astype(np.int32)
        positions = np.broadcast_to(np.arange(T)[now], (B, chunk))
        output = step(query[:, now], *cache, positions, key_ids)
        np.testing.assert_allclose(output, whole[:, now], atol=1e-6)


def test_grouped_heads_equal_repeated_keys():
    query, key, value = inputs()

    @functools.partial(jax.jit, static_argnums=0)
    def results(repeats):
        def loss(*qkv):
            query, key, value = qkv
            keys, values = jnp.repeat(key, repeats, 2), jnp.repeat(value, repeats, 2)
            output = dot_product_attention(query, keys, values, mask=MASK)
            return (output**2).sum(), output

        return jax.tree.leaves(jax.grad(loss, (0, 1, 2), has_aux=True)(query, key, value))

    grouped, repeated = results(1), results(N // K)
    for mine, other in zip(grouped, repeated, strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-5)


def test_adding_a_constant_to_a_row_of_logits_changes_nothing():
    shift = np.random.default_rng(3).normal(size=(B, N, T, 1)).astype(np.float32) * 10
    np.testing.assert_allclose(
        dot_product_attention(*inputs(), bias=shift), dot_product_attention(*inputs()), atol=1e-5
    )


def test_huge_logits_do_not_overflow():
    query, key, value = inputs()
    output = dot_product_attention(query * 1e10, key * 1e10, value)
    best = np.einsum('btkgh,bskh->btkgs', query.reshape(B, T, K, N // K, H), key).argmax(-1)
    expected = np.take_along_axis(value[:, None, :, :, :], best.transpose(0, 1, 3, 2)[..., None], 2)
    np.testing.assert_allclose(
        output.reshape(B, T, K, N // K, V), expected.transpose(0, 1, 3, 2, 4), atol=1e-6
    )


# Queries that may attend to nothing.

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


# Sinks, softcap, structured bias.


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
