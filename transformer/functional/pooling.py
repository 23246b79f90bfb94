"""One vector for a sequence."""

import jax.numpy as jnp
from jax import Array


def mean_pool(x: Array, mask: Array | None = None) -> Array:
    """The mean of x over the positions that count (Reimers and Gurevych 2019, section 3).

    Args:
        x: [..., T, D].
        mask: [..., T] boolean, True where a position counts; None: all do.

    Returns:
        [..., D] in the dtype of x, summed in float32 or wider; zeros where no position counts.

    Raises:
        ValueError: a mask that is not boolean or of another shape.
    """
    dtype = jnp.promote_types(x.dtype, jnp.float32)
    if mask is None:
        return x.mean(axis=-2, dtype=dtype).astype(x.dtype)
    if mask.dtype != bool or mask.shape != x.shape[:-1]:
        raise ValueError(
            f'mask must be boolean {x.shape[:-1]}, True where a position counts, not '
            f'{mask.dtype} {mask.shape}.'
        )
    # A masked position may hold anything, NaN included.
    total = jnp.where(mask[..., None], x, 0).sum(axis=-2, dtype=dtype)  # [..., D]
    count = jnp.maximum(mask.sum(axis=-1, dtype=dtype), 1)[..., None]
    return (total / count).astype(x.dtype)
