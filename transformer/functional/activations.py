"""Elementwise non-linearities, and the table of their names.

Each takes an array of any shape and returns one of the same shape and dtype.
"""

import jax
import jax.numpy as jnp
from jax import Array


def relu(x: Array) -> Array:
    """max(x, 0)."""
    return jax.nn.relu(x)


def gelu(x: Array) -> Array:
    """x Phi(x), Phi the normal distribution function (Hendrycks and Gimpel 2016; BERT)."""
    return jax.nn.gelu(x, approximate=False)


def gelu_tanh(x: Array) -> Array:
    """GELU with its tanh approximation, x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (GPT-2)."""
    return jax.nn.gelu(x, approximate=True)


def silu(x: Array) -> Array:
    """x sigmoid(x), also called swish (Elfwing et al. 2017; LLaMA)."""
    return jax.nn.silu(x)


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
