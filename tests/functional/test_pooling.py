"""Pooling: the mean in float64, and positions that do not count, whatever they hold."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.functional.pooling import mean_pool

pool = jax.jit(mean_pool)
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 1, 0, 1, 1], [0, 0, 0, 0, 0]], bool)


def features(seed=0):
    return np.random.default_rng(seed).standard_normal((4, 5, 3)).astype(np.float32)


def test_the_mean_is_over_the_positions_that_count():
    x = features()
    expected = [
        row[mask].astype(np.float64).mean(0) for row, mask in zip(x[:3], MASK, strict=False)
    ]
    pooled = pool(x, MASK)
    assert pooled.dtype == jnp.float32
    np.testing.assert_allclose(pooled[:3], expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(pooled[3], 0)


def test_without_a_mask_all_positions_count_and_leading_axes_are_free():
    x = features()
    expected = x.astype(np.float64).mean(1)
    np.testing.assert_allclose(pool(x), expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(pool(x, np.ones((4, 5), bool)), pool(x))
    np.testing.assert_array_equal(pool(x[0], MASK[2]), pool(x[:1], MASK[2:3])[0])
    stacked = pool(x.reshape(2, 2, 5, 3), MASK.reshape(2, 2, 5))
    np.testing.assert_array_equal(stacked.reshape(4, 3), pool(x, MASK))


@pytest.mark.parametrize('bad', [np.nan, np.inf])
def test_what_does_not_count_may_hold_anything(bad):
    value_and_gradient = jax.jit(jax.value_and_grad(lambda x: jnp.sum(mean_pool(x, MASK) ** 2)))
    x = features()
    expected = value_and_gradient(x)
    x[~MASK] = bad
    value, gradient = value_and_gradient(x)
    np.testing.assert_array_equal(value, expected[0])
    np.testing.assert_array_equal(gradient, expected[1])
    np.testing.assert_array_equal(gradient[~MASK], 0)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize('masked', [False, True])
def test_low_precision_is_summed_in_float32(masked):
    # In bfloat16 the sum of ones stops at 256, and in float16 that of 1000s overflows.
    arguments = [np.ones((1, 1024), bool)] if masked else []
    pooled = pool(jnp.ones((1, 1024, 2), jnp.bfloat16), *arguments)
    assert pooled.dtype == jnp.bfloat16
    np.testing.assert_array_equal(pooled.astype(np.float32), 1)
    pooled = pool(jnp.full((1, 1024, 2), 1000, jnp.float16), *arguments)
    assert pooled.dtype == jnp.float16
    np.testing.assert_array_equal(pooled, 1000)


def test_float64_stays_float64():
    x = 1 + 1e-12 * np.arange(6.0).reshape(3, 2)
    with jax.enable_x64(True):
        pooled = pool(jnp.asarray(x), np.array([True, True, False]))
        assert pooled.dtype == jnp.float64
        np.testing.assert_allclose(pooled, x[:2].mean(0), rtol=1e-15)


@pytest.mark.parametrize(
    'mask', [MASK.astype(np.int32), MASK.astype(np.float32), MASK[:, :4], MASK[0], MASK[..., None]]
)
def test_what_is_not_a_boolean_for_each_position_is_refused(mask):
    with pytest.raises(ValueError, match=r'mask must be boolean \(4, 5\), True where'):
        mean_pool(features(), mask)
