"""The position-wise feed-forward network, plain and gated."""

from collections.abc import Callable

from jax import Array

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
    return _affine(activation(_affine(x, w_up, b_up)), w_down, b_down)


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
    gate = activation(_affine(x, w_gate, b_gate))  # [..., F]
    return _affine(gate * _affine(x, w_up, b_up), w_down, b_down)


def _affine(x: Array, w: Array, b: Array | None) -> Array:
    return x @ w if b is None else x @ w + b
