"""Products of activations and weights: to another width, to heads and back, to a vocabulary."""

import functools

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_derivatives import SymbolicZero
from jax.typing import ArrayLike, DTypeLike

from transformer.functional.cpu import on_cpu

FEW_ROWS = 32  # of activations, at most: a CPU then takes the table as the left factor


def affine(
    x: ArrayLike, w: ArrayLike, b: ArrayLike | None = None, *, dtype: DTypeLike | None = None
) -> Array:
    """x W + b with x [..., D], w [D, F], b [F]; summed up, and returned, in `dtype` if given."""
    product = _cpu_product if on_cpu() else _plain_product
    y = product(jnp.asarray(x), jnp.asarray(w), dtype)
    return y if b is None else y + b


def unembed(x: ArrayLike, table: ArrayLike, *, dtype: DTypeLike | None = None) -> Array:
    """x E^T with x [..., D] and E [V, D], the rows of which embed the tokens (Press and Wolf 2017).

    Summed up, and returned, in `dtype` if given. The table is read as it lies: for 2 to 32 rows of
    activations, as in decoding, it is the left factor on a CPU (0.5 to 0.65 x the time on one core;
    the barrier keeps XLA from turning the product round again).
    """
    x, table = jnp.asarray(x), jnp.asarray(table)
    rows = x.reshape(-1, x.shape[-1])  # [N, D]
    if not on_cpu() or not 1 < len(rows) <= FEW_ROWS:
        return affine(x, table.T, dtype=dtype)
    products = lax.optimization_barrier(_plain_product(table, rows.T, dtype)).T
    return products.reshape(*x.shape[:-1], len(table))


def split_heads(x: ArrayLike, w: ArrayLike, b: ArrayLike | None = None) -> Array:
    """Projects [..., D] by `w` [D, N, H], plus `b` [N, H], to heads [..., N, H]."""
    x, w = jnp.asarray(x), jnp.asarray(w)
    if w.ndim != 3 or x.shape[-1] != w.shape[0]:
        raise ValueError(f'x {list(x.shape)} and w {list(w.shape)} are not [..., D] and [D, N, H].')
    D, N, H = w.shape
    heads = affine(x, w.reshape(D, N * H)).reshape(*x.shape[:-1], N, H)
    return heads if b is None else heads + b


def merge_heads(x: ArrayLike, w: ArrayLike, b: ArrayLike | None = None) -> Array:
    """Projects heads [..., N, H] by `w` [N, H, D], plus `b` [D], to [..., D]."""
    x, w = jnp.asarray(x), jnp.asarray(w)
    if w.ndim != 3 or x.shape[-2:] != w.shape[:2]:
        raise ValueError(
            f'x {list(x.shape)} and w {list(w.shape)} are not [..., N, H] and [N, H, D].'
        )
    N, H, D = w.shape
    return affine(x.reshape(*x.shape[:-2], N * H), w.reshape(N * H, D), b)


def _plain_product(x, w, dtype):
    return jnp.matmul(x, w, preferred_element_type=dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _cpu_product(x, w, dtype):
    return _plain_product(x, w, dtype)


@functools.partial(_cpu_product.defjvp, symbolic_zeros=True)
def _cpu_product_jvp(dtype, primals, tangents):
    (x, w), (x_dot, w_dot) = primals, tangents
    terms = []
    if not isinstance(x_dot, SymbolicZero):
        terms.append(_plain_product(x_dot, w, dtype))
    if not isinstance(w_dot, SymbolicZero):
        terms.append(_product_with_tangent(x, w_dot, dtype))
    return _plain_product(x, w, dtype), functools.reduce(jnp.add, terms)


@functools.partial(jax.checkpoint, prevent_cse=False, static_argnums=2)
def _product_with_tangent(x, w_dot, dtype):
    """x w_dot, written such that its transpose, the gradient of w, is fast on a CPU.

    That gradient contracts the rows of x and of y's gradient. XLA's fast products contract the last
    axis of their first factor, so the smaller of the two is transposed first; the barriers keep XLA
    from taking the transposition back into the product (0.4 to 0.9 x the time of the gradient).
    The checkpoint has x kept for the backward pass, which many products share, not its transpose.
    """
    keep = lax.optimization_barrier
    rows = x.reshape(-1, x.shape[-1])  # [N, D]: a single axis to contract
    if w_dot.shape[0] > w_dot.shape[1]:
        y_dot = keep(_plain_product(keep(w_dot.T), rows.T, dtype)).T
    else:
        y_dot = _plain_product(keep(rows.T).T, keep(w_dot), dtype)
    return y_dot.reshape(*x.shape[:-1], w_dot.shape[1])
