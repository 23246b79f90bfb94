"""Elementwise non-linearities, and the table of their names.

Each takes an array of any shape and returns one of its shape and dtype, computed in float32 or
better. The smooth ones have their derivatives in closed form: the backward pass then needs one
stored array, where automatic differentiation stores three or four intermediate ones.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array


def _smooth(slope: Callable[[Array], Array]) -> Callable:
    """Decorates a function whose derivative is `slope`; both are given float32 or float64."""

    def decorate(function):
        @jax.custom_jvp
        @functools.wraps(function)
        def activation(x):
            return function(_wide(x)).astype(jnp.result_type(x))

        activation.defjvps(lambda tangent, _, x: tangent * slope(_wide(x)).astype(tangent.dtype))
        return activation

    return decorate


def _gelu_slope(x):
    return _normal_cdf(x) + x * jnp.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _gelu_tanh_slope(x):
    half = jax.nn.sigmoid(2 * _tanh_argument(x))
    argument_slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
    return half + 2 * x * half * (1 - half) * argument_slope


def _silu_slope(x):
    sigmoid = jax.nn.sigmoid(x)
    return sigmoid * (1 + x * (1 - sigmoid))


def relu(x: Array) -> Array:
    """max(x, 0)."""
    return jax.nn.relu(x)


@_smooth(_gelu_slope)
def gelu(x: Array) -> Array:
    """x Phi(x), Phi the normal distribution function (Hendrycks and Gimpel 2016; BERT)."""
    return x * _normal_cdf(x)


@_smooth(_gelu_tanh_slope)
def gelu_tanh(x: Array) -> Array:
    """GELU with its tanh approximation, x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (GPT-2)."""
    return x * jax.nn.sigmoid(2 * _tanh_argument(x))  # sigmoid(2u) = (1 + tanh u) / 2


@_smooth(_silu_slope)
def silu(x: Array) -> Array:
    """x sigmoid(x), also called swish (Elfwing et al. 2017; LLaMA)."""
    return x * jax.nn.sigmoid(x)


@_smooth(lambda x: 2 * jax.nn.relu(x))
def relu_squared(x: Array) -> Array:
    """max(x, 0)^2 (So et al. 2021, Primer)."""
    return jnp.square(jax.nn.relu(x))


ACTIVATIONS = {
    'relu': relu,
    'gelu': gelu,
    'gelu_tanh': gelu_tanh,
    'silu': silu,
    'relu_squared': relu_squared,
}


def _wide(x: Array) -> Array:
    return jnp.asarray(x, jnp.promote_types(jnp.result_type(x), jnp.float32))


def _normal_cdf(x: Array) -> Array:
    return 0.5 * (1 + jax.lax.erf(x * math.sqrt(0.5)))


def _tanh_argument(x: Array) -> Array:
    return math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
