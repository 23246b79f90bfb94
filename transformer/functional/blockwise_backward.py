"""The backward pass of attention by blocks."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from transformer.functional.attention_arguments import join_arguments
from transformer.functional.attention_blocks import (
    AXES,
    BY_HEADS,
    Grid,
    Place,
    beside_strips,
    block_bounds,
    block_place,
    blocks_that_meet,
    choose_grid,
    cut,
    loop_beside_strips,
    loop_over_slices,
    put,
    without_repeats,
)
from transformer.functional.attention_heads import (
    by_heads,
    by_tokens,
    dropped_by_head,
    finite,
    head_products,
    long_query,
    masked_logits,
    rows_by_heads,
    scaled_query,
    scales_query,
    softmax_dtype,
)
from transformer.functional.cpu import as_left_factor


def backward(others, floats, output, residual, gradient, strips: list[Place]):
    """Gradients of `floats`, in their dtypes; `others` are the rest of the arguments."""
    a = join_arguments(floats, others)
    grid = choose_grid(a, strips)
    # As a product of matrices: of one row XLA sums up what it multiplies 60 times as slowly.
    delta = jnp.einsum('BTNV,BTNV->BTN', gradient, output, precision='highest')[..., None]
    rows, by_block = (gradient, residual, delta), floats._replace(sinks=None)
    if scales_query(a):
        by_block, others = by_block._replace(scale=None), others._replace(scale=1.0)

    def step(place, gradients):
        return _add_slice(gradients, by_block, others, a, rows, place, grid)

    gradients = loop_over_slices(step, _zeros(by_block), a, grid)
    if floats.sinks is not None:
        by_row = jnp.exp(floats.sinks[:, None] - finite(residual)) * -delta
        gradients = gradients._replace(sinks=by_row.sum((0, 1, 3)))
    if scales_query(a):
        query = gradients.query  # of the scaled query
        if floats.scale is not None:
            gradients = gradients._replace(scale=(query * floats.query).sum())
        gradients = gradients._replace(query=query * a.scale)
    return jax.tree.map(lambda x, like: x.astype(like.dtype), gradients, floats)


def _add_slice(gradients, floats, others, a, rows, where: Place, grid: Grid):
    """The gradients with those of one slice: for each block of queries, over those of keys.

    `floats` and `others` are those of `a` without what is scaled and differentiated around them.
    """
    of_queries, of_keys = block_bounds(cut(AXES, a, where), grid)
    count, beside = of_keys.shape[-1], beside_strips(others, grid)
    store = put if count == of_queries.shape[-1] == 1 else _added

    def block(others, place):
        return cut(AXES, others, place), by_heads(cut(AXES, floats, place))

    def query_block(i, gradients):
        first, last = blocks_that_meet(a, of_queries[..., i][..., None], of_keys)
        place = where | block_place(i, i, a, grid)
        query = scaled_query(by_heads(cut(AXES, a, place))).query
        queries = query, *(rows_by_heads(x, grid.kv_heads) for x in cut(AXES.query, rows, place))
        of_query = jnp.zeros(query.shape, softmax_dtype(query))
        if grid.strips:
            part = _gradients_in_strips(*block(others, place), queries, grid.strips)
            of_query, gradients = part.query, _with_block(gradients, part, place, grid, store)
            last = jnp.minimum(last, i)
        factors = _factors(*queries)

        def key_block(j, state):
            of_query, gradients = state
            place = where | block_place(i, j, a, grid)
            part, keys = block(beside, place)
            part = _block_gradients(without_repeats(part, i, j, a, grid), keys, factors)
            return of_query + part.query, _with_block(gradients, part, place, grid, store)

        state = of_query, gradients
        of_query, gradients = loop_beside_strips(first, last, key_block, state, count, grid)
        of_query = by_tokens(of_query, cut(AXES, a, place))
        return gradients._replace(query=store(AXES.query, gradients.query, of_query, place))

    return lax.fori_loop(0, of_queries.shape[-1], query_block, gradients)


def _with_block(gradients, part, place: Place, grid: Grid, store):
    """The gradients, but of the queries, with those of the block at `place`."""
    of_keys = tuple(_keys_by_tokens(x, grid) for x in (part.key, part.value))
    key, value = store(AXES.key, (gradients.key, gradients.value), of_keys, place)
    rest, part = (x._replace(query=None, key=None, value=None) for x in (gradients, part))
    return _added(AXES, rest, part, place)._replace(query=gradients.query, key=key, value=value)


def _gradients_in_strips(others, floats, queries, strips: list[Place]):
    """`_block_gradients` of a block on the diagonal, strip by strip."""
    total = floats._replace(query=None, key=floats.key.mT, value=floats.value.mT)
    total, of_queries = _zeros(total), []
    axes = AXES._replace(key='...S', value='...S')
    for strip in reversed(strips):  # the longest first: the others are added to its gradients
        factors = _factors(*cut(BY_HEADS.query, queries, strip))
        part = _block_gradients(cut(AXES, others, strip), cut(BY_HEADS, floats, strip), factors)
        of_queries.insert(0, part.query)
        total = _added(axes, total, part._replace(query=None), strip)
    return total._replace(query=jnp.concatenate(of_queries, -2))


class _Factors(NamedTuple):
    """Queries of a block and what belongs to them, as products take them."""

    query: Array  # [..., G T, H], scaled if `scales_query`
    query_left: Array  # [..., H, G T]
    gradient: Array  # of the output, [..., G T, V]
    gradient_left: Array  # [..., V, G T]
    residual: Array  # [..., G T, 1]
    delta: Array  # [..., G T, 1]


def _factors(*rows: Array) -> _Factors:
    """Of query, output gradient, residual and delta [..., G, T, ...]."""
    query, gradient, residual, delta = map(long_query, rows)
    left, gradient_left = as_left_factor(query), as_left_factor(gradient)
    return _Factors(query, left, gradient, gradient_left, residual, delta)


def _block_gradients(others, floats, factors: _Factors):
    """The gradients of what one block adds to the output, those of keys as [..., H or V, S].

    The products query key^T and all else in `floats` are differentiated through the logits, mask
    and dropout as they stand; d logits = weights (d weights - delta) is the softmax's own rule.
    """
    query, left, gradient, gradient_left, residual, delta = factors
    variables = floats._replace(query=None, key=None, value=None)
    if floats.bias is not None:
        variables = variables._replace(bias=floats.bias.astype(residual.dtype))

    def weights(products, variables):
        a = join_arguments(variables, others)
        logits = masked_logits(products, a)
        weights = jnp.exp(logits - finite(residual).reshape(*logits.shape[:-1], 1))
        return dropped_by_head(weights, a), weights

    products = head_products(query, floats.key, residual.dtype)
    (kept, _), pull = jax.vjp(weights, products, variables)
    of_kept = jnp.einsum('...TV,...SV->...TS', gradient, floats.value)
    of_weights = jnp.broadcast_to(-delta, of_kept.shape)
    of_products, variables = pull((of_kept.reshape(kept.shape), of_weights.reshape(kept.shape)))
    kept = kept.reshape(of_kept.shape)
    of_query = jnp.einsum('...TS,...SH->...TH', of_products, floats.key)
    return variables._replace(
        query=of_query.reshape(floats.query.shape),
        key=jnp.einsum('...HT,...TS->...HS', left, of_products),
        value=jnp.einsum('...VT,...TS->...VS', gradient_left, kept),
    )


def _keys_by_tokens(x: Array, grid: Grid) -> Array:
    """[..., H, S] as [B, S, K, H]."""
    return x.reshape(grid.rows, grid.kv_heads, *x.shape[-2:]).transpose(0, 3, 1, 2)


def _zeros(floats):
    return jax.tree.map(lambda x: jnp.zeros(x.shape, softmax_dtype(x)), floats)


def _added(axes, gradients, part, place):
    """`part` added to the gradients at `place`."""
    total = jax.tree.map(jnp.add, cut(axes, gradients, place), part)
    return put(axes, gradients, total, place)
