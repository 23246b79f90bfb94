"""Normalisation over the last axis, with statistics in float32 or better."""

import jax
import jax.numpy as jnp
from jax import Array


def layer_norm(
    x: Array, scale: Array | None = None, bias: Array | None = None, *, eps: float = 1e-5
) -> Array:
    """Layer normalisation (Ba et al. 2016): (x - mean) / sqrt(variance + eps) * scale + bias.

    The variance is the mean square of centred values, so that a mean far larger than the
    deviation loses no digits and the variance is never negative.

    Args:
        x: [..., D].
        scale: [D]; None: 1.
        bias: [D]; None: 0.
        eps: added to the variance.

    Returns:
        [..., D] in the dtype of x; computed in float32, or float64 for float64.
    """
    y = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    y = y - jnp.mean(y, axis=-1, keepdims=True)
    # The mean was rounded in units of x; what remains of it is rounded in units of the deviation.
    # It is zero but for rounding, and so is its derivative.
    y = y - jax.lax.stop_gradient(jnp.mean(y, axis=-1, keepdims=True))
    return _normalise(y, scale, bias, eps).astype(x.dtype)


def rms_norm(x: Array, scale: Array | None = None, *, eps: float = 1e-6) -> Array:
    """Root mean square normalisation (Zhang and Sennrich 2019): x / sqrt(mean x^2 + eps) * scale.

    Args:
        x: [..., D].
        scale: [D]; None: 1.
        eps: added to the mean square.

    Returns:
        [..., D] in the dtype of x; computed in float32, or float64 for float64.
    """
    y = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return _normalise(y, scale, None, eps).astype(x.dtype)


def _normalise(y: Array, scale: Array | None, bias: Array | None, eps: float) -> Array:
    y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + eps)
    if scale is not None:
        y = y * scale
    return y if bias is None else y + bias
