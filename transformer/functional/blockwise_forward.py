"""The forward pass of attention by blocks."""

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
    by_tokens,
    dropped_by_head,
    finite,
    head_products,
    long_query,
    masked_logits,
    softmax_dtype,
)


def forward(a: AttentionArguments, places: list[Place]) -> tuple[Array, Array]:
    """Output [B, T, N, V] and log-sum-exp [B, T, N, 1]; `places` of strips, or none for blocks."""
    grid, dtype = choose_grid(a, places), softmax_dtype(a.query)
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

    X stands for the leading axes of `head_logits`.
    """
    dtype = softmax_dtype(a.query)
    zeros = by_query_head(jnp.zeros((1, 1, a.query.shape[-2], a.value.shape[-1]), dtype), a)
    total = zeros[..., :1]
    maximum = jnp.full_like(total, MASKED)
    if a.sinks is not None:
        sinks = by_query_head(a.sinks.astype(dtype)[None, :, None, None], a)  # [X, 1, 1]
        maximum = jnp.maximum(maximum, sinks)
        total += jnp.exp(sinks - finite(maximum))
    return maximum, total, zeros


def _online_softmax(state: tuple[Array, ...], a: AttentionArguments) -> tuple[Array, ...]:
    """The state with one more block of keys."""
    maximum, total, output = state
    logits = masked_logits(head_products(long_query(a.query), a.key, total.dtype), a)  # [X, T, S]
    highest = jnp.maximum(maximum, logits.max(-1, keepdims=True))
    weights, decay = jnp.exp(logits - finite(highest)), jnp.exp(maximum - finite(highest))
    *batch, G, T, _ = a.query.shape
    kept = dropped_by_head(weights, a).reshape(*batch, G * T, -1)
    values = jnp.einsum('...TS,...SV->...TV', kept, a.value)
    return (
        highest,
        total * decay + weights.sum(-1, keepdims=True),
        output * decay + values.reshape(output.shape),
    )


def _finished(state: tuple[Array, ...], a: AttentionArguments) -> tuple[Array, Array]:
    """Output [B, T, N, V] and log-sum-exp [B, T, N, 1]."""
    maximum, total, output = state
    empty = total == 0
    total = jnp.where(empty, 1, total)
    residual = jnp.where(empty, MASKED, maximum + jnp.log(total))
    return by_tokens(output / total, a), by_tokens(residual, a)
