"""The loop of speculative decoding on the device: a small model drafts, the large one accepts."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from transformer.config import TransformerConfig
from transformer.decoding.loop import CHUNK, State, next_logits
from transformer.functional import accept_drafts, filtered, greedy
from transformer.modules import LayerCache, Transformer


@struct.dataclass
class Pair:
    """One row between two chunks, as both models have it.

    Attributes:
        state: of the model that writes; one row.
        draft_cache: of the model that drafts, with the same tokens.
    """

    state: State
    draft_cache: tuple[LayerCache, ...]

    @property
    def count(self) -> jax.Array:
        return self.state.count

    @property
    def ended(self) -> jax.Array:
        return self.state.ended


@functools.partial(
    jax.jit,
    static_argnames=('config', 'draft_config', 'num_drafts', 'vocab_limit'),
    donate_argnames='pair',
)
def speculate(
    params: Any,
    draft_params: Any,
    pair: Pair,
    key: jax.Array | None,
    row: jax.Array,
    options: dict[str, jax.Array] | None,
    eos_id: jax.Array,
    stop: jax.Array,
    limit: jax.Array,
    *,
    config: TransformerConfig,
    draft_config: TransformerConfig,
    num_drafts: int,
    vocab_limit: int,
) -> tuple[Pair, jax.Array]:
    """Makes new tokens until the row has `stop` of them, CHUNK were made or it has ended.

    Args:
        params, draft_params: of models with unrolled layers.
        pair: consumed. Both caches have `num_drafts` slots more than the row has tokens in the end.
        key, options: as in `decode`; what a row draws is a function of the key, of its number and
            of the tokens before, but another one than there.
        row: int32 scalar, the number of the row in the run.
        eos_id: int32 scalar, the token that ends the row; -1: none does.
        stop: int32 scalar; the last round may make up to `num_drafts` more.
        limit: int32 scalar, tokens that the row may have in all.
        vocab_limit: ids from here on are not made.

    Returns:
        The pair, and [1, CHUNK + num_drafts] int32, whose columns up to the rise of the count are
        the new tokens.
    """
    start = pair.count

    def running(carry):
        pair, _ = carry
        return (pair.count < stop) & (pair.count - start < CHUNK) & ~pair.ended.all()

    def step(carry):
        pair, tokens = carry
        keys = None
        if options is not None:
            round_key = jax.random.fold_in(jax.random.fold_in(key, row), pair.count)
            keys = jax.random.split(round_key, num_drafts + 2)
        drafts, draft_logits, draft_cache = _draft(
            draft_params, pair, keys, options, draft_config, num_drafts, vocab_limit
        )
        logits, cache = _verify(params, pair.state, drafts, config, vocab_limit)
        if options is None:
            new, made = accept_drafts(None, drafts, None, logits)
        else:
            new, made = accept_drafts(keys[-1], drafts, draft_logits, filtered(logits, **options))
        tokens = jax.lax.dynamic_update_slice_in_dim(tokens, new[None], pair.count - start, axis=1)
        made = jnp.minimum(made, limit - pair.count)
        return _advanced(pair, cache, draft_cache, new, made, eos_id), tokens

    tokens = jnp.zeros((1, CHUNK + num_drafts), jnp.int32)
    return jax.lax.while_loop(running, step, (pair, tokens))


def _draft(params, pair, keys, options, config, num_drafts, vocab_limit):
    """Drafts [K], the logits [K, V] they were drawn from, and the cache with all of them."""

    def one(state, key):
        logits, cache = next_logits(params, state, config)
        logits = logits[:, :vocab_limit]
        if options is None:
            token = greedy(logits)
        else:
            logits = filtered(logits, **options)
            token = jax.random.categorical(key, logits).astype(jnp.int32)
        state = state.replace(cache=cache, token=token, position=state.position + 1)
        return state, (token[0], logits[0])

    state = pair.state.replace(cache=pair.draft_cache)
    keys = None if keys is None else keys[:-1]
    # One step more than there are drafts, for the cache: the last of them may be kept.
    state, (drafts, logits) = jax.lax.scan(one, state, keys, length=num_drafts + 1)
    return drafts[:-1], logits[:-1], state.cache


def _verify(params, state, drafts, config, vocab_limit):
    """Logits [K + 1, V] after the newest token and after each draft, and the cache with them."""
    tokens = jnp.concatenate([state.token, drafts])[None]  # [1, K + 1]
    batch = {
        'tokens': tokens,
        'positions': state.position[:, None] + jnp.arange(tokens.shape[1]),
        'segment_ids': jnp.ones_like(tokens),
    }
    model, variables = Transformer(config), {'params': params}
    features, cache = model.apply(variables, batch, cache=state.cache, method='features')
    return model.apply(variables, features, method='logits')[0, :, :vocab_limit], cache


def _advanced(pair, cache, draft_cache, new, made, eos_id) -> Pair:
    """The pair with the first `made` of the tokens `new` [K + 1], or those up to the row's end."""
    is_end = (new == eos_id) & (jnp.arange(len(new)) < made)
    made = jnp.where(is_end.any(), jnp.argmax(is_end) + 1, made).astype(jnp.int32)
    state = pair.state.replace(
        cache=_rewound(cache, pair.state.cache, made),
        token=new[made - 1][None],
        position=pair.state.position + made,
        count=pair.count + made,
        ended=is_end.any()[None],
    )
    return Pair(state, _rewound(draft_cache, pair.draft_cache, made))


def _rewound(cache, before, made):
    """The cache with `made` tokens more than `before`; what is written next replaces the rest."""
    return tuple(
        new.replace(index=(old.index + made).astype(old.index.dtype))
        for new, old in zip(cache, before, strict=True)
    )
