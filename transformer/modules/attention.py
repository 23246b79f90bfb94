"""Multi-head attention with its parameters: self-attention, cached or not, and cross-attention."""

import jax
from flax import linen as nn

from transformer.config import TransformerConfig
from transformer.functional import dot_product_attention, merge_heads, split_heads
from transformer.modules.cache import (
    LayerCache,
    append,
    merge_rows_and_heads,
    split_rows_and_heads,
)
from transformer.modules.context import Context
from transformer.modules.positions import POSITIONS
from transformer.modules.weights import RMSNorm, Weights


class Attention(nn.Module):
    """Attention of one layer over its own tokens or over an encoder's memory.

    Attributes:
        kind: 'global', or 'local' for a sliding window of `config.window` keys.
        causal: a query sees keys at its own and earlier positions only.
        gain, depth: of the initial kernels, see `kernel_init`.
    """

    config: TransformerConfig
    kind: str = 'global'
    causal: bool = False
    gain: float = 1.0
    depth: int = 1

    def setup(self):
        config = self.config
        width, heads = (config.embed_dim,), (config.num_heads, config.dim_per_head)
        kv_heads = (config.kv_heads, config.dim_per_head)
        bias = config.attention_bias != 'none'
        # A logit scale other than head_dim^-0.5 is made up for in the initial queries (T5).
        scale_gain = 1.0
        if config.init == 'fan_in' and config.attention_scale is not None:
            scale_gain = config.dim_per_head**-0.5 / config.attention_scale
        self.query = Weights(config, width, heads, bias, scale_gain)
        self.key = Weights(config, width, kv_heads, bias)
        self.value = Weights(config, width, kv_heads, bias, self.gain)
        out_bias = config.attention_bias == 'all'
        self.out = Weights(config, heads, width, out_bias, self.gain, self.depth)
        if config.qk_norm:
            self.query_norm, self.key_norm = RMSNorm(config), RMSNorm(config)

    def __call__(
        self, x: jax.Array, context: Context, cache: LayerCache | None = None
    ) -> tuple[jax.Array, LayerCache | None]:
        """Self-attention of x [B, T, D]; with a cache, to its tokens and to these."""
        query = self._query(x)  # [B, T, N, H]
        key, value = self.key_value(x)  # [B, T, K, H]
        rotate = POSITIONS[self.config.position].rotate
        query = rotate(self.config, self.kind, query, context.positions)
        key = rotate(self.config, self.kind, key, context.positions)
        where = {
            'bias': context.bias,
            'mask': None if context.mask is None else context.mask[:, None],  # [B, 1, T, S]
            'is_causal': self.causal,
            'local_window_size': self._window,
        }
        segment_ids = context.segment_ids
        if cache is None:
            where['query_segment_ids'] = segment_ids
        else:
            cache = append(cache, key, value, context.positions, segment_ids)
            key, value = (split_rows_and_heads(c, len(x)) for c in (cache.key, cache.value))
            where |= {
                'query_segment_ids': segment_ids,
                'key_value_segment_ids': cache.segment_ids,
                'query_positions': context.positions,
                'key_value_positions': cache.positions,
            }
        return self._attend(query, key, value, context, **where), cache

    def cross(
        self, x: jax.Array, context: Context, memory: tuple[jax.Array, jax.Array] | None = None
    ) -> jax.Array:
        """Attention of x [B, T, D] to `context.memory`, or to what `project_memory` made of it."""
        if memory is None:
            key, value = self.key_value(context.memory)
        else:
            key, value = (split_rows_and_heads(m, len(x)) for m in memory)  # [B, S, K, H]
        where = {}
        if context.memory_segment_ids is not None:
            where['query_segment_ids'] = context.segment_ids
            where['key_value_segment_ids'] = context.memory_segment_ids
        return self._attend(self._query(x), key, value, context, **where)

    def key_value(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Keys (normed, not rotated) and values of x [B, S, D]: [B, S, K, H] each."""
        key = split_heads(x, *self.key())
        return self.key_norm(key) if self.config.qk_norm else key, split_heads(x, *self.value())

    def project_memory(self, memory: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Keys and values [B K, S, H] of memory [B, S, D], laid out as those of a cache."""
        key, value = self.key_value(memory)
        return merge_rows_and_heads(key), merge_rows_and_heads(value)

    def _query(self, x):
        query = split_heads(x, *self.query())
        return self.query_norm(query) if self.config.qk_norm else query

    @property
    def _window(self) -> tuple[int, int] | None:
        if self.kind == 'global':
            return None
        reach = self.config.window - 1  # the window counts the query's own key
        return reach, 0 if self.causal else reach

    def _attend(self, query, key, value, context, **where):
        config, dropout = self.config, context.dropout
        if dropout is not None and dropout.attention is not None:
            where |= {'dropout_rate': dropout.attention, 'dropout_key': dropout.keys}
        wants_weights = not self.is_initializing() and self.is_mutable_collection('intermediates')
        out = dot_product_attention(
            query,
            key,
            value,
            scale=config.attention_scale,
            softcap=config.attention_softcap,
            implementation=None
            if config.attention_implementation == 'auto'
            else config.attention_implementation,
            return_weights=wants_weights,
            **where,
        )
        if wants_weights:
            out, weights = out  # [B, N, T, S]
            self.sow('intermediates', 'attention_weights', weights)
        return merge_heads(out, *self.out())  # [B, T, D]
