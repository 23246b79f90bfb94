"""What XLA's CPU backend wants to have written otherwise than other backends."""

import jax
from jax import Array, lax


def on_cpu() -> bool:
    """Whether programs are for a CPU."""
    return jax.default_backend() == 'cpu'


def as_left_factor(x: Array) -> Array:
    """[..., T, H] as [..., H, T], to multiply [..., T, S] from the left.

    On a CPU a copy: XLA's fast products contract the last axis of their first factor as it lies.
    The barrier keeps XLA from taking the transposition back into the product.
    """
    return lax.optimization_barrier(x.mT) if on_cpu() else x.mT
