"""The position-wise feed-forward network, plain and gated."""

from collections.abc import Callable

from jax import Array

from transformer.functional.activations import gelu, silu
from transformer.functional.projections import affine


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
