"""Beam search: the likeliest continuations of prompts, several at a time kept of each."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from transformer.config import TransformerConfig
from transformer.decoding.checks import check_beams, check_prompts
from transformer.decoding.generation import start, unrolled
from transformer.decoding.loop import State
from transformer.decoding.padding import bucket
from transformer.errors import UserError
from transformer.modules import LayerCache, Transformer

NEVER = -1e30  # log-probability and score of what is no hypothesis; finite, so that sums are too


class Hypothesis(NamedTuple):
    """A continuation that a search found.

    Attributes:
        tokens: the new tokens, an `eos_id` that ended them included.
        score: `log_probability` over `length_factor`, by which hypotheses are ranked.
        log_probability: natural logarithm, the sum over the new tokens.
    """

    tokens: list[int]
    score: float
    log_probability: float


def beam_search(
    model: Transformer,
    params: Any,
    prompts: Sequence[Sequence[int]],
    sources: Sequence[Sequence[int]] | None = None,
    *,
    beam_size: int,
    max_new_tokens: int,
    length_penalty: float = 0.0,
    eos_id: int | None,
    vocab_limit: int | None = None,
    num_results: int = 1,
) -> list[list[Hypothesis]]:
    """The best continuations that a beam search finds for each prompt, the best one first.

    Each step extends the `beam_size` likeliest unfinished hypotheses of a row by every token. One
    of the best `beam_size` extensions that ends leaves for a pool of the best `num_results`
    finished ones. A row stops when no unfinished hypothesis can come to a score above that of the
    worst in its pool, and then never changes; what is unfinished at `max_new_tokens` competes as it
    is. With one beam and no length penalty this is greedy decoding.

    Args:
        model, params, prompts, sources, max_new_tokens, eos_id, vocab_limit: as in `stream`;
            probabilities are those among the ids below `vocab_limit`.
        beam_size: unfinished hypotheses of a row. If there are fewer, as with more beams than
            tokens at the first step, all are kept: the search is then exhaustive.
        length_penalty: alpha of `length_factor`: 0 ranks by probability alone, more favours long
            hypotheses and less short ones.
        num_results: hypotheses to return, at most `beam_size`; fewer if there are not as many.

    Returns:
        For each prompt its hypotheses, sorted by falling score.

    Raises:
        UserError: before any work, see `check_beams` and `check_prompts`; after it, if the logits
            were not finite.
    """
    check_beams(beam_size, length_penalty, num_results)
    check_prompts(model.config, prompts, max_new_tokens, sources)
    model, params = unrolled(model, params)
    found = search(
        params,
        start(model, params, prompts, sources, max_new_tokens, beam_size),
        np.int32(-1 if eos_id is None else eos_id),
        np.int32(max_new_tokens),
        np.float32(length_penalty),
        config=model.config,
        beam_size=beam_size,
        num_results=num_results,
        size=bucket(max_new_tokens, model.config.max_length),
        vocab_limit=vocab_limit or model.config.vocab_size,
    )
    found = jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), found)
    results = []
    for row in zip(found.tokens, found.lengths, found.scores, found.log_probs, strict=True):
        best = [
            Hypothesis(tokens[:length], score, log_probability)
            for tokens, length, score, log_probability in zip(*row, strict=True)
            if length
        ]
        if not best:
            raise UserError(
                f'The logits after prompt {len(results) + 1} are not finite: the parameters are '
                'damaged, take those of an earlier checkpoint.'
            )
        results.append(best)
    return results


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
            once the newest. It is a tree, which only grows; no hypothesis has a copy of its own.
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


@functools.partial(
    jax.jit, static_argnames=('config', 'beam_size', 'num_results', 'size', 'vocab_limit')
)
def search(
    params: Any,
    state: State,
    eos_id: jax.Array,
    stop: jax.Array,
    length_penalty: jax.Array,
    *,
    config: TransformerConfig,
    beam_size: int,
    num_results: int,
    size: int,
    vocab_limit: int,
) -> Finished:
    """The whole search from the state after the prefill; the program behind `beam_search`.

    Args:
        eos_id: int32 scalar, the token that ends a hypothesis; -1: none does.
        stop: int32 scalar, new tokens that a hypothesis may have.
        length_penalty: float32 scalar.
        size: at least `stop`, for which the arrays of new tokens have room.
    """

    def running(search):
        return (search.count < stop) & ~search.ended.all()

    def step(search):
        log_probs, cache, visible = extend(params, state, search, config, vocab_limit)
        search = search.replace(cache=cache, visible=visible)
        return select(search, log_probs, eos_id, stop, length_penalty)

    first = initial_search(state, beam_size, num_results, size)
    last = jax.lax.while_loop(running, step, first)
    unfinished = jnp.ones_like(last.newest, bool)
    return finish(last, last.tokens, last.log_probs, last.count, unfinished, length_penalty)


def initial_search(state: State, beam_size: int, num_results: int, size: int) -> Search:
    """One hypothesis a row, without new tokens, beside `beam_size` - 1 that are none."""
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
