"""Losses over more tokens than their logits can be held of at a time."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from transformer.functional.cpu import as_left_factor, on_cpu
from transformer.functional.projections import affine

# (products, params, labels, numbers) -> (the sum to differentiate, further sums)
Sums = Callable[[Array, Any, Any, Any], tuple[Array, Any]]

# Numbers of the table's gradient that a CPU makes at a time: 8 MiB in float32.
CPU_SLICE = 2**21


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def sum_over_chunks(
    function: Sums,
    size: int,
    features: Array,
    table: Array,
    params: Any,
    labels: Any,
    numbers: Any,
) -> tuple[Array, Any]:
    """`function` of features table^T, made for `size` tokens at a time, as a sum over the chunks.

    Where a gradient is wanted, it is formed chunk by chunk along with the value: what `function`
    reads and makes, as [size, V] logits, is neither kept nor computed a second time. Only the
    gradients of `features`, `table` and `params` are kept.

    Args:
        function: of (products [size, V], params, labels, numbers). Returns a scalar and a pytree of
            further sums over the tokens, which have no gradient.
        size: tokens in a chunk; divides N.
        features: [N, D].
        table: [V, D]. Products are summed up in float32 at least.
        params: a pytree of arrays.
        labels: a pytree of [N, ...] arrays, cut as the features are; without gradient.
        numbers: a pytree of scalars; without gradient.

    Returns:
        What `function` returns, added up.

    Raises:
        ValueError: `size` does not divide N.
    """
    _check_size(size, features)

    def sums(features, labels):
        return function(_products(features, table), params, labels, numbers)

    def add(total, chunk):
        return jax.tree.map(jnp.add, total, sums(*chunk)), None

    chunks = _split((features, labels), size)
    first = jax.eval_shape(sums, *_first(chunks))
    return lax.scan(add, _zeros(first), chunks)[0]


def _check_size(size, features):
    if len(features) % size:
        raise ValueError(f'A chunk of {size} does not divide {len(features)} tokens.')


def _products(features, table):
    return affine(features, table.T, dtype=_wide(features))


def _wide(a):
    return jnp.promote_types(a.dtype, jnp.float32)


def _split(tree, size):
    return jax.tree.map(lambda a: a.reshape(-1, size, *a.shape[1:]), tree)


def _first(chunks):
    return jax.tree.map(lambda a: a[0], chunks)


def _zeros(tree):
    return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), tree)


def _forward(function, size, features, table, params, labels, numbers):
    _check_size(size, features)
    gradient = jax.value_and_grad(function, argnums=(0, 1), has_aux=True)

    def add(total, chunk):
        sums, d_table, d_params = total
        features, labels = chunk
        products, of_features = jax.vjp(lambda x: _products(x, table), features)
        more, (d_products, d_more) = gradient(products, params, labels, numbers)
        d_table = _add_table_gradient(d_table, features, d_products)
        d_params = jax.tree.map(lambda a, b: a + b.astype(a.dtype), d_params, d_more)
        return (jax.tree.map(jnp.add, sums, more), d_table, d_params), *of_features(d_products)

    chunks = _split((features, labels), size)
    products = jax.eval_shape(_products, features[:size], table)
    first = jax.eval_shape(function, products, params, _first(chunks)[1], numbers)
    # Sums over many chunks of a narrow dtype would lose digits.
    wide = jax.tree.map(lambda a: jnp.zeros(a.shape, _wide(a)), (table, params))
    (sums, *gradients), d_features = lax.scan(add, (_zeros(first), *wide), chunks)
    gradients = d_features.reshape(features.shape), *gradients
    return sums, (gradients, (features, table, params), labels, numbers)


def _add_table_gradient(total, features, d_products):
    """`total` [V, D] with the table's gradient of one chunk.

    On a CPU a slice of the vocabulary at a time: the gradient of one chunk is as large as the total
    to which it is added, and read from memory again.
    """
    if not on_cpu():
        return total + jnp.matmul(d_products.T, features, preferred_element_type=total.dtype)
    V, D = total.shape
    size = min(max(CPU_SLICE // D, 1), V)
    columns = as_left_factor(features)  # [D, N]

    def add(start, size, total):
        d_slice = lax.dynamic_slice_in_dim(d_products, start, size, axis=1)  # [N, size]
        more = jnp.matmul(columns, d_slice, preferred_element_type=total.dtype).T  # [size, D]
        more += lax.dynamic_slice_in_dim(total, start, size)
        return lax.dynamic_update_slice_in_dim(total, more, start, axis=0)

    whole, rest = divmod(V, size)
    total = lax.fori_loop(0, whole, lambda i, total: add(i * size, size, total), total)
    return add(V - rest, rest, total) if rest else total


def _backward(function, size, residuals, cotangents):
    gradients, arguments, labels, numbers = residuals
    scale = cotangents[0]  # of the scalar; the further sums have none

    def scaled(gradient, like):
        return (scale * gradient).astype(like.dtype)

    return (
        *jax.tree.map(scaled, gradients, arguments),
        jax.tree.map(_no_cotangent, labels),
        jax.tree.map(_no_cotangent, numbers),
    )


def _no_cotangent(a):
    a = jnp.asarray(a)
    if jnp.issubdtype(a.dtype, jnp.inexact):
        return jnp.zeros_like(a)
    return jnp.zeros(a.shape, jax.dtypes.float0)


sum_over_chunks.defvjp(_forward, _backward)
