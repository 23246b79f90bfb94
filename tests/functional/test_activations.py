"""Activations: values and slopes in float64, extremes, and what the backward pass stores."""

import functools
import math
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.config import TransformerConfig
from transformer.functional.activations import ACTIVATIONS, gelu, gelu_tanh


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


EXPECTED = {
    'relu': lambda x: max(x, 0.0),
    'gelu': lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    'gelu_tanh': lambda x: (
        0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    'silu': lambda x: x * sigmoid(x),
    'relu_squared': lambda x: max(x, 0.0) ** 2,
}
POINTS = np.array([-6, -3, -1.5, -0.7, -0.1, 0.2, 0.5, 1, 2, 3, 8])
COMPILED = {name: jax.jit(function) for name, function in ACTIVATIONS.items()}
names = pytest.mark.parametrize('name', EXPECTED)


@functools.partial(jax.jit, static_argnums=0)
def value_and_slope(function, x):
    y, pullback = jax.vjp(function, x)
    return y, pullback(jnp.ones_like(y))[0]


def test_the_table_has_the_names_of_the_config():
    names = typing.get_args(typing.get_type_hints(TransformerConfig)['activation'])
    assert set(ACTIVATIONS) == set(names) == set(EXPECTED)
    assert all(function.__name__ == name for name, function in ACTIVATIONS.items())


@names
def test_values_equal_float64(name):
    expected = np.array([EXPECTED[name](x) for x in POINTS])
    y = COMPILED[name](jnp.asarray(POINTS, jnp.float32))
    assert y.dtype == jnp.float32
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=2e-7)
    with jax.enable_x64(True):
        y = COMPILED[name](jnp.asarray(POINTS))
        assert y.dtype == jnp.float64
        np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-14)


@names
def test_first_and_second_derivatives_equal_finite_differences(name):
    activation, function, step = ACTIVATIONS[name], EXPECTED[name], 1e-4
    with jax.enable_x64(True):
        first, forward, second = jax.jit(
            lambda x: (
                jax.vmap(jax.grad(activation))(x),
                jax.jvp(activation, (x,), (jnp.ones_like(x),))[1],
                jax.vmap(jax.grad(jax.grad(activation)))(x),
            )
        )(POINTS)
    np.testing.assert_array_equal(forward, first)
    for i, x in enumerate(POINTS):
        low, middle, high = function(x - step), function(x), function(x + step)
        assert first[i] == pytest.approx((high - low) / (2 * step), abs=1e-7)
        assert second[i] == pytest.approx((high - 2 * middle + low) / step**2, abs=1e-6)


@names
def test_extremes_are_finite_with_finite_slopes(name):
    x = jnp.array([-1e9, -100.0, 0.0, 100.0, 1e9])
    y, slopes = value_and_slope(ACTIVATIONS[name], x)
    np.testing.assert_array_equal(y[:3], 0)
    np.testing.assert_array_equal(slopes[:2], 0)
    rising = name != 'relu_squared'
    np.testing.assert_allclose(y[3:], x[3:] if rising else x[3:] ** 2, rtol=1e-6)
    np.testing.assert_allclose(slopes[3:], 1 if rising else 2 * x[3:], rtol=1e-6)


@names
def test_bfloat16_is_rounded_once(name):
    x = jnp.linspace(-5, 5, 101).astype(jnp.bfloat16)
    narrow = value_and_slope(ACTIVATIONS[name], x)
    wide = value_and_slope(ACTIVATIONS[name], x.astype(jnp.float32))
    for rounded, exact in zip(narrow, wide, strict=True):
        assert rounded.dtype == jnp.bfloat16
        np.testing.assert_array_equal(rounded, exact.astype(jnp.bfloat16))


def test_the_two_forms_of_gelu_are_told_apart():
    assert gelu(3.0) == pytest.approx(2.9959502, abs=3e-7)  # BERT
    assert gelu_tanh(3.0) == pytest.approx(2.9963627, abs=3e-7)  # GPT-2
    assert gelu(1.0) == pytest.approx(0.8413447, abs=1e-7)
    assert gelu_tanh(1.0) == pytest.approx(0.8411920, abs=1e-7)


@pytest.mark.parametrize('name', sorted(set(EXPECTED) - {'relu'}))  # it stores where x > 0
def test_the_backward_pass_stores_one_array(name):
    x = jnp.linspace(-3, 3, 1000)
    _, pullback = jax.vjp(ACTIVATIONS[name], x)
    assert sum(stored.nbytes for stored in jax.tree.leaves(pullback)) <= x.nbytes
