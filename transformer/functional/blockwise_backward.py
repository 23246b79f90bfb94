"""The backward pass of attention by blocks."""

import functools

import jax
import jax.numpy as jnp
from jax import Array, lax

from transformer.functional.attention_arguments import join_arguments
from transformer.functional.attention_blocks import (
    AXES,
    BY_HEADS,
    Grid,
    Place,
    block_bounds,
    block_place,
    blocks_that_meet,
    choose_grid,
    cut,
    put,
    slice_place,
    without_repeats,
)
from transformer.functional.attention_heads import (
    by_heads,
    by_tokens,
    dropped_by_head,
    finite,
    head_products,
    keys_by_heads,
    long_query,
    masked_logits,
    rows_by_heads,
    softmax_dtype,
)
from transformer.functional.cpu import as_left_factor


def backward(others, floats, output, residual, gradient, places):
    """Gradients of `floats`, in their dtypes; `others` are the rest of the arguments."""
    a = join_arguments(floats, others)
    grid = choose_grid(a, places)
    sinks, floats = floats.sinks, floats._replace(sinks=None)
    # As a product of matrices: of one row XLA sums up what it multiplies 60 times as slowly.
    delta = jnp.einsum('BTNV,BTNV->BTN', gradient, output, precision='highest')[..., None]
    rows = gradient, residual, delta

    def step(n, gradients):
        add = functools.partial(_add_strips, places=places) if places else _add_blocks
        return add(gradients, floats, others, rows, slice_place(n, a, grid), grid)

    gradients = lax.fori_loop(0, grid.slices, step, _zeros(floats))
    if sinks is not None:
        by_row = jnp.exp(sinks[:, None] - finite(residual)) * -delta
        gradients = gradients._replace(sinks=by_row.sum((0, 1, 3)))
        floats = floats._replace(sinks=sinks)
    return jax.tree.map(lambda x, like: x.astype(like.dtype), gradients, floats)


def _add_strips(gradients, floats, others, rows, where: Place, grid: Grid, places: list[Place]):
    """The gradients with those of one slice: the sums of its strips."""
    others, heads = cut(AXES, others, where), by_heads(cut(AXES, floats, where))
    rows = [rows_by_heads(x, grid.kv_heads) for x in cut(AXES.query, rows, where)]
    of_queries, of_keys = [], tuple(jnp.zeros_like(x.mT) for x in (heads.key, heads.value))
    rest = gradients._replace(query=None, key=None, value=None)
    for place in places:
        strip = cut(AXES, others, place), cut(BY_HEADS, heads, place)
        part = _block_gradients(*strip, cut(BY_HEADS.query, rows, place))
        of_queries.append(part.query)
        first, count = place['S']
        of_keys = tuple(
            total.at[..., first : first + count].add(x)
            for total, x in zip(of_keys, (part.key, part.value), strict=True)
        )
        part = part._replace(query=None, key=None, value=None)
        rest = _added(AXES, rest, part, where | place)
    of_queries = by_tokens(jnp.concatenate(of_queries, axis=-2), others)
    of_keys = tuple(_keys_by_tokens(x, grid) for x in of_keys)
    key, value = put(AXES.key, (gradients.key, gradients.value), of_keys, where)
    query = put(AXES.query, gradients.query, of_queries, where)
    return rest._replace(query=query, key=key, value=value)


def _add_blocks(gradients, floats, others, rows, where: Place, grid: Grid):
    """The gradients with those of one slice: for each block of keys, over those of queries."""
    a = join_arguments(floats, others)
    of_queries, of_keys = block_bounds(cut(AXES, a, where), grid)

    def key_block(j, gradients):
        first, last = blocks_that_meet(a, of_queries, of_keys[..., j][..., None])

        def query_block(i, state):
            gradients, of_block = state
            place = where | block_place(i, j, a, grid)
            block = without_repeats(cut(AXES, others, place), i, j, a, grid)
            queries = [rows_by_heads(x, grid.kv_heads) for x in cut(AXES.query, rows, place)]
            part = _block_gradients(block, by_heads(cut(AXES, floats, place)), queries)
            of_block = jax.tree.map(jnp.add, of_block, (part.key, part.value))
            part = part._replace(query=by_tokens(part.query, block), key=None, value=None)
            return _added(AXES, gradients, part, place), of_block

        place = where | block_place(0, j, a, grid)
        totals = gradients.key, gradients.value
        start = tuple(jnp.zeros_like(keys_by_heads(x).mT) for x in cut(AXES.key, totals, place))
        rest = gradients._replace(key=None, value=None)
        rest, of_block = lax.fori_loop(first, last, query_block, (rest, start))
        of_block = tuple(_keys_by_tokens(x, grid) for x in of_block)
        key, value = _added(AXES.key, totals, of_block, place)
        return rest._replace(key=key, value=value)

    return lax.fori_loop(0, of_keys.shape[-1], key_block, gradients)


def _block_gradients(others, floats, rows):
    """The gradients of what one block adds to the output.

    The products query key^T and all else in `floats` are differentiated through the logits, mask
    and dropout as they stand; d logits = weights (d weights - delta) is the softmax's own rule.
    """
    gradient, residual, delta = map(long_query, rows)  # [..., G T, V] and twice [..., G T, 1]
    query, key, value = long_query(floats.query), floats.key, floats.value
    variables = floats._replace(query=None, key=None, value=None)
    if floats.bias is not None:
        variables = variables._replace(bias=floats.bias.astype(residual.dtype))

    def weights(products, variables):
        a = join_arguments(variables, others)
        logits = masked_logits(products, a)
        weights = jnp.exp(logits - finite(residual).reshape(*logits.shape[:-1], 1))
        return dropped_by_head(weights, a), weights

    (kept, _), pull = jax.vjp(weights, head_products(query, key, residual.dtype), variables)
    of_kept = jnp.einsum('...TV,...SV->...TS', gradient, value)
    of_weights = jnp.broadcast_to(-delta, of_kept.shape)
    of_products, variables = pull((of_kept.reshape(kept.shape), of_weights.reshape(kept.shape)))
    kept = kept.reshape(of_kept.shape)
    return variables._replace(
        query=jnp.einsum('...TS,...SH->...TH', of_products, key).reshape(floats.query.shape),
        key=jnp.einsum('...HT,...TS->...HS', as_left_factor(query), of_products),
        value=jnp.einsum('...VT,...TS->...VS', as_left_factor(gradient), kept),
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
