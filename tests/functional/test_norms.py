"""Norms: invariances, rows that lose digits, and float64 values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.functional.norms import layer_norm, rms_norm

layer = jax.jit(layer_norm)  # eps is traced: one program a shape
rms = jax.jit(rms_norm)


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def layer_norm64(x, scale=1.0, bias=0.0, eps=1e-5):
    x = np.asarray(x, np.float64)
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * scale + bias


def rms_norm64(x, scale=1.0, eps=1e-6):
    x = np.asarray(x, np.float64)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * scale


def test_values_equal_float64():
    x, scale, bias = 3 * normal(0, 4, 6, 16) + 1, normal(1, 16), normal(2, 16)
    np.testing.assert_allclose(layer(x, scale, bias), layer_norm64(x, scale, bias), atol=2e-6)
    np.testing.assert_allclose(layer(x, scale), layer_norm64(x, scale), atol=2e-6)
    np.testing.assert_allclose(layer(x), layer_norm64(x), atol=2e-6)
    np.testing.assert_allclose(rms(x, scale), rms_norm64(x, scale), atol=2e-6)
    np.testing.assert_allclose(rms(x), rms_norm64(x), atol=2e-6)


def test_default_epsilons():
    x = 1e-3 * normal(3, 2, 16)
    np.testing.assert_allclose(layer(x), layer_norm64(x, eps=1e-5), atol=1e-6)
    np.testing.assert_allclose(rms(x), rms_norm64(x, eps=1e-6), atol=1e-6)


def test_float64_stays_float64():
    with jax.enable_x64(True):
        x = normal(4, 4, 16).astype(np.float64) + 100
        assert layer(x).dtype == rms(x).dtype == jnp.float64
        np.testing.assert_allclose(layer(x), layer_norm64(x), atol=1e-12)
        np.testing.assert_allclose(rms(x), rms_norm64(x), atol=1e-12)


@pytest.mark.parametrize('dtype', [jnp.bfloat16, jnp.float16])
def test_low_precision_is_computed_in_float32_and_rounded_once(dtype):
    x, scale, bias = normal(5, 4, 64).astype(dtype), normal(6, 64), normal(7, 64)
    wide = x.astype(np.float32)
    assert layer(x, scale, bias).dtype == rms(x, scale).dtype == dtype
    np.testing.assert_array_equal(layer(x, scale, bias), layer(wide, scale, bias).astype(dtype))
    np.testing.assert_array_equal(rms(x, scale), rms(wide, scale).astype(dtype))


def test_layer_norm_ignores_shift_and_scale_and_rms_norm_scale():
    x = normal(8, 4, 16)
    np.testing.assert_allclose(layer(5 * x + 3, None, None, eps=0), layer(x, eps=0), atol=1e-5)
    np.testing.assert_allclose(rms(5 * x, None, eps=0), rms(x, eps=0), atol=1e-6)
    assert np.abs(rms(5 * x + 3, None, eps=0) - rms(x, eps=0)).max() > 0.1


@pytest.mark.parametrize(
    'row',
    [
        1000 + np.arange(16) * 1e-3,
        np.tile(np.arange(2000, 2004), 4),
        -1e6 + np.arange(16) / 4,
        12_345_678 + np.arange(16) % 2,
    ],
)
def test_a_large_mean_costs_no_digits(row):
    row = row.astype(np.float32)  # the truth is that of the row as stored
    np.testing.assert_allclose(layer(row), layer_norm64(row), atol=2e-5)


def test_the_row_around_1000_has_its_known_values():
    y = layer((1000 + np.arange(16) * 1e-3).astype(np.float32))
    np.testing.assert_allclose(y[jnp.array([0, -1])], [-1.3415, 1.3442], atol=1e-4)


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize('eps', [1e-5, 1e-12])
def test_constant_rows_become_the_bias(dtype, eps):
    for value in 3.1415926, -1e4:
        x, bias = np.full((2, 512), value, dtype), np.full(512, 0.25, np.float32)
        np.testing.assert_allclose(layer(x, None, bias, eps=eps), 0.25, atol=1e-6)


def test_constant_rows_of_any_size_have_finite_gradients():
    x = np.full((3, 512), np.array([[0.1], [3.1415926], [1e10]]), np.float32)
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(layer_norm(x, eps=1e-12) * jnp.arange(512.0))))(x)
    assert np.isfinite(gradient).all()
    assert np.isfinite(layer(x, eps=1e-12)).all()
    zero = np.zeros((1, 8), np.float32)
    np.testing.assert_array_equal(rms(zero), 0)
    assert np.isfinite(jax.grad(lambda x: rms(x).sum())(zero)).all()


def test_epsilon_is_the_one_given():
    x = normal(9, 1, 256)
    x = ((x - x.mean()) / x.std() * 1e-3).astype(np.float32)  # variance 1e-6
    assert np.std(layer(x, eps=1e-12)) == pytest.approx(1, abs=1e-5)
    assert np.std(layer(x, eps=1e-5)) == pytest.approx(0.3015, abs=1e-4)  # sqrt(1 / 11)
    assert np.std(rms(x, eps=1e-12)) == pytest.approx(1, abs=1e-5)
    assert np.std(rms(x, eps=1e-5)) == pytest.approx(0.3015, abs=1e-4)


def test_gradients_equal_the_closed_form():
    x, scale, cotangent = 2 * normal(10, 4, 16) + 50, normal(11, 16), normal(12, 4, 16)
    bias = normal(13, 16)
    _, pullback = jax.vjp(layer, x, scale, bias)
    dx, d_scale, d_bias = pullback(cotangent)
    wide = x.astype(np.float64)
    y = layer_norm64(wide)
    g = cotangent * scale.astype(np.float64)
    deviation = np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    expected = g - g.mean(-1, keepdims=True) - y * (g * y).mean(-1, keepdims=True)
    np.testing.assert_allclose(dx, expected / deviation, atol=2e-6)
    np.testing.assert_allclose(d_scale, (cotangent * y).sum(0), atol=1e-5)
    np.testing.assert_allclose(d_bias, cotangent.sum(0), atol=2e-6)

    _, pullback = jax.vjp(rms, x, scale)
    dx, d_scale = pullback(cotangent)
    y = rms_norm64(wide)
    size = np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(dx, (g - y * (g * y).mean(-1, keepdims=True)) / size, atol=1e-6)
    np.testing.assert_allclose(d_scale, (cotangent * y).sum(0), atol=1e-5)
