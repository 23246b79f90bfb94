"""Speculative sampling: the tokens of a small model, accepted or replaced by a large one."""

import jax
import jax.numpy as jnp
from jax import Array

from transformer.functional.sampling import greedy


def accept_drafts(
    key: Array | None, drafts: Array, draft_logits: Array | None, logits: Array
) -> tuple[Array, Array]:
    """The drafts that a model keeps and a token of its own after them.

    Each draft x is kept with probability min(1, p(x) / q(x)). In the place of the first that is
    not, a token is drawn from max(0, p - q) normalised; if all are kept, one more from p. What
    results has the distribution that the model has by itself, whatever the drafts are (Leviathan,
    Kalman and Matias 2023, algorithm 1).

    Args:
        key: a random key; None for greedy choices: a draft is kept if it is the likeliest token.
        drafts: [K] int, drawn one after the other from q.
        draft_logits: [K, V] of q, as they were drawn from, after temperature and filters; not read
            for greedy choices.
        logits: [K + 1, V] of p, after the tokens before the drafts, the first of them, and so on;
            after the same temperature and filters.

    Returns:
        [K + 1] int32 tokens, of which the first n are the result, and n, an int32 of 1 to K + 1.
    """
    index = jnp.arange(len(drafts) + 1)
    if key is None:
        tokens = greedy(logits)
        kept = tokens[:-1] == drafts
        return tokens, 1 + _leading(kept)
    accept_key, last_key = jax.random.split(key)
    p, q = jax.nn.softmax(logits), jax.nn.softmax(draft_logits)
    at_draft = drafts[:, None]
    p_of_draft, q_of_draft = (
        jnp.take_along_axis(x[: len(drafts)], at_draft, axis=-1)[:, 0] for x in (p, q)
    )
    kept = jax.random.uniform(accept_key, drafts.shape) * q_of_draft < p_of_draft
    count = _leading(kept)
    q = jnp.pad(q, ((0, 1), (0, 0)))  # after the last draft there is none: all of p remains
    last = jax.random.categorical(last_key, jnp.log(jnp.maximum(p - q, 0)[count]))
    tokens = jnp.where(index < count, jnp.pad(drafts, (0, 1)), last)
    return tokens.astype(jnp.int32), 1 + count


def _leading(kept: Array) -> Array:
    """How many are True before the first that is not."""
    return jnp.cumprod(kept.astype(jnp.int32)).sum(dtype=jnp.int32)
