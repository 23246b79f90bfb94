"""Attention: the properties that any implementation has, whatever its values."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import DISTANCE, MASK, SLOPES, B, H, K, N, S, T, V, alibi, compiled, inputs

from transformer.functional.attention import dot_product_attention


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
