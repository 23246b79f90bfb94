"""Losses over more tokens than their logits can be held of at a time."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

# (params, features, labels, numbers) -> (the sum to differentiate, further sums)
Sums = Callable[[Any, Array, Any, Any], tuple[Array, Any]]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def sum_over_chunks(
    function: Sums, size: int, params: Any, features: Array, labels: Any, numbers: Any
) -> tuple[Array, Any]:
    """`function` of all tokens, evaluated on `size` tokens at a time, as a sum over the chunks.

    Where a gradient is wanted, it is formed chunk by chunk along with the value: what `function`
    makes in between, as [size, V] logits, is neither kept nor computed a second time. Only the
    gradients of `params` and of `features` are kept.

    Args:
        function: of (params, features [size, D], labels, numbers). Returns a scalar and a pytree of
            further sums over the tokens, which have no gradient.
        size: tokens in a chunk; divides N.
        params: a pytree of arrays.
        features: [N, D].
        labels: a pytree of [N, ...] arrays, cut as the features are; without gradient.
        numbers: a pytree of scalars; without gradient.

    Returns:
        What `function` returns, added up.

    Raises:
        ValueError: `size` does not divide N.
    """
    _check_size(size, features)

    def add(total, chunk):
        return jax.tree.map(jnp.add, total, function(params, *chunk, numbers)), None

    chunks = _split((features, labels), size)
    first = jax.eval_shape(function, params, *_first(chunks), numbers)
    return jax.lax.scan(add, _zeros(first), chunks)[0]


def _check_size(size, features):
    if len(features) % size:
        raise ValueError(f'A chunk of {size} does not divide {len(features)} tokens.')


def _split(tree, size):
    return jax.tree.map(lambda a: a.reshape(-1, size, *a.shape[1:]), tree)


def _first(chunks):
    return jax.tree.map(lambda a: a[0], chunks)


def _zeros(tree):
    return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), tree)


def _forward(function, size, params, features, labels, numbers):
    _check_size(size, features)
    chunks = _split((features, labels), size)
    gradient = jax.value_and_grad(function, argnums=(0, 1), has_aux=True)
    # Sums over many chunks of a narrow dtype would lose digits.
    wide = jax.tree.map(lambda a: jnp.promote_types(a.dtype, jnp.float32), params)

    def add(total, chunk):
        sums, d_params = total
        more, (d_more, d_features) = gradient(params, *chunk, numbers)
        d_params = jax.tree.map(lambda a, b: a + b.astype(a.dtype), d_params, d_more)
        return (jax.tree.map(jnp.add, sums, more), d_params), d_features

    first = jax.eval_shape(function, params, *_first(chunks), numbers)
    zeros = jax.tree.map(lambda a, dtype: jnp.zeros(a.shape, dtype), params, wide)
    (sums, d_params), d_features = jax.lax.scan(add, (_zeros(first), zeros), chunks)
    return sums, (d_params, d_features.reshape(features.shape), params, labels, numbers)


def _backward(function, size, residuals, cotangents):
    d_params, d_features, params, labels, numbers = residuals
    scale = cotangents[0]  # of the scalar; the further sums have none

    def scaled(gradient, like):
        return (scale * gradient).astype(like.dtype)

    return (
        jax.tree.map(scaled, d_params, params),
        scaled(d_features, d_features),
        jax.tree.map(_no_cotangent, labels),
        jax.tree.map(_no_cotangent, numbers),
    )


def _no_cotangent(a):
    a = jnp.asarray(a)
    if jnp.issubdtype(a.dtype, jnp.inexact):
        return jnp.zeros_like(a)
    return jnp.zeros(a.shape, jax.dtypes.float0)


sum_over_chunks.defvjp(_forward, _backward)
