"""Beam search on the device: hypotheses in one cache, extended, chosen and cleared away."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from transformer.config import TransformerConfig
from transformer.decoding.loop import State
from transformer.modules import LayerCache, Transformer
from transformer.modules.cache import merge_rows_and_heads, split_rows_and_heads

NEVER = -1e30  # log-probability and score of what is no hypothesis; finite, so that sums are too


def length_factor(length: jax.Array, length_penalty: jax.Array) -> jax.Array:
    """((5 + length) / 6)^alpha, which divides a log-probability (Wu et al. 2016, equation 14)."""
    return ((5 + length) / 6) ** length_penalty


@struct.dataclass
class Finished:
    """The best K finished hypotheses of each row, sorted by falling score.

    Attributes:
        tokens: [B, K, L] int32, new tokens.
        lengths: [B, K] int32, how many; 0: there is no such hypothesis yet.
        scores, log_probs: [B, K] float32.
    """

    tokens: jax.Array
    lengths: jax.Array
    scores: jax.Array
    log_probs: jax.Array


@struct.dataclass
class Search:
    """A search between two steps.

    Attributes:
        cache: leaves [B, ...]: of every row the prompt and then, M at a time, all tokens that were
            once the newest. It is a tree, which grows until `compact` takes off its dead branches;
            no hypothesis has a copy of its own.
        visible: [B, M, S] bool, True at the slots of what a hypothesis has before its newest token.
        newest: [B, M] int32.
        tokens: [B, M, L] int32, new tokens of the unfinished hypotheses.
        log_probs: [B, M] float32 of them, falling; NEVER: there is no such hypothesis.
        count: int32 scalar, new tokens of each.
        ended: [B] bool, True where the finished ones are final.
    """

    cache: tuple[LayerCache, ...]
    visible: jax.Array
    newest: jax.Array
    tokens: jax.Array
    log_probs: jax.Array
    finished: Finished
    count: jax.Array
    ended: jax.Array


@functools.partial(jax.jit, static_argnames=('beam_size', 'num_results', 'size'))
def initial_search(state: State, *, beam_size: int, num_results: int, size: int) -> Search:
    """One hypothesis a row, without new tokens, beside `beam_size` - 1 that are none.

    Args:
        state: after the prefill.
        size: new tokens for which there is room.
    """
    B, S = state.cache[0].segment_ids.shape

    def for_beams(leaf):
        return jnp.broadcast_to(leaf[:, None], (B, beam_size, *leaf.shape[1:]))

    def empty(count):
        return jnp.zeros((B, count, size), jnp.int32), jnp.full((B, count), NEVER, jnp.float32)

    (tokens, log_probs), (finished, scores) = empty(beam_size), empty(num_results)
    return Search(
        cache=state.cache,
        visible=for_beams(jnp.arange(S) < state.position[:, None]),
        newest=for_beams(state.token),
        tokens=tokens,
        log_probs=log_probs.at[:, 0].set(0),
        finished=Finished(finished, jnp.zeros_like(scores, jnp.int32), scores, scores),
        count=jnp.zeros((), jnp.int32),
        ended=jnp.zeros(B, bool),
    )


def is_running(search: Search, stop: int | jax.Array) -> jax.Array:
    """Whether there is anything left to find with `stop` new tokens; of several devices each."""
    return (search.count < stop) & ~search.ended.all(-1)


@functools.partial(jax.jit, static_argnames=('config', 'vocab_limit'), donate_argnames='search')
def advance(
    params: Any,
    state: State,
    search: Search,
    eos_id: jax.Array,
    stop: jax.Array,
    length_penalty: jax.Array,
    *,
    config: TransformerConfig,
    vocab_limit: int,
) -> Search:
    """The search as far as it goes before it has an end or the cache no slots for one more step.

    Args:
        state: after the prefill, for its positions and memory; its cache is not read.
        search: consumed: its buffers become those of the result.
        eos_id: int32 scalar, the token that ends a hypothesis; -1: none does.
        stop: int32 scalar, new tokens that a hypothesis may have.
        length_penalty: float32 scalar.
    """

    def running(search):
        M, S = search.visible.shape[1:]
        return is_running(search, stop) & (search.cache[0].index + M <= S)

    def step(search):
        log_probs, cache, visible = extend(params, state, search, config, vocab_limit)
        search = search.replace(cache=cache, visible=visible)
        return select(search, log_probs, eos_id, stop, length_penalty)

    return jax.lax.while_loop(running, step, search)


@jax.jit
def conclude(search: Search, length_penalty: jax.Array) -> Finished:
    """The finished hypotheses with what is unfinished among them."""
    unfinished = jnp.ones_like(search.newest, bool)
    return finish(search, search.tokens, search.log_probs, search.count, unfinished, length_penalty)


@functools.partial(jax.jit, static_argnames='size')
def compact(search: Search, *, size: int) -> Search:
    """The search with a cache of `size` slots, of which those that a hypothesis sees come first.

    Args:
        size: at least the slots there are.
    """
    seen = search.visible.any(1)  # [B, S]
    B, S = seen.shape
    order = jnp.argsort(~seen, axis=-1, stable=True)  # [B, S]

    def arranged(leaf, axis=1):
        """Of a leaf [B, ..., S, ...] the slots in order."""
        index = jnp.expand_dims(order, [i for i in range(1, leaf.ndim) if i != axis])
        leaf = jnp.take_along_axis(leaf, index, axis)
        return jnp.pad(leaf, [(0, size - S if i == axis else 0) for i in range(leaf.ndim)])

    def layer(cache):
        def heads(leaf):
            return merge_rows_and_heads(arranged(split_rows_and_heads(leaf, B)))

        return LayerCache(
            key=heads(cache.key),
            value=heads(cache.value),
            positions=arranged(cache.positions),
            segment_ids=arranged(cache.segment_ids),
            index=seen.sum(-1).max().astype(cache.index.dtype),
        )

    return search.replace(
        cache=tuple(map(layer, search.cache)), visible=arranged(search.visible, axis=2)
    )


def extend(
    params: Any, state: State, search: Search, config: TransformerConfig, vocab_limit: int
) -> tuple[jax.Array, tuple[LayerCache, ...], jax.Array]:
    """All hypotheses one token longer.

    The beams of a row are further queries of the same keys, cached ones and the memory's.

    Args:
        state: after the prefill; its positions and memory are those of all beams.

    Returns:
        Log-probabilities [B, M, V], and `cache` and `visible` with the newest tokens.
    """
    newest = search.newest  # [B, M]
    slots = search.cache[0].index + jnp.arange(newest.shape[1])  # [M]
    visible = search.visible | jax.nn.one_hot(slots, search.visible.shape[-1], dtype=bool)
    batch = {
        'tokens': newest,
        'positions': jnp.broadcast_to(state.position[:, None] + search.count, newest.shape),
        'segment_ids': jnp.ones_like(newest),
        'mask': visible,
    }
    model, variables = Transformer(config), {'params': params}
    options = {'cache': search.cache, 'memory': state.memory}
    features, cache = model.apply(variables, batch, **options, method='features')
    logits = model.apply(variables, features, method='logits')  # [B, M, V]
    log_probs = jax.nn.log_softmax(logits[..., :vocab_limit].astype(jnp.float32))
    return jnp.maximum(search.log_probs[..., None] + log_probs, NEVER), cache, visible


def select(
    search: Search,
    log_probs: jax.Array,
    eos_id: jax.Array,
    stop: jax.Array,
    length_penalty: jax.Array,
) -> Search:
    """The search one token further, from the log-probabilities that `extend` returns."""
    B, M, V = log_probs.shape
    # No more than M of them end, so that M go on.
    log_probs, index = jax.lax.top_k(log_probs.reshape(B, M * V), min(2 * M, M * V))
    parent, token = index // V, index % V  # [B, 2M]
    tokens = take(search.tokens, parent).at[:, :, search.count].set(token)
    ends = token == eos_id
    count = search.count + 1
    # Not by slices, which XLA would take from a sort of everything instead of the largest.
    among_best = jnp.arange(ends.shape[1]) < M
    finished = finish(search, tokens, log_probs, count, ends & among_best, length_penalty)

    log_probs, kept = jax.lax.top_k(jnp.where(ends, NEVER, log_probs), M)
    # A log-probability only falls; its best score is at the length that divides it most.
    longest = jnp.where(length_penalty > 0, stop, count)
    likeliest = log_probs[:, 0]
    attainable = likeliest / length_factor(longest, length_penalty)
    attainable = jnp.where(likeliest > NEVER / 2, attainable, NEVER)
    return Search(
        cache=search.cache,
        visible=take(search.visible, take(parent, kept)),
        newest=take(token, kept),
        tokens=take(tokens, kept),
        log_probs=log_probs,
        finished=finished,
        count=count,
        ended=search.ended | (finished.scores[:, -1] >= attainable),
    )


def finish(
    search: Search,
    tokens: jax.Array,
    log_probs: jax.Array,
    count: jax.Array,
    which: jax.Array,
    length_penalty: jax.Array,
) -> Finished:
    """The best of the finished hypotheses and of those of `which`; rows that ended keep theirs.

    Args:
        tokens, log_probs: [B, N, L] and [B, N], of hypotheses of `count` tokens.
        which: [B, N] bool, True for one that finishes now.
    """
    which &= (log_probs > NEVER / 2) & ~search.ended[:, None]
    scores = log_probs / length_factor(count, length_penalty)
    new = Finished(
        tokens=tokens,
        lengths=jnp.where(which, count, 0),
        scores=jnp.where(which, scores, NEVER),
        log_probs=log_probs,
    )
    both = jax.tree.map(lambda *leaves: jnp.concatenate(leaves, 1), search.finished, new)
    _, best = jax.lax.top_k(both.scores, search.finished.scores.shape[1])
    return take(both, best)


def take(tree: Any, index: jax.Array) -> Any:
    """Of every leaf [B, M, ...] the entries `index` [B, N] of each row: [B, N, ...]."""
    pick = jax.vmap(lambda row, index: jnp.take(row, index, axis=0, mode='clip'))
    return jax.tree.map(lambda leaf: pick(leaf, index), tree)
