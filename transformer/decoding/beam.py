"""Beam search: the likeliest continuations of prompts, several at a time kept of each."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from transformer.decoding.checks import check_beams, check_prompts
from transformer.decoding.generation import start, unrolled
from transformer.decoding.padding import bucket
from transformer.decoding.search import (
    Finished,
    advance,
    compact,
    conclude,
    initial_search,
    is_running,
)
from transformer.errors import UserError
from transformer.modules import Transformer
from transformer.parallel import RowParallel

FEWEST_STEPS = 32  # between two times that the cache is cleared


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
    parallel = RowParallel(len(prompts))
    params = parallel.replicate(params)
    slots = _slots(max(map(len, prompts)) - 1, beam_size, max_new_tokens)
    state = start(parallel, model, params, prompts, sources, slots)
    size = bucket(max_new_tokens, model.config.max_length)
    sizes = {'beam_size': beam_size, 'num_results': num_results, 'size': size}
    search = parallel.map(initial_search, (0,), **sizes)(state)
    state = state.replace(cache=())
    penalty = np.float32(length_penalty)
    numbers = np.int32(-1 if eos_id is None else eos_id), np.int32(max_new_tokens), penalty
    static = {'config': model.config, 'vocab_limit': vocab_limit or model.config.vocab_size}
    run = parallel.map(advance, (None, 0, 0, None, None, None), donate=(2,), **static)
    search = run(params, state, search, *numbers)
    while np.any(running := is_running(search, max_new_tokens)):
        seen = int(search.visible.any(-2).sum(-1).max())
        steps = max_new_tokens - int(np.where(running, search.count, max_new_tokens).min())
        slots = max(slots, _slots(seen, beam_size, steps))
        search = run(params, state, parallel.map(compact, (0,), size=slots)(search), *numbers)
    found = parallel.map(conclude, (0, None))(search, penalty)
    return _hypotheses(parallel.gather(found))[: len(prompts)]


def _slots(seen: int, beam_size: int, steps: int) -> int:
    """Slots of a cache for the `seen` tokens and as many further steps as it should last, at least.

    Most hypotheses have most of their tokens in common, and what has no descendants any more makes
    room: so that a fraction of the slots does which all steps would take.
    """
    return bucket(seen + beam_size * min(steps, FEWEST_STEPS))


def _hypotheses(found: Finished) -> list[list[Hypothesis]]:
    """What was found for each row."""
    found = jax.tree.map(lambda leaf: leaf.tolist(), found)
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
