"""ALiBi and relative position buckets: the values of the papers."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.functional.positions import (
    alibi_bias,
    alibi_slopes,
    relative_bias,
    relative_buckets,
)

OPTIONS = ('num_buckets', 'max_distance', 'bidirectional')
linear_bias = jax.jit(alibi_bias)
buckets_of = jax.jit(relative_buckets, static_argnames=OPTIONS)
bias_of = jax.jit(relative_bias, static_argnames=OPTIONS[1:])


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_slopes_are_the_papers_and_blooms():
    np.testing.assert_array_equal(alibi_slopes(8), 2.0 ** -np.arange(1, 9))
    np.testing.assert_allclose(alibi_slopes(16), 2 ** (-np.arange(1, 17) / 2), rtol=1e-7)
    np.testing.assert_array_equal(alibi_slopes(1), [2**-8])
    between = 2.0 ** -np.array([0.5, 1.5, 2.5, 3.5])  # BLOOM's for 12 heads after those of 8
    np.testing.assert_allclose(alibi_slopes(12), [*2.0 ** -np.arange(1, 9), *between], rtol=1e-7)


@pytest.mark.parametrize('heads', [1, 2, 3, 5, 6, 7, 13, 20, 71])
def test_slopes_of_any_number_of_heads_are_distinct_and_positive(heads):
    slopes = np.asarray(alibi_slopes(heads))
    assert slopes.shape == (heads,)
    assert len(set(slopes)) == heads
    assert (slopes > 0).all()
    assert (slopes < 1).all()


def test_alibi_is_the_slope_times_the_distance():
    slopes = np.array([0.5, 0.25], np.float32)
    bias = linear_bias(slopes, np.array([1, 3]), np.array([0, 1, 5]))
    assert bias.dtype == jnp.float32
    distances = np.array([[1, 0, 4], [3, 2, 2]])
    np.testing.assert_array_equal(bias, [-0.5 * distances, -0.25 * distances])


def test_alibi_takes_positions_of_each_row():
    slopes, queries = alibi_slopes(4), np.array([[0, 0, 1], [4, 5, 6]])
    keys = np.array([[0, 0, 1, 2], [3, 4, 5, 6]])
    bias = linear_bias(slopes, queries, keys)
    assert bias.shape == (2, 4, 3, 4)
    for row in 0, 1:
        np.testing.assert_array_equal(bias[row], linear_bias(slopes, queries[row], keys[row]))


def test_alibi_depends_on_the_distance_only():
    slopes, positions = alibi_slopes(3), np.arange(6)
    np.testing.assert_array_equal(
        linear_bias(slopes, positions[2:], positions),
        linear_bias(slopes, positions[2:] + 1000, positions + 1000),
    )


def test_causal_alibi_gives_blooms_attention_weights():
    slopes, positions, logits = alibi_slopes(4), np.arange(7), normal(10, 4, 7, 7)
    causal = np.tri(7, dtype=bool)
    ours = jax.nn.softmax(logits + linear_bias(slopes, positions, positions), where=causal)
    bloom = jax.nn.softmax(logits + slopes[:, None, None] * positions, where=causal)
    np.testing.assert_allclose(ours, bloom, atol=1e-6)


def test_buckets_are_those_of_t5():
    both = [-1000, -128, -20, -8, -7, -1, 0, 1, 7, 8, 20, 127]
    np.testing.assert_array_equal(
        buckets_of(np.array(both)), [15, 15, 10, 8, 7, 1, 0, 17, 23, 24, 26, 31]
    )
    one = [-1000, -128, -20, -16, -15, -1, 0, 5]
    np.testing.assert_array_equal(
        buckets_of(np.array(one), bidirectional=False), [31, 31, 17, 16, 15, 1, 0, 0]
    )


@pytest.mark.parametrize('bidirectional', [True, False])
@pytest.mark.parametrize(('num_buckets', 'max_distance'), [(32, 128), (16, 64), (8, 20), (64, 500)])
def test_buckets_follow_the_formula_at_every_distance(num_buckets, max_distance, bidirectional):
    relative = np.arange(-2 * max_distance, 2 * max_distance + 1)
    buckets = buckets_of(
        relative,
        num_buckets=num_buckets,
        max_distance=max_distance,
        bidirectional=bidirectional,
    )
    assert buckets.dtype == jnp.int32
    count = num_buckets // 2 if bidirectional else num_buckets
    exact = count // 2
    for key_minus_query, bucket in zip(relative.tolist(), buckets.tolist(), strict=True):
        distance = abs(key_minus_query) if bidirectional else max(-key_minus_query, 0)
        expected = distance
        if distance >= exact:
            grown = math.log(distance / exact) / math.log(max_distance / exact)
            expected = min(exact + math.floor(grown * (count - exact) + 1e-9), count - 1)
        expected += count * (bidirectional and key_minus_query > 0)
        assert bucket == expected, key_minus_query


def test_relative_bias_looks_up_the_bucket_of_each_pair():
    table, queries, keys = normal(11, 32, 3), np.array([[4, 5], [0, 9]]), np.array([[0, 5, 40]] * 2)
    bias = bias_of(table, queries, keys, bidirectional=False)
    assert bias.shape == (2, 3, 2, 3)
    buckets = buckets_of(keys[:, None, :] - queries[:, :, None], bidirectional=False)
    np.testing.assert_array_equal(bias, np.moveaxis(table[np.asarray(buckets)], -1, 1))
    np.testing.assert_array_equal(bias[1], bias_of(table, queries[1], keys[1], bidirectional=False))


def test_relative_bias_depends_on_the_distance_only():
    table, positions = normal(12, 8, 2), np.arange(30)
    bias = partial(bias_of, table, max_distance=20)
    np.testing.assert_array_equal(
        bias(positions[5:], positions), bias(positions[5:] + 77, positions + 77)
    )


def test_the_gradient_of_a_bucket_is_the_sum_over_its_pairs():
    table, positions, cotangent = normal(13, 8, 2), np.arange(12), normal(14, 2, 12, 12)
    _, pullback = jax.vjp(
        lambda table: bias_of(table, positions, positions, max_distance=20), table
    )
    buckets = np.asarray(buckets_of(positions - positions[:, None], num_buckets=8, max_distance=20))
    expected = [cotangent[:, buckets == bucket].sum(-1) for bucket in range(8)]
    np.testing.assert_allclose(pullback(cotangent)[0], expected, atol=1e-5)


def test_buckets_without_room_for_a_logarithm_are_refused():
    with pytest.raises(ValueError, match='max_distance must exceed 8'):
        relative_buckets([0], num_buckets=32, max_distance=8)
    with pytest.raises(ValueError, match='num_buckets 2'):
        relative_bias(np.zeros((2, 4)), [0], [0])
