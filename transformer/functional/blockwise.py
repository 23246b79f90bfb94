"""Attention in memory linear in the lengths: block by block, with an online softmax.

The forward pass keeps a running maximum and sum for each query (Milakov and Gimelshein 2018; Rabe
and Staats 2021). The backward pass computes every block again from the output and the log-sum-exp,
all that is kept beside the arguments (Dao et al. 2022, algorithms 1 and 4). Both go slice by slice
of rows and heads; a slice is cut into blocks, or, where all keys are few, into strips of queries.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from transformer.functional.attention_arguments import MASKED, AttentionArguments
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
    by_query_head,
    dropped_by_head,
    head_logits,
    head_mask,
    head_products,
    keys_by_heads,
    long_query,
    rows_by_heads,
)
from transformer.functional.attention_strips import strips_of_slices


def blockwise_attention(arguments: AttentionArguments) -> tuple[Array, Array]:
    """Attention with no more than the logits of a block, or of a slice of heads, in memory.

    Its gradient may be differentiated in forward mode, but not in reverse mode once more.

    Returns:
        Output [B, T, N, V] and residual [B, T, N].
    """
    floats, others = _split(lambda x: jnp.issubdtype(x.dtype, jnp.floating), arguments)
    integers, fixed = _split(lambda x: True, others)
    # Found here: within, the positions are no longer known to be the indices.
    places = strips_of_slices(arguments)
    output, residual = _attention(places, fixed, integers, floats)  # [B, T, N, V], [B, T, N, 1]
    return output.astype(arguments.query.dtype), lax.stop_gradient(residual)[..., 0]


def _split(condition: Callable[[Array], bool], tree: Any) -> tuple[Any, Any]:
    """Two trees of the same shape: the arrays that meet the condition and the rest, else None."""
    leaves, structure = jax.tree.flatten(tree, is_leaf=lambda x: x is None)
    chosen = [hasattr(x, 'dtype') and condition(x) for x in leaves]
    first = [x if flag else None for x, flag in zip(leaves, chosen, strict=True)]
    second = [None if flag else x for x, flag in zip(leaves, chosen, strict=True)]
    return structure.unflatten(first), structure.unflatten(second)


def _join(*trees: Any) -> Any:
    """The tree that was split."""

    def present(*leaves):
        return next((x for x in leaves if x is not None), None)

    return jax.tree.map(present, *trees, is_leaf=lambda x: x is None)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attention(places, fixed, integers, floats) -> tuple[Array, Array]:
    """Output [B, T, N, V] and log-sum-exp [B, T, N, 1], in the dtype of the softmax."""
    return _forward(_join(floats, integers, fixed), places)


def _attention_forward(places, fixed, integers, floats):
    output, residual = _forward(_join(floats, integers, fixed), places)
    return (output, residual), (integers, floats, output, residual)


def _attention_backward(places, fixed, saved, gradients):
    integers, floats, output, residual = saved
    others = _join(integers, fixed)
    gradients = _backward(others, floats, output, residual, gradients[0], places)
    return None, jax.tree.map(_differentiable_once, gradients)


_attention.defvjp(_attention_forward, _attention_backward)


def _softmax_dtype(x: Array):
    return jnp.promote_types(x.dtype, jnp.float32)


def _forward(a: AttentionArguments, places: list[Place]) -> tuple[Array, Array]:
    # In the forward pass exponentials take the place of the logits.
    grid, dtype = choose_grid(a, places, arrays=1), _softmax_dtype(a.query)
    rows, V = a.query.shape[:3], a.value.shape[3]

    def step(n, results):
        where = slice_place(n, a, grid)
        if places:
            return put(AXES.query, results, _in_strips(cut(AXES, a, where), places), where)
        return _put_blocks(results, a, where, grid)

    results = jnp.zeros((*rows, V), dtype), jnp.zeros((*rows, 1), dtype)
    return lax.fori_loop(0, grid.slices, step, results)


def _in_strips(a: AttentionArguments, places: list[Place]) -> tuple[Array, Array]:
    """Output [B, T, N, V] and log-sum-exp [B, T, N, 1] of a slice."""
    heads, parts = by_heads(a), []
    for place in places:
        strip = cut(BY_HEADS, heads, place)
        parts.append(_finished(_online_softmax(_no_keys(strip), strip), strip))
    return jax.tree.map(lambda *x: jnp.concatenate(x, 1), *parts)


def _put_blocks(results, a: AttentionArguments, where: Place, grid: Grid):
    """The results with those of one slice: for each block of queries, over those of keys."""
    of_queries, of_keys = block_bounds(cut(AXES, a, where), grid)

    def query_block(i, results):
        queries, place = of_queries[..., i], where | block_place(i, 0, a, grid)
        first, last = blocks_that_meet(a, queries[..., None], of_keys)

        def key_block(j, state):
            block = by_heads(cut(AXES, a, where | block_place(i, j, a, grid)))
            return _online_softmax(state, without_repeats(block, None, j, a, grid))

        queries_of = by_heads(cut(AXES, a, place))
        state = lax.fori_loop(first, last, key_block, _no_keys(queries_of))
        return put(AXES.query, results, _finished(state, queries_of), place)

    return lax.fori_loop(0, of_queries.shape[-1], query_block, results)


def _no_keys(a: AttentionArguments) -> tuple[Array, Array, Array]:
    """Before any key: maximum and total [X, T, 1] and the sum of values [X, T, V].

    X stands for the axes of `head_logits`: B N, or B, N.
    """
    dtype = _softmax_dtype(a.query)
    zeros = by_query_head(jnp.zeros((1, 1, a.query.shape[-2], a.value.shape[-1]), dtype), a)
    total = zeros[..., :1]
    maximum = jnp.full_like(total, MASKED)
    if a.sinks is not None:
        sinks = by_query_head(a.sinks.astype(dtype)[None, :, None, None], a)  # [X, 1, 1]
        maximum = jnp.maximum(maximum, sinks)
        total += jnp.exp(sinks - _finite(maximum))
    return maximum, total, zeros


def _online_softmax(state: tuple[Array, ...], a: AttentionArguments) -> tuple[Array, ...]:
    """The state with one more block of keys."""
    maximum, total, output = state
    logits = _masked(head_products(long_query(a.query), a.key, total.dtype), a)  # [X, T, S]
    highest = jnp.maximum(maximum, logits.max(-1, keepdims=True))
    weights, decay = jnp.exp(logits - _finite(highest)), jnp.exp(maximum - _finite(highest))
    *batch, G, T, _ = a.query.shape
    kept = dropped_by_head(weights, a).reshape(*batch, G * T, -1)
    values = jnp.einsum('...TS,...SV->...TV', kept, a.value)
    return (
        highest,
        total * decay + weights.sum(-1, keepdims=True),
        output * decay + values.reshape(output.shape),
    )


def _masked(products: Array, a: AttentionArguments) -> Array:
    logits, allowed = head_logits(products, a), head_mask(a)
    return logits if allowed is None else jnp.where(allowed, logits, MASKED)


def _finished(state: tuple[Array, ...], a: AttentionArguments) -> tuple[Array, Array]:
    """Output [B, T, N, V] and log-sum-exp [B, T, N, 1]."""
    maximum, total, output = state
    empty = total == 0
    total = jnp.where(empty, 1, total)
    residual = jnp.where(empty, MASKED, maximum + jnp.log(total))
    return _by_tokens(output / total, a), _by_tokens(residual, a)


def _by_tokens(x: Array, a: AttentionArguments) -> Array:
    """[X, T, V], or [..., G, T, V], as [B, T, N, V]."""
    return x.reshape(len(a.rows), len(a.heads), *x.shape[-2:]).swapaxes(1, 2)


def _finite(x: Array) -> Array:
    """`x`, or 0 for a query that has no key: exponentials of its masked logits then are 0."""
    return jnp.where(x == MASKED, 0, x)


def _backward(others, floats, output, residual, gradient, places):
    """Gradients of `floats`, in their dtypes; `others` are the rest of the arguments."""
    a = _join(floats, others)
    grid = choose_grid(a, places, arrays=2)  # weights and their gradients
    sinks, floats = floats.sinks, floats._replace(sinks=None)
    # As a product of matrices: of one row XLA sums up what it multiplies 60 times as slowly.
    delta = jnp.einsum('BTNV,BTNV->BTN', gradient, output, precision='highest')[..., None]
    rows = gradient, residual, delta

    def step(n, gradients):
        add = functools.partial(_add_strips, places=places) if places else _add_blocks
        return add(gradients, floats, others, rows, slice_place(n, a, grid), grid)

    gradients = lax.fori_loop(0, grid.slices, step, _zeros(floats))
    if sinks is not None:
        by_row = jnp.exp(sinks[:, None] - _finite(residual)) * -delta
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
    of_queries = _by_tokens(jnp.concatenate(of_queries, axis=-2), others)
    of_keys = tuple(_keys_by_tokens(x, grid) for x in of_keys)
    key, value = put(AXES.key, (gradients.key, gradients.value), of_keys, where)
    query = put(AXES.query, gradients.query, of_queries, where)
    return rest._replace(query=query, key=key, value=value)


def _add_blocks(gradients, floats, others, rows, where: Place, grid: Grid):
    """The gradients with those of one slice: for each block of keys, over those of queries."""
    a = _join(floats, others)
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
            part = part._replace(query=_by_tokens(part.query, block), key=None, value=None)
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
        a = _join(variables, others)
        logits = _masked(products, a)
        weights = jnp.exp(logits - _finite(residual).reshape(*logits.shape[:-1], 1))
        return dropped_by_head(weights, a), weights

    (kept, _), pull = jax.vjp(weights, head_products(query, key, residual.dtype), variables)
    of_kept = jnp.einsum('...TV,...SV->...TS', gradient, value)
    of_weights = jnp.broadcast_to(-delta, of_kept.shape)
    of_products, variables = pull((of_kept.reshape(kept.shape), of_weights.reshape(kept.shape)))
    kept = kept.reshape(of_kept.shape)
    return variables._replace(
        query=jnp.einsum('...TS,...SH->...TH', of_products, key).reshape(floats.query.shape),
        key=jnp.einsum('...TH,...TS->...HS', query, of_products),
        value=jnp.einsum('...TV,...TS->...VS', gradient, kept),
    )


def _keys_by_tokens(x: Array, grid: Grid) -> Array:
    """[..., H, S] as [B, S, K, H]."""
    return x.reshape(grid.rows, grid.kv_heads, *x.shape[-2:]).transpose(0, 3, 1, 2)


def _zeros(floats):
    return jax.tree.map(lambda x: jnp.zeros(x.shape, _softmax_dtype(x)), floats)


def _added(axes, gradients, part, place):
    """`part` added to the gradients at `place`."""
    total = jax.tree.map(jnp.add, cut(axes, gradients, place), part)
    return put(axes, gradients, total, place)


@jax.custom_jvp
def _differentiable_once(x: Array) -> Array:
    """`x`, through which no gradient flows back: the loops behind it have none."""
    return x


@_differentiable_once.defjvp
def _differentiable_once_jvp(primals, tangents):
    tangent = jax.custom_derivatives.linear_call(lambda _, x: x, _refuse, (), tangents[0])
    return primals[0], tangent


def _refuse(_, gradient):
    raise ValueError(
        'attention by blocks has no gradient of its gradient in reverse mode: use '
        "implementation='xla', or forward mode over reverse."
    )
