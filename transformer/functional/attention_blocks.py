"""Blocks of attention: how an `AttentionArguments` is cut into them, and which may be skipped."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from transformer.functional.attention_arguments import AttentionArguments
from transformer.functional.cpu import on_cpu
from transformer.functional.masks import combine_masks

# The most queries and keys of a block.
ACCELERATOR_SIDE = 512
CPU_SIDE = 1024  # an operation on less takes little longer
# Logits of a block, over all its rows and heads, or of the largest strip. Of a single head at most
# two such arrays are in memory at a time, of several three.
ACCELERATOR_BUDGET = 2**26
CPU_BUDGET = 2**20
CPU_BUDGET_OF_STRIPS = 2**18

# The axes of each field, one letter each: B, T, N, S, K = N / G, and . for those never cut. A
# field may lack leading axes, and an axis of size 1 is for all.
AXES = AttentionArguments(
    query='BTN.',
    key='BSK.',
    value='BSK.',
    bias='BNTS',
    mask='BNTS',
    query_positions='BT',
    key_positions='BS',
    query_segment_ids='BT',
    key_segment_ids='BS',
    sinks='N',
    dropout_words='B.',
    rows='B',
    heads='N',
    query_indices='T',
    key_indices='S',
    **dict.fromkeys(
        ('scale', 'softcap', 'bias_fn', 'bias_params', 'is_causal', 'window', 'dropout_rate'), ''
    ),
)

# The axes after `by_heads`.
BY_HEADS = AXES._replace(query='..T.', key='.S.', value='.S.')

Place = dict[str, tuple[int | Array, int]]  # axis -> (start, size)


class Grid(NamedTuple):
    """How attention is cut: into slices of some rows and heads, and these into blocks."""

    rows: int  # of B in a slice
    kv_heads: int  # of K in a slice
    slices: int
    slices_beside: int  # computed in one step of the loop over slices
    queries: int  # of T in a block
    keys: int  # of S in a block
    strips: list[Place]  # into which a block on the diagonal is cut, where in it; or none


def choose_grid(arguments: AttentionArguments, strips: list[Place]) -> Grid:
    """The largest blocks within the budget: first queries and keys, then heads, then rows.

    Args:
        strips: those of a block on the diagonal, if it is to be cut. What they cover is a block.
    """
    (B, T, N, _), (S, K) = arguments.query.shape, arguments.key.shape[1:3]
    G, budget = N // K, CPU_BUDGET if on_cpu() else ACCELERATOR_BUDGET
    if strips:
        queries, keys = (max(sum(place[axis]) for place in strips) for axis in 'TS')
    else:
        queries, keys = _sides(arguments, budget)
    logits, is_single = queries * keys, (queries, keys) == (T, S)
    if strips and is_single:
        logits = math.prod(max(place[axis][1] for place in strips) for axis in 'TS')
        budget = CPU_BUDGET_OF_STRIPS
    kv_heads = max(_least_heads(arguments), _divisor(K, budget // (G * logits)))
    rows = _divisor(B, budget // (G * logits * K)) if kv_heads == K else 1
    slices = B // rows * (K // kv_heads)
    # XLA hands half of what is ready to another core once that is more than 8 operations.
    beside = 2 if strips and is_single and len(strips) < 8 and slices % 2 == 0 else 1
    return Grid(rows, kv_heads, slices, beside, queries, keys, strips)


def _least_heads(arguments: AttentionArguments) -> int:
    """Key heads of a block: a structured bias comes for all at once, which then must share one."""
    return arguments.key.shape[2] if arguments.bias_fn else 1


def _sides(arguments: AttentionArguments, budget: int) -> tuple[int, int]:
    """Queries and keys of a block. Wider than half the window it would be masked for the most."""
    (T, N), (S, K) = arguments.query.shape[1:3], arguments.key.shape[1:3]
    heads = _least_heads(arguments) * N // K
    side = CPU_SIDE if on_cpu() else ACCELERATOR_SIDE
    if arguments.window:
        while side > 128 and 2 * side > 1 + sum(arguments.window):
            side //= 2
    queries = keys = side
    while queries > 64 and heads * min(queries, T) * min(keys, S) > budget:
        if keys == queries:
            keys //= 2
        else:
            queries //= 2
    return _even_size(T, queries), _even_size(S, keys)


def _even_size(length: int, limit: int) -> int:
    """Of as few blocks as the limit allows, nearly the smallest size."""
    size = -(-length // _blocks_along(length, limit))
    unit = min(16, limit)
    return min(length, -(-size // unit) * unit)


def _divisor(n: int, limit: int) -> int:
    """The largest divisor of n that is at most `limit`, but at least 1."""
    return max(d for d in range(1, n + 1) if n % d == 0 and d <= max(limit, 1))


def _blocks_along(length: int, size: int) -> int:
    """How many blocks cover an axis. The last one ends with the axis and may overlap another."""
    return -(-length // size)


def _block_start(index: int | Array, length: int, size: int) -> Array:
    return jnp.minimum(index * size, length - size)


def slice_place(index: Array, arguments: AttentionArguments, grid: Grid) -> Place:
    """Where slice `index` lies."""
    N, K = arguments.query.shape[2], arguments.key.shape[2]
    G = N // K
    row, head = index // (K // grid.kv_heads), index % (K // grid.kv_heads)
    return {
        'B': (row * grid.rows, grid.rows),
        'K': (head * grid.kv_heads, grid.kv_heads),
        'N': (head * grid.kv_heads * G, grid.kv_heads * G),
    }


def block_place(i: int | Array, j: int | Array, arguments: AttentionArguments, grid: Grid) -> Place:
    """Where block i of the queries meets block j of the keys."""
    T, S = arguments.query.shape[1], arguments.key.shape[1]
    return {
        'T': (_block_start(i, T, grid.queries), grid.queries),
        'S': (_block_start(j, S, grid.keys), grid.keys),
    }


def part_of(place: Place, part: Place) -> Place:
    """Where a part of what lies at `place` lies, given where in it."""
    return place | {axis: (place[axis][0] + first, size) for axis, (first, size) in part.items()}


def beside_strips(arguments: AttentionArguments, grid: Grid) -> AttentionArguments:
    """The arguments of blocks beside those in strips, of which causality leaves out nothing."""
    return arguments._replace(is_causal=False) if grid.strips else arguments


def without_repeats(
    block: AttentionArguments, i: Array | None, j: Array, whole: AttentionArguments, grid: Grid
) -> AttentionArguments:
    """Block (i, j) with those keys masked, and queries but for i None, that another block has."""
    mask = block.mask
    if whole.key_indices.size % grid.keys:
        mask = combine_masks(mask, (block.key_indices >= j * grid.keys)[None, None, None])
    if i is not None and whole.query_indices.size % grid.queries:
        mask = combine_masks(mask, (block.query_indices >= i * grid.queries)[None, None, :, None])
    return block._replace(mask=mask)


def cut(axes: Any, tree: Any, place: Place) -> Any:
    """The part of every array of a tree that lies at `place`; `axes` names its axes, as AXES."""

    def part(axes, x):
        if not axes:
            return x
        starts, sizes = _region(axes, x.shape, place)
        return lax.dynamic_slice(x, starts, sizes)

    return jax.tree.map(part, jax.tree.broadcast(axes, tree), tree)


def put(axes: Any, tree: Any, part: Any, place: Place) -> Any:
    """The tree with another one in the place that `cut` takes."""

    def whole(axes, x, y):
        if not axes:
            return y
        return lax.dynamic_update_slice(x, y, _region(axes, x.shape, place)[0])

    return jax.tree.map(whole, jax.tree.broadcast(axes, tree), tree, part)


def _region(axes: str, shape: tuple[int, ...], place: Place):
    """Starts and sizes along every axis of an array."""
    pairs = [
        (0, size) if size == 1 or axis not in place else place[axis]
        for axis, size in zip(axes[-len(shape) :], shape, strict=True)
    ]
    return [jnp.int32(start) for start, _ in pairs], [size for _, size in pairs]


def loop_over_slices(step: Callable, start: Any, arguments: AttentionArguments, grid: Grid) -> Any:
    """`step(place, state)` for each slice."""

    def at(n, state):
        return step(slice_place(n, arguments, grid), state)

    return lax.fori_loop(0, grid.slices, at, start, unroll=grid.slices_beside)


def loop_beside_strips(
    first: Array, last: Array, step: Callable, start: Any, count: int, grid: Grid
) -> Any:
    """`step(n, state)` for blocks, of `count` along an axis, but none in strips."""
    # Of a loop over nothing XLA would still compute what does not depend on n.
    return start if grid.strips and count == 1 else lax.fori_loop(first, last, step, start)


def block_bounds(arguments: AttentionArguments, grid: Grid) -> tuple[Array, Array]:
    """The least and the largest position and segment id of each block of queries and of keys.

    Taken over all rows, and over all examples of a `jax.vmap`: loops whose ends depend on them
    then have the same ends for all, where JAX would else run every row through every step.

    Returns:
        int32 [2, 2, blocks]: (least, largest), (position, segment id), for queries and for keys.
    """
    a = arguments
    return (
        _bounds(a.query_positions, a.query_segment_ids, grid.queries),
        _bounds(a.key_positions, a.key_segment_ids, grid.keys),
    )


def _bounds(positions, segment_ids, size):
    L = positions.shape[-1]
    starts = _block_start(jnp.arange(_blocks_along(L, size)), L, size)
    index = starts[:, None] + jnp.arange(size)  # [blocks, size]
    ids = jnp.ones_like(positions) if segment_ids is None else segment_ids
    both = jnp.stack(jnp.broadcast_arrays(jnp.atleast_2d(positions), jnp.atleast_2d(ids)))
    both = both[..., index]  # [2, B, blocks, size]
    valid = both[1] > 0  # the others neither attend nor are attended to
    far = jnp.iinfo(jnp.int32).max // 2  # twice this is no overflow yet
    least = jnp.where(valid, both, far).min((1, 3))  # [2, blocks]
    largest = jnp.where(valid, both, -far).max((1, 3))
    return jnp.stack([_least_of_examples(least), -_least_of_examples(-largest)])


@jax.custom_batching.custom_vmap
def _least_of_examples(x: Array) -> Array:
    """`x`, but its least value over the examples of every `jax.vmap` around it."""
    return x


@_least_of_examples.def_vmap
def _least_of_examples_vmap(axis_size: int, batched: list[bool], x: Array) -> tuple[Array, bool]:
    del axis_size
    return _least_of_examples(x.min(0) if batched[0] else x), False


def blocks_that_meet(
    arguments: AttentionArguments, queries: Array, keys: Array
) -> tuple[Array, Array]:
    """From which block on, and before which, some query may attend to some key.

    Args:
        arguments: for the rules of causality and window.
        queries, keys: as from `block_bounds`, one of the two for a single block.

    Returns:
        First and last + 1, int32; the first is not below the last if there is none.
    """
    (query_low, first_id), (query_high, last_id) = queries
    (key_low, first_key_id), (key_high, last_key_id) = keys
    meet = (first_id <= last_key_id) & (first_key_id <= last_id)
    if arguments.is_causal:
        meet &= key_low <= query_high
    if arguments.window:
        left, right = arguments.window
        meet &= (query_low - key_high <= left) & (query_high - key_low >= -right)
    index = jnp.arange(meet.size, dtype=jnp.int32)
    return jnp.where(meet, index, meet.size).min(), jnp.where(meet, index + 1, 0).max()
