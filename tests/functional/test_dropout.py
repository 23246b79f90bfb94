"""Dropout: a function of (row's key, coordinates), with the statistics of independent bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from chances import assert_binomial

from transformer.functional.dropout import dropout, dropout_bits

run = jax.jit(dropout)  # the rate is traced: one program a shape
run_bits = jax.jit(dropout_bits)
KEYS = jax.random.split(jax.random.key(7), 4)


def kept(rate, keys, shape):
    return np.asarray(run(np.ones(shape, np.float32), rate, keys)) > 0


@pytest.mark.parametrize('rate', [0.001, 0.1, 0.5, 0.9])
def test_rate_is_kept_overall_and_along_every_axis(rate):
    keep = kept(rate, KEYS, (4, 128, 256))
    assert_binomial(keep.sum(), keep.size, 1 - rate)
    for axis in range(3):
        for part in np.moveaxis(keep, axis, 0):
            assert_binomial(part.sum(), part.size, 1 - rate)


def test_neighbours_along_every_axis_agree_as_often_as_chance():
    keep = kept(0.5, KEYS, (4, 64, 64, 16))
    for axis in range(4):
        for step in 1, 2, 3:
            agree = np.take(keep, range(step, keep.shape[axis]), axis) == np.take(
                keep, range(keep.shape[axis] - step), axis
            )
            assert_binomial(agree.sum(), agree.size, 0.5)


def test_pairs_of_rows_share_no_shifted_mask():
    keep = kept(0.5, KEYS[0], (64, 512)).astype(np.float32) * 2 - 1
    spectrum = np.fft.rfft(keep)
    products = np.fft.irfft(spectrum[:, None] * spectrum[None].conj(), 512)  # every shift
    products[np.arange(64), np.arange(64), 0] = 0
    assert np.abs(products).max() < 6.5 * np.sqrt(512)  # of two million standard normals: 5.2


def test_every_bit_is_fair_and_flips_with_every_bit_of_a_coordinate():
    coordinates = np.arange(1 << 12, dtype=np.uint32)
    bits = np.asarray(run_bits(KEYS[0], coordinates))
    for bit in range(32):
        assert_binomial((bits >> bit & 1).sum(), bits.size, 0.5)
    for flipped in range(32):
        other = np.asarray(run_bits(KEYS[0], coordinates ^ np.uint32(1 << flipped)))
        for bit in range(32):
            assert_binomial(((bits ^ other) >> bit & 1).sum(), bits.size, 0.5)


def test_small_seeds_and_coordinates_do_not_collide():
    words = np.stack(np.meshgrid(np.arange(8), np.arange(8)), -1).astype(np.uint32)
    i, j = np.arange(16)[:, None, None, None], np.arange(16)[:, None, None]
    bits = np.asarray(run_bits(words, i, j))
    assert bits.shape == (16, 16, 8, 8)
    # 2^14 draws from 2^32 values: 0.03 collisions expected.
    assert np.unique(bits).size == bits.size


def test_a_row_of_bits_follows_from_more_than_32_bits():
    # With 32 bits of state 2^18 rows would coincide in 8 pairs, and so would their masks.
    i, j = np.arange(512)[:, None, None], np.arange(512)[:, None]
    bits = np.asarray(run_bits(KEYS[0], i, j, np.arange(2))).astype(np.uint64)
    assert np.unique(bits[..., 0] << np.uint64(32) | bits[..., 1]).size == 512 * 512


def test_a_row_depends_on_its_own_key_only():
    x = np.ones((4, 8, 32), np.float32)
    whole = run(x, 0.5, KEYS)
    np.testing.assert_array_equal(run(x[2:], 0.5, KEYS[2:]), whole[2:])
    np.testing.assert_array_equal(run(x[::-1], 0.5, KEYS[::-1]), whole[::-1])
    assert not np.array_equal(whole[0], whole[1])


def test_a_slice_from_the_origin_is_the_slice_of_the_whole():
    whole = kept(0.5, KEYS, (4, 16, 32))
    np.testing.assert_array_equal(kept(0.5, KEYS, (4, 3, 32)), whole[:, :3])
    np.testing.assert_array_equal(kept(0.5, KEYS, (4, 16, 5)), whole[:, :, :5])


def test_bits_of_a_block_are_the_block_of_the_bits():
    i, j = jnp.arange(12)[:, None], jnp.arange(20)
    whole = run_bits(KEYS[:, None, None], i, j)
    block = run_bits(KEYS[1:3, None, None], i[4:8], j[5:])
    np.testing.assert_array_equal(block, whole[1:3, 4:8, 5:])


def test_one_key_gives_rows_different_masks():
    keep = kept(0.5, KEYS[0], (4, 256))
    assert len({row.tobytes() for row in keep}) == 4


def test_typed_and_raw_keys_agree():
    raw = jax.random.key_data(KEYS)
    np.testing.assert_array_equal(kept(0.5, KEYS, (4, 64)), kept(0.5, raw, (4, 64)))
    np.testing.assert_array_equal(kept(0.5, KEYS[0], (4, 64)), kept(0.5, raw[0], (4, 64)))


def test_keys_of_any_implementation_count_whole():
    words = np.array([[1, 2, 3, 4], [1, 2, 3, 5]], np.uint32)
    keys = jax.random.wrap_key_data(words, impl='rbg')
    first, second = run_bits(keys[:, None], np.arange(64))
    assert not np.any(first == second)
    masks = kept(0.5, keys, (2, 64))
    assert not np.array_equal(*masks)
    np.testing.assert_array_equal(masks, kept(0.5, words, (2, 64)))  # not 4 words by default
    np.testing.assert_array_equal(masks[0], kept(0.5, keys[0], (64,)))


def test_what_is_no_key_is_refused():
    for wrong in np.float32(7), np.int32([1, 2]), np.uint32(7):
        with pytest.raises(ValueError, match='key must be JAX keys, typed or raw uint32'):
            dropout(np.ones(4), 0.5, wrong)


def test_jit_vmap_and_repetition_give_the_same_bits():
    x = jnp.ones((4, 8, 32))
    whole = dropout(x, 0.3, KEYS)
    np.testing.assert_array_equal(run(x, 0.3, KEYS), whole)
    np.testing.assert_array_equal(jax.vmap(run, (0, None, 0))(x, 0.3, KEYS), whole)
    np.testing.assert_array_equal(dropout(x, 0.3, KEYS), whole)


def test_kept_elements_are_scaled_and_so_is_their_gradient():
    x = jnp.linspace(1, 2, 256).reshape(4, 64)
    y, vjp = jax.vjp(lambda x: run(x, 0.25, KEYS), x)
    np.testing.assert_allclose(y, np.where(kept(0.25, KEYS, x.shape), x / 0.75, 0), rtol=1e-6)
    np.testing.assert_allclose(vjp(x)[0], y, rtol=1e-6)  # linear in x, and symmetric


def test_python_zero_is_the_identity_without_a_key():
    x = jnp.arange(6.0)
    assert dropout(x, 0.0, None) is x
    assert dropout(x, 0, None) is x


def test_rate_one_gives_zeros_and_finite_gradients():
    x = jnp.arange(1.0, 65).reshape(4, 16)
    value, gradient = jax.value_and_grad(lambda x: run(x, 1.0, KEYS).sum())(x)
    assert value == 0
    np.testing.assert_array_equal(gradient, 0)


def test_traced_rates_make_one_program_and_have_finite_gradients():
    x = jnp.arange(1.0, 65).reshape(4, 16)
    rates = jnp.array([0.0, 0.3, 1.0])
    outputs = jax.vmap(run, (None, 0, None))(x, rates, KEYS)
    np.testing.assert_array_equal(outputs[0], x)
    np.testing.assert_allclose(outputs[1], run(x, 0.3, KEYS), rtol=1e-6)
    np.testing.assert_array_equal(outputs[2], 0)
    gradients = jax.vmap(jax.grad(lambda rate: run(x, rate, KEYS).sum()))(rates)
    assert np.isfinite(gradients).all()


@pytest.mark.parametrize('dtype', [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize('traced', [False, True])
def test_dtype_is_kept(dtype, traced):
    function = run if traced else dropout
    y = function(jnp.ones((4, 64), dtype), 0.5, KEYS)
    assert y.dtype == dtype
    assert set(np.unique(y.astype(np.float32))) == {0.0, 2.0}


@pytest.mark.parametrize(
    ('rate', 'key', 'message'),
    [
        (1.5, KEYS, 'between 0 and 1, not 1.5'),
        (-0.1, KEYS, 'between 0 and 1, not -0.1'),
        (0.5, None, 'needs a key'),
        (jnp.float32(0.5), None, 'needs a key'),
        (0.5, KEYS[:3], r'one for each row of x; got keys \[3\] for x \[4, 2\]'),
    ],
)
def test_mistakes_are_named(rate, key, message):
    with pytest.raises(ValueError, match=message):
        dropout(jnp.ones((4, 2)), rate, key)
