"""Products of activations and weights: to another width, to heads, and back from heads."""

import functools

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_derivatives import SymbolicZero
from jax.typing import ArrayLike, DTypeLike


def affine(
    x: ArrayLike, w: ArrayLike, b: ArrayLike | None = None, *, dtype: DTypeLike | None = None
) -> Array:
    """x W + b with x [..., D], w [D, F], b [F]; summed up, and returned, in `dtype` if given.

    The leading axes are merged for the product: XLA's CPU backend runs the gradient of W as a
    plain matrix product only if it contracts a single axis (1.5 x the speed of the layer).
    """
    x, w = jnp.asarray(x), jnp.asarray(w)
    y = _product()(x.reshape(-1, x.shape[-1]), w, dtype)
    y = y.reshape(*x.shape[:-1], w.shape[-1])
    return y if b is None else y + b


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


def _product():
    """The product [N, D] [D, F] -> [N, F] whose gradients suit the device."""
    return _cpu_product if jax.default_backend() == 'cpu' else _plain_product


def _plain_product(x, w, dtype):
    return jnp.matmul(x, w, preferred_element_type=dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _cpu_product(x, w, dtype):
    return _plain_product(x, w, dtype)


@functools.partial(_cpu_product.defjvp, symbolic_zeros=True)
def _cpu_product_jvp(dtype, primals, tangents):
    (x, w), (x_dot, w_dot) = primals, tangents
    y = _plain_product(x, w, dtype)
    y_dots = []
    if not isinstance(x_dot, SymbolicZero):
        y_dots.append(_plain_product(x_dot, w, dtype))
    if not isinstance(w_dot, SymbolicZero):
        y_dots.append(_product_with_tangent(x, w_dot, dtype))
    return y, sum(y_dots[1:], y_dots[0]) if y_dots else jnp.zeros_like(y)


def _product_with_tangent(x, w_dot, dtype):
    """x w_dot, written such that its transpose, the gradient of w, is fast on a CPU.

    That gradient contracts the rows of x and of y's gradient. XLA's fast products contract the last
    axis of their first factor, so the smaller of the two is transposed first; the barriers keep XLA
    from taking the transposition back into the product (0.4 to 0.9 x the time of the gradient).
    """
    keep = lax.optimization_barrier
    if w_dot.shape[0] > w_dot.shape[1]:
        return keep(_plain_product(keep(w_dot.T), x.T, dtype)).T
    return _plain_product(keep(x.T).T, keep(w_dot), dtype)
