"""Keys and values of the past: an argument and a result of the model, never hidden state."""

import jax
import jax.numpy as jnp
from flax import struct

from transformer.config import TransformerConfig


@struct.dataclass
class LayerCache:
    """What one layer's self-attention keeps.

    Attributes:
        key, value: [B K, S, H], the heads of a row one after another, keys already rotated. With
            rows and heads as one axis a batched product reads them as they are; XLA copied a cache
            with an axis of size 1 at every step.
        positions: [B, S] of the cached tokens.
        segment_ids: [B, S], 0 = an empty slot.
        index: scalar, the slot that the next token goes to. It is the same for all rows, so that
            they are written as one slice; where rows differ in length, the slots between are empty.
    """

    key: jax.Array
    value: jax.Array
    positions: jax.Array
    segment_ids: jax.Array
    index: jax.Array


def init_cache(config: TransformerConfig, batch: int, size: int) -> tuple[LayerCache, ...]:
    """Empty caches of `size` slots for the layers of the stack that makes the logits."""
    shape = (batch * config.kv_heads, size, config.dim_per_head)
    layer = LayerCache(
        key=jnp.zeros(shape, config.dtype),
        value=jnp.zeros(shape, config.dtype),
        positions=jnp.zeros((batch, size), jnp.int32),
        segment_ids=jnp.zeros((batch, size), jnp.int32),
        index=jnp.zeros((), jnp.int32),
    )
    return (layer,) * config.num_layers


def append(
    cache: LayerCache,
    key: jax.Array,
    value: jax.Array,
    positions: jax.Array,
    segment_ids: jax.Array,
) -> LayerCache:
    """The cache with T tokens more in each row, key and value [B, T, K, H].

    Padding (segment 0) may stand on either side of a row. Where the last tokens are padding in all
    rows they do not advance the index: the next token overwrites them. The caller sees to it that
    T slots are left, for padding too: a write past the end would land on the last slots.

    Raises:
        ValueError: T exceeds the size of the cache.
    """
    length, size = key.shape[1], cache.key.shape[1]
    if length > size:
        raise ValueError(f'{length} tokens do not fit a cache of {size} slots.')

    def write(slots, new):
        new = new.astype(slots.dtype)
        return jax.lax.dynamic_update_slice_in_dim(slots, new, cache.index, axis=1)

    used = jnp.where(segment_ids > 0, jnp.arange(1, length + 1), 0).max()
    return LayerCache(
        key=write(cache.key, merge_rows_and_heads(key)),
        value=write(cache.value, merge_rows_and_heads(value)),
        positions=write(cache.positions, positions),
        segment_ids=write(cache.segment_ids, segment_ids),
        index=cache.index + used.astype(cache.index.dtype),
    )


def merge_rows_and_heads(x: jax.Array) -> jax.Array:
    """Keys or values [B, S, K, H] as a cache has them, [B K, S, H]."""
    B, S, K, H = x.shape
    return x.swapaxes(1, 2).reshape(B * K, S, H)


def split_rows_and_heads(x: jax.Array, rows: int) -> jax.Array:
    """Keys or values [B K, S, H] of a cache of B `rows` as attention takes them, [B, S, K, H]."""
    return x.reshape(rows, -1, *x.shape[1:]).swapaxes(1, 2)
