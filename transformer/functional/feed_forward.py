"""The position-wise feed-forward network, plain and gated."""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from transformer.functional.activations import gelu, silu


def feed_forward(
    x: Array,
    w_up: Array,
    w_down: Array,
    b_up: Array | None = None,
    b_down: Array | None = None,
    *,
    activation: Callable[[Array], Array] = gelu,
) -> Array:
    """activation(x W_up + b_up) W_down + b_down (Vaswani et al. 2017, equation 2).

    Args:
        x: [..., D].
        w_up: [D, F].
        w_down: [F, D].
        b_up: [F]; None: 0.
        b_down: [D]; None: 0.
        activation: elementwise.

    Returns:
        [..., D].
    """
    return affine(activation(affine(x, w_up, b_up)), w_down, b_down)


def gated_feed_forward(
    x: Array,
    w_gate: Array,
    w_up: Array,
    w_down: Array,
    b_gate: Array | None = None,
    b_up: Array | None = None,
    b_down: Array | None = None,
    *,
    activation: Callable[[Array], Array] = silu,
) -> Array:
    """(activation(x W_gate + b_gate) * (x W_up + b_up)) W_down + b_down (Shazeer 2020).

    SwiGLU with the default activation, GEGLU with gelu, ReGLU with relu.

    Args:
        x: [..., D].
        w_gate: [D, F].
        w_up: [D, F].
        w_down: [F, D].
        b_gate: [F]; None: 0.
        b_up: [F]; None: 0.
        b_down: [D]; None: 0.
        activation: elementwise.

    Returns:
        [..., D].
    """
    gate = activation(affine(x, w_gate, b_gate))  # [..., F]
    return affine(gate * affine(x, w_up, b_up), w_down, b_down)


def affine(x: Array, w: Array, b: Array | None = None, *, dtype: DTypeLike | None = None) -> Array:
    """x W + b with x [..., D], w [D, F], b [F]; summed up, and returned, in `dtype` if given.

    The leading axes are merged for the product: XLA's CPU backend runs the gradient of W as a
    plain matrix product only if it contracts a single axis (1.5 x the speed of the layer).
    """
    y = jnp.matmul(x.reshape(-1, x.shape[-1]), w, preferred_element_type=dtype)
    y = y.reshape(*x.shape[:-1], w.shape[-1])
    return y if b is None else y + b
