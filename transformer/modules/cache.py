"""Keys and values of the past: an argument and a result of the model, never hidden state."""

import functools

import jax
import jax.numpy as jnp
from flax import struct

from transformer.config import TransformerConfig


@struct.dataclass
class LayerCache:
    """What one layer's self-attention keeps. Every leaf has the batch first.

    Attributes:
        key, value: [B, K, S, H], keys already rotated. With heads outside, a step on a CPU is
            faster for a batch of rows, though slower for a single one (docs/results.md).
        positions: [B, S] of the cached tokens.
        segment_ids: [B, S], 0 = an empty slot.
        index: [B] the slot that the next token of each row goes to.
    """

    key: jax.Array
    value: jax.Array
    positions: jax.Array
    segment_ids: jax.Array
    index: jax.Array


def init_cache(config: TransformerConfig, batch: int, size: int) -> tuple[LayerCache, ...]:
    """Empty caches of `size` slots for the layers of the stack that makes the logits."""
    shape = (batch, config.kv_heads, size, config.dim_per_head)
    layer = LayerCache(
        key=jnp.zeros(shape, config.dtype),
        value=jnp.zeros(shape, config.dtype),
        positions=jnp.zeros((batch, size), jnp.int32),
        segment_ids=jnp.zeros((batch, size), jnp.int32),
        index=jnp.zeros(batch, jnp.int32),
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

    Padding (segment 0) may stand on either side of a row. That on the right does not advance the
    row's index: the next token overwrites it. The caller sees to it that T slots are left, for
    padding too: a write past the end would land on the last slots.

    Raises:
        ValueError: T exceeds the size of the cache.
    """
    length, size = key.shape[1], cache.key.shape[2]
    if length > size:
        raise ValueError(f'{length} tokens do not fit a cache of {size} slots.')

    def write(slots, new, axis=0):
        update = functools.partial(jax.lax.dynamic_update_slice_in_dim, axis=axis)
        return jax.vmap(update)(slots, new.astype(slots.dtype), cache.index)

    used = jnp.where(segment_ids > 0, jnp.arange(1, length + 1), 0).max(axis=1)
    return LayerCache(
        key=write(cache.key, key.swapaxes(1, 2), axis=1),
        value=write(cache.value, value.swapaxes(1, 2), axis=1),
        positions=write(cache.positions, positions),
        segment_ids=write(cache.segment_ids, segment_ids),
        index=cache.index + used.astype(cache.index.dtype),
    )
