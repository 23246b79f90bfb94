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
    by_query_head,
    by_tokens,
    dropped_by_head,
    finite,
    head_products,
    long_query,
    masked_logits,
    scaled_query,
    softmax_dtype,
)


def forward(a: AttentionArguments, strips: list[Place]) -> tuple[Array, Array]:
    """Output [B, T, N, V] and log-sum-exp [B, T, N, 1]; `strips` as `choose_grid` takes them."""
    grid, dtype = choose_grid(a, strips), softmax_dtype(a.query)
    rows, V = a.query.shape[:3], a.value.shape[3]

    def step(place, results):
        return _put_slice(results, a, place, grid)

    results = jnp.zeros((*rows, V), dtype), jnp.zeros((*rows, 1), dtype)
    return loop_over_slices(step, results, a, grid)


def _put_slice(results, a: AttentionArguments, where: Place, grid: Grid):
    """The results with those of one slice: for each block of queries, over those of keys."""
    of_queries, of_keys = block_bounds(cut(AXES, a, where), grid)
    count, beside = of_keys.shape[-1], beside_strips(a, grid)

    def block(a, i, j):
        return scaled_query(by_heads(cut(AXES, a, where | block_place(i, j, a, grid))))

    def query_block(i, results):
        first, last = blocks_that_meet(a, of_queries[..., i][..., None], of_keys)
        queries = block(a, i, i)
        state = _no_keys(queries)
        if grid.strips:
            state, last = _in_strips(queries, grid.strips), jnp.minimum(last, i)

        def key_block(j, state):
            return _online_softmax(state, without_repeats(block(beside, i, j), None, j, a, grid))

        state = loop_beside_strips(first, last, key_block, state, count, grid)
        place = where | block_place(i, i, a, grid)
        return put(AXES.query, results, _finished(state, queries), place)

    return lax.fori_loop(0, of_queries.shape[-1], query_block, results)


def _in_strips(a: AttentionArguments, strips: list[Place]) -> tuple[Array, ...]:
    """The state of a block's queries after its keys, strip by strip."""
    parts = [cut(BY_HEADS, a, strip) for strip in strips]
    states = [_online_softmax(_no_keys(part), part) for part in parts]
    return jax.tree.map(lambda *x: jnp.concatenate(x, -2), *states)


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
    products = head_products(long_query(a.query), a.key, total.dtype)
    logits = masked_logits(products, a)  # [X, T, S]
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
