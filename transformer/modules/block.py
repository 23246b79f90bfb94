"""One layer: attention, cross-attention, feed-forward, and where the norms stand around them."""

from collections.abc import Callable
from typing import Any

import jax
from flax import linen as nn

from transformer.config import TransformerConfig
from transformer.modules.attention import Attention
from transformer.modules.cache import LayerCache
from transformer.modules.context import Context, drop
from transformer.modules.feed_forward import FeedForward
from transformer.modules.weights import make_norm


def deepnorm_scales(config: TransformerConfig, stack: str) -> tuple[float, float]:
    """DeepNorm's (alpha, beta): residual factor and initial gain (Wang et al. 2022, table 1)."""
    decoder = config.num_layers
    if config.topology != 'encoder_decoder':
        return (2 * decoder) ** 0.25, (8 * decoder) ** -0.25
    if stack == 'decoder':
        return (3 * decoder) ** 0.25, (12 * decoder) ** -0.25
    depths = config.encoder_layers**4 * decoder
    return 0.81 * depths ** (1 / 16), 0.87 * depths ** (-1 / 16)


class Block(nn.Module):
    """A layer of the stack 'encoder' or 'decoder'; the decoder's is causal.

    Attributes:
        kind: 'global', or 'local' for windowed self-attention.
    """

    config: TransformerConfig
    stack: str
    kind: str

    def setup(self):
        config, decoder = self.config, self.stack == 'decoder'
        self.has_cross = decoder and config.topology == 'encoder_decoder'
        depth = config.num_layers if decoder else config.encoder_layers
        self.alpha, gain = 1.0, 1.0
        if config.norm_placement == 'deepnorm':
            self.alpha, gain = deepnorm_scales(config, self.stack)
            depth = 0  # its gain is all the scaling by depth that the residual outputs get
        self.self_attention = Attention(config, self.kind, decoder, gain, depth)
        if self.has_cross:
            self.cross_attention = Attention(config, gain=gain, depth=depth)
        self.feed_forward = FeedForward(config, gain, depth)
        for name in self._norm_names():
            setattr(self, name, make_norm(config))

    def __call__(
        self,
        x: jax.Array,
        number: int | jax.Array,
        context: Context,
        cache: LayerCache | None = None,
        memory: tuple[jax.Array, jax.Array] | None = None,
    ) -> tuple[jax.Array, LayerCache | None]:
        """x [B, T, D] after this layer, and the cache with its keys and values added.

        Args:
            number: of the layer in its stack; tells the layers' dropout apart.
            memory: the projected keys and values of `cross_attention`, if computed before.
        """
        context = context.at_site(1 + number)  # 0 is the embedding's

        def attend(x):
            nonlocal cache
            attended, cache = self.self_attention(x, context.at_site(0), cache)
            return drop(attended, context.dropout, 'residual', 1)

        def attend_memory(x):
            attended = self.cross_attention.cross(x, context.at_site(2), memory)
            return drop(attended, context.dropout, 'residual', 3)

        def feed(x):
            return drop(self.feed_forward(x), context.dropout, 'residual', 4)

        if self.config.norm_placement == 'parallel':
            return self._residual('layer', x, lambda x: attend(x) + feed(x)), cache
        if self.config.norm_placement == 'parallel_two':
            fed = feed(self.feed_forward_norm(x))
            return self._residual('self_attention', x, attend) + fed, cache
        x = self._residual('self_attention', x, attend)
        if self.has_cross:
            x = self._residual('cross_attention', x, attend_memory)
        return self._residual('feed_forward', x, feed), cache

    def project_memory(self, memory: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The keys and values [B K, S, H] of the cross-attention to memory [B, S, D]."""
        return self.cross_attention.project_memory(memory)

    def _residual(self, name: str, x: jax.Array, sublayer: Callable[[jax.Array], Any]) -> jax.Array:
        """The one place that knows where the norms of a sublayer stand.

        pre and parallel (Xiong et al. 2020; Wang and Komatsuzaki 2021), parallel_two (Black et al.
        2022), post (Vaswani et al. 2017), sandwich (Ding et al. 2021), deepnorm (Wang et al. 2022).
        """
        placement = self.config.norm_placement
        norm = getattr(self, f'{name}_norm')
        if placement in ('pre', 'parallel', 'parallel_two'):
            return x + sublayer(norm(x))
        if placement == 'sandwich':
            return x + getattr(self, f'{name}_post_norm')(sublayer(norm(x)))
        return norm(self.alpha * x + sublayer(x))  # post and deepnorm

    def _norm_names(self):
        if self.config.norm_placement == 'parallel':
            return ['layer_norm']
        sublayers = ['self_attention', 'feed_forward']
        if self.has_cross:
            sublayers.insert(1, 'cross_attention')
        names = [f'{name}_norm' for name in sublayers]
        if self.config.norm_placement == 'sandwich':
            names += [f'{name}_post_norm' for name in sublayers]
        return names
