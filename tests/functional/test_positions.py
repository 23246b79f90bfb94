"""Position encodings: what shifts leave alone, and the values of the papers."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.functional.frequencies import rope_frequencies
from transformer.functional.positions import (
    alibi_bias,
    alibi_slopes,
    apply_rope,
    relative_bias,
    relative_buckets,
    sinusoidal,
)

LAYOUTS = ['half', 'interleaved']
SCALED = {
    'none': {},
    'linear': {'factor': 4.0},
    'ntk': {'factor': 4.0},
    'yarn': {'factor': 4.0, 'original_length': 512},
    'llama3': {'factor': 8.0, 'original_length': 512},
}
OPTIONS = ('num_buckets', 'max_distance', 'bidirectional')
rotate = jax.jit(apply_rope, static_argnames=('layout', 'attention_factor'))
linear_bias = jax.jit(alibi_bias)
buckets_of = jax.jit(relative_buckets, static_argnames=OPTIONS)
bias_of = jax.jit(relative_bias, static_argnames=OPTIONS[1:])
encode = jax.jit(sinusoidal, static_argnames=('dim', 'layout'))


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def rotated(x, positions, frequencies, layout):
    """Rotation as a product of complex numbers, in float64."""
    turn = np.exp(1j * np.asarray(positions, np.float64)[..., None, None] * frequencies)
    half = len(frequencies)
    parts = [slice(half), slice(half, None)]
    if layout == 'interleaved':
        parts = [slice(0, None, 2), slice(1, None, 2)]
    z = (x[..., parts[0]] + 1j * x[..., parts[1]].astype(np.float64)) * turn
    y = np.zeros(x.shape)
    y[..., parts[0]], y[..., parts[1]] = z.real, z.imag
    return y


# Sinusoidal.


@pytest.mark.parametrize('layout', LAYOUTS)
def test_sinusoidal_is_the_papers_formula(layout):
    positions = np.array([[0, 1, 2, 511], [7, 300, 4096, 5000]])
    table = encode(positions, 6, layout=layout)
    assert table.shape == (2, 4, 6)
    assert table.dtype == jnp.float32
    angles = positions[..., None] / 10000 ** (np.array([0, 2, 4]) / 6)
    sines, cosines = np.sin(angles), np.cos(angles)
    expected = np.concatenate([sines, cosines], -1)
    if layout == 'interleaved':
        expected = expected[..., [0, 3, 1, 4, 2, 5]]
    np.testing.assert_allclose(table, expected, atol=5e-4)  # an angle of 5000 in float32


def test_sinusoidal_starts_with_zeros_and_ones():
    np.testing.assert_array_equal(encode(np.array([0]), 4)[0], [0, 1, 0, 1])
    np.testing.assert_array_equal(encode(np.array([0]), 4, layout='half')[0], [0, 0, 1, 1])


def test_sinusoidal_products_depend_on_the_distance_only():
    table = np.asarray(encode(jnp.arange(40), 8))
    products = table @ table.T
    for distance in range(40):
        diagonal = np.diagonal(products, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], atol=2e-5)


def test_sinusoidal_reduces_large_angles_exactly():
    positions = np.array([65_537, 1_000_003])
    angles = positions.astype(np.float32)[:, None] * (10000 ** -np.array([0, 0.5])).astype('f')
    expected = np.sin(angles.astype(np.float64))
    np.testing.assert_allclose(encode(positions, 4)[:, ::2], expected, atol=1e-6)


def test_sinusoidal_keeps_float64():
    with jax.enable_x64(True):
        table = encode(np.array([1857.0]), 32)
        assert table.dtype == jnp.float64
        np.testing.assert_allclose(table[0, 3], math.cos(1857 * 10000 ** (-2 / 32)), atol=1e-12)


def test_sinusoidal_refuses_odd_widths_and_unknown_layouts():
    with pytest.raises(ValueError, match='dim must be even and positive, not 5'):
        sinusoidal([0], 5)
    with pytest.raises(ValueError, match="'half' or 'interleaved', not 'halves'"):
        sinusoidal([0], 4, layout='halves')


# Rotation.


@pytest.mark.parametrize('layout', LAYOUTS)
def test_rope_is_a_complex_rotation(layout):
    x = normal(1, 2, 5, 3, 8)
    positions = np.array([[0, 1, 2, 3, 4], [9, 0, 100, 257, 1857]])
    frequencies = rope_frequencies(8)[0]
    expected = rotated(x, positions, frequencies, layout)
    np.testing.assert_allclose(
        rotate(x, positions, frequencies, layout=layout), expected, atol=5e-4
    )
    with jax.enable_x64(True):
        y = rotate(x.astype(np.float64), positions, frequencies, layout=layout)
        assert y.dtype == jnp.float64
        np.testing.assert_allclose(y, expected, atol=1e-12)


@pytest.mark.parametrize('layout', LAYOUTS)
@pytest.mark.parametrize('scaling', SCALED)
def test_rope_products_depend_on_the_distance_only(scaling, layout):
    frequencies, attention_factor = rope_frequencies(16, scaling=scaling, **SCALED[scaling])
    query, key = normal(2, 1, 4, 2, 16), normal(3, 1, 6, 2, 16)
    turn = partial(rotate, frequencies=frequencies, layout=layout)
    turn = partial(turn, attention_factor=attention_factor)

    def products(shift):
        q, k = turn(query, shift + 2 + jnp.arange(4)), turn(key, shift + jnp.arange(6))
        return np.einsum('btnh,bsnh->bnts', q, k)

    np.testing.assert_allclose(products(0), products(100), atol=2e-4)
    assert np.abs(products(0) - np.einsum('btnh,bsnh->bnts', query, key)).max() > 0.1


@pytest.mark.parametrize('layout', LAYOUTS)
def test_rope_leaves_position_zero_and_the_norms_alone(layout):
    x, frequencies = normal(4, 1, 3, 2, 8), rope_frequencies(8)[0]
    y = rotate(x, np.array([0, 5, 70]), frequencies, layout=layout)
    np.testing.assert_array_equal(y[:, 0], x[:, 0])
    np.testing.assert_allclose(np.linalg.norm(y, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-6)
    scaled = rotate(x, np.array([0, 5, 70]), frequencies, layout=layout, attention_factor=1.25)
    np.testing.assert_allclose(scaled, 1.25 * y, rtol=1e-6)


def test_rope_layouts_differ_by_a_permutation_of_features():
    x, frequencies = normal(5, 1, 4, 2, 8), rope_frequencies(8)[0]
    order = np.arange(8).reshape(4, 2).T.ravel()  # (D/2, 2) -> (2, D/2)
    interleaved = rotate(x, np.arange(4), frequencies, layout='interleaved')
    half = rotate(x[..., order], np.arange(4), frequencies, layout='half')
    np.testing.assert_array_equal(interleaved[..., order], half)
    assert np.abs(rotate(x, np.arange(4), frequencies) - interleaved)[:, 1:].max() > 0.1


@pytest.mark.parametrize('layout', LAYOUTS)
def test_partial_rope_passes_the_other_features(layout):
    x, frequencies = normal(6, 2, 4, 2, 12), rope_frequencies(8)[0]
    y = rotate(x, np.arange(4), frequencies, layout=layout)
    np.testing.assert_array_equal(y[..., 8:], x[..., 8:])
    alone = rotate(x[..., :8], np.arange(4), frequencies, layout=layout)
    np.testing.assert_array_equal(y[..., :8], alone)


def test_rope_of_a_row_depends_on_its_own_positions():
    x, frequencies = normal(7, 2, 5, 2, 8), rope_frequencies(8)[0]
    positions = np.array([[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]])  # the first is padded on the left
    together = rotate(x, positions, frequencies)
    for row in 0, 1:
        alone = rotate(x[row : row + 1], positions[row], frequencies)
        np.testing.assert_array_equal(together[row], alone[0])


def test_bfloat16_rope_has_float32_phases():
    frequencies = rope_frequencies(32)[0]
    x = np.zeros((1, 3, 1, 32), np.float32)
    x[..., :16] = 1  # so that the features are the cosines and sines
    positions = np.array([256, 257, 1857])
    y = rotate(x.astype(jnp.bfloat16), positions, frequencies)
    assert y.dtype == jnp.bfloat16
    assert np.abs(y.astype(np.float32)[0, 0] - y.astype(np.float32)[0, 1]).max() > 0.5
    np.testing.assert_allclose(
        y.astype(np.float32), rotated(x, positions, frequencies, 'half'), atol=2**-8
    )
    assert rotate(x, positions, frequencies)[0, 2, 0, 1] == pytest.approx(0.306693, abs=1e-4)


@pytest.mark.parametrize('layout', LAYOUTS)
def test_the_gradient_of_a_rotation_is_the_opposite_rotation(layout):
    x, cotangent = normal(8, 1, 4, 2, 12), normal(9, 1, 4, 2, 12)
    turn = partial(rotate, frequencies=rope_frequencies(8)[0], layout=layout)
    _, pullback = jax.vjp(lambda x: turn(x, np.arange(4)), x)
    np.testing.assert_allclose(pullback(cotangent)[0], turn(cotangent, -np.arange(4)), atol=1e-6)


@pytest.mark.parametrize('layout', LAYOUTS)
def test_cosines_are_not_computed_again_for_every_head(layout):
    frequencies = rope_frequencies(16)[0]
    turn = partial(apply_rope, frequencies=frequencies, layout=layout)
    compiled = jax.jit(turn).lower(jnp.zeros((2, 8, 5, 16)), jnp.zeros((2, 8), int)).compile()
    fused = [text for text in compiled.as_text().split('\n\n') if ' cosine(' in text]
    assert fused
    assert not any('[2,8,5,' in text for text in fused)


def test_rope_refuses_more_frequencies_than_features_and_unknown_layouts():
    x = jnp.zeros((1, 2, 1, 4))
    with pytest.raises(ValueError, match='4 frequencies do not fit a head of 4'):
        apply_rope(x, jnp.arange(2), np.ones(4))
    with pytest.raises(ValueError, match="not 'neox'"):
        apply_rope(x, jnp.arange(2), np.ones(2), layout='neox')


# ALiBi.


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


# T5.


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
