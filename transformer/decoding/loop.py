"""The programs of decoding that run on the device: encoder, prefill, a loop over new tokens."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from transformer.config import TransformerConfig
from transformer.functional import greedy, sample
from transformer.modules import LayerCache, Memory, Transformer, init_cache

CHUNK = 64  # new tokens of a row that one call of `decode` makes at most


@struct.dataclass
class State:
    """Where the rows of a batch stand between two chunks.

    Attributes:
        cache: one entry a layer, holding all tokens of a row but the newest.
        token: [B] int32, the newest token of each row.
        position: [B] int32, its index in the row.
        count: int32 scalar, tokens made so far in each row that has not ended.
        ended: [B] bool, True from a row's end of text on; nothing of that row changes any more.
        memory: what the encoder of an encoder_decoder made of the sources; it never changes.
    """

    cache: tuple[LayerCache, ...]
    token: jax.Array
    position: jax.Array
    count: jax.Array
    ended: jax.Array
    memory: Memory | None = None


@functools.partial(jax.jit, static_argnames='config')
def encode(
    params: Any, tokens: jax.Array, lengths: jax.Array, *, config: TransformerConfig
) -> Memory:
    """The memory of sources [B, S] int32, padded on the right, of the lengths [B] int32."""
    batch = {'encoder_tokens': tokens} | layout(tokens, lengths, 'encoder_')
    return Transformer(config).apply({'params': params}, batch, method='encode_memory')


def layout(tokens: jax.Array, lengths: jax.Array, prefix: str = '') -> dict[str, jax.Array]:
    """Positions and segment ids [B, T] of rows padded on the right, as a batch has them."""
    index = jnp.arange(tokens.shape[1], dtype=jnp.int32)
    valid = index < lengths[:, None]  # [B, T]
    return {
        f'{prefix}positions': jnp.where(valid, index, 0),
        f'{prefix}segment_ids': valid.astype(jnp.int32),
    }


@functools.partial(jax.jit, static_argnames=('config', 'size'))
def prefill(
    params: Any,
    tokens: jax.Array,
    lengths: jax.Array,
    newest: jax.Array,
    memory: Memory | None = None,
    *,
    config: TransformerConfig,
    size: int,
) -> State:
    """The state before the first new token, from one pass over the prompts.

    The last token of each prompt stays out of the cache, as `decode` reads the newest token before
    it makes another: so all logits are made there, and none for the rest of a prompt.

    Args:
        params: of `Transformer(config)`, which does not scan its layers.
        tokens: [B, P] int32, prompts without their last token, padded on the right.
        lengths: [B] int32, of each row without the padding.
        newest: [B] int32, the last token of each prompt.
        memory: of an encoder_decoder, from `encode`.
        size: slots of the cache, at least P.
    """
    B, _ = tokens.shape
    batch = {'tokens': tokens} | layout(tokens, lengths)
    cache = init_cache(config, B, size)
    model = Transformer(config)
    _, cache = model.apply({'params': params}, batch, cache=cache, memory=memory, method='features')
    return State(
        cache=cache,
        token=newest,
        position=lengths,
        count=jnp.zeros((), jnp.int32),
        ended=jnp.zeros(B, bool),
        memory=memory,
    )


@functools.partial(jax.jit, static_argnames=('config', 'vocab_limit'), donate_argnames='state')
def decode(
    params: Any,
    state: State,
    key: jax.Array | None,
    rows: jax.Array,
    options: dict[str, jax.Array] | None,
    eos_id: jax.Array,
    stop: jax.Array,
    *,
    config: TransformerConfig,
    vocab_limit: int,
) -> tuple[State, jax.Array]:
    """Makes new tokens until a row has `stop` of them, CHUNK were made or all rows have ended.

    Args:
        params: as in `prefill`.
        state: consumed: its buffers become those of the result.
        key, rows, options: see `choose_tokens`.
        eos_id: int32 scalar, the token that ends a row; -1: none does.
        stop: int32 scalar, tokens a row may have in all.
        vocab_limit: ids from here on are not made.

    Returns:
        The state, and [B, CHUNK] int32 whose columns up to the rise of `state.count` are the new
        tokens. Rows that have ended hold `eos_id`.
    """
    start = state.count

    def running(carry):
        state, _ = carry
        return (state.count < stop) & (state.count - start < CHUNK) & ~state.ended.all()

    def step(carry):
        state, tokens = carry
        logits, cache = next_logits(params, state, config)
        logits = logits[:, :vocab_limit]
        token = choose_tokens(logits, key, rows, state.count, options)  # [B]
        token = jnp.where(state.ended, eos_id, token)
        new = state.replace(
            cache=cache,
            token=token,
            position=jnp.where(state.ended, state.position, state.position + 1),
            count=state.count + 1,
            ended=state.ended | (token == eos_id),
        )
        column = state.count - start
        return new, jax.lax.dynamic_update_index_in_dim(tokens, token, column, axis=1)

    tokens = jnp.zeros((len(rows), CHUNK), jnp.int32)
    return jax.lax.while_loop(running, step, (state, tokens))


def next_logits(
    params: Any, state: State, config: TransformerConfig
) -> tuple[jax.Array, tuple[LayerCache, ...]]:
    """Logits [B, V] of the token after the newest, and the caches with the newest added."""
    model = Transformer(config)
    batch = {
        'tokens': state.token[:, None],  # [B, 1]
        'positions': state.position[:, None],
        'segment_ids': (~state.ended).astype(jnp.int32)[:, None],
    }
    features, cache = model.apply(
        {'params': params}, batch, cache=state.cache, memory=state.memory, method='features'
    )
    logits = model.apply({'params': params}, features, method='logits')  # [B, 1, V]
    return logits[:, 0], cache


def choose_tokens(
    logits: jax.Array,
    key: jax.Array | None,
    rows: jax.Array,
    count: jax.Array,
    options: dict[str, jax.Array] | None,
) -> jax.Array:
    """The next token of each row: [B] int32 from logits [B, V].

    Args:
        key: of the whole run. What a row draws is a function of the key, of the row's number and
            of `count`, whatever the rest of the batch.
        rows: [B] int32, the number of each row in the run.
        count: int32 scalar, tokens made before this one.
        options: scalars, arguments of `sample`; None takes the largest logit.
    """
    if options is None:
        return greedy(logits)

    def draw(row, logits):
        row_key = jax.random.fold_in(jax.random.fold_in(key, row), count)
        return sample(row_key, logits, **options)

    return jax.vmap(draw)(rows, logits)
