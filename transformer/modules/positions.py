"""Position schemes: one class each, with three hooks of which it overrides what it needs."""

import functools
from typing import Any

import jax
from flax import linen as nn

from transformer.config import TransformerConfig
from transformer.functional import (
    alibi_bias,
    alibi_slopes,
    apply_rope,
    dynamic_ntk,
    relative_bias,
    rope_frequencies,
    sinusoidal,
)
from transformer.modules.weights import Table


class Position(nn.Module):
    """No positions; the base of all schemes. Positions are [B, T], indices in the own sequence.

    Attributes:
        bidirectional: whether queries see keys on both sides (an encoder).
    """

    config: TransformerConfig
    bidirectional: bool

    def add(self, x: jax.Array, positions: jax.Array) -> jax.Array:
        """The embedded tokens [B, T, D] with their positions added."""
        return x

    def bias(self) -> tuple[Any, Any]:
        """The structured bias (bias_fn, bias_params) of every layer's attention, or two Nones."""
        return None, None

    @staticmethod
    def rotate(
        config: TransformerConfig, kind: str, x: jax.Array, positions: jax.Array
    ) -> jax.Array:
        """Queries or keys [B, T, N, H] of a layer of this kind, rotated by their positions."""
        return x


class Sinusoidal(Position):
    """Vaswani et al. 2017, section 3.5."""

    def add(self, x, positions):
        layout = self.config.sinusoidal_layout
        return x + sinusoidal(positions, x.shape[-1], layout=layout).astype(x.dtype)


class Learned(Position):
    """A learned vector a position (Devlin et al. 2019, Radford et al. 2019)."""

    def setup(self):
        config = self.config
        rows = config.max_length + config.position_offset
        self.embedding = Table(config, rows, config.embed_dim, config.init_std)

    def add(self, x, positions):
        length, rows = positions.shape[1], self.config.max_length
        if length > rows:
            raise ValueError(f'{length} tokens in a row exceed the {rows} learned positions.')
        return x + self.embedding()[positions + self.config.position_offset]


class Rope(Position):
    """Su et al. 2021; the scalings are those of `rope_frequencies` and `dynamic_ntk`."""

    @staticmethod
    def rotate(config, kind, x, positions):
        rope = config.rope
        base, scaling = rope.base, rope.scaling
        if kind == 'local' and rope.local_base is not None:
            base, scaling = rope.local_base, 'none'
        original_length = rope.original_length or config.max_length
        frequencies, attention_factor = rope_frequencies(
            config.rotary_dim,
            base=base,
            scaling='none' if scaling == 'dynamic' else scaling,
            factor=rope.factor,
            original_length=original_length,
            low_frequency_factor=rope.low_frequency_factor,
            high_frequency_factor=rope.high_frequency_factor,
            beta_fast=rope.beta_fast,
            beta_slow=rope.beta_slow,
        )
        if scaling != 'none' and rope.attention_factor is not None:
            attention_factor = rope.attention_factor
        rotate = functools.partial(
            apply_rope, layout=rope.layout, attention_factor=attention_factor
        )
        if scaling == 'dynamic':
            frequencies = dynamic_ntk(frequencies, positions, rope.factor, original_length)
            return jax.vmap(rotate)(x, positions, frequencies)
        return rotate(x, positions, frequencies)


class Alibi(Position):
    """Press et al. 2022."""

    def bias(self):
        return alibi_bias, alibi_slopes(self.config.num_heads)


class Relative(Position):
    """T5's bucketed bias, one table shared by all layers of a stack (Raffel et al. 2020)."""

    def setup(self):
        config = self.config
        self.buckets = Table(config, config.relative.num_buckets, config.num_heads, config.init_std)

    def bias(self):
        max_distance = self.config.relative.max_distance
        return functools.partial(
            relative_bias, max_distance=max_distance, bidirectional=self.bidirectional
        ), self.buckets()


POSITIONS = {
    'none': Position,
    'sinusoidal': Sinusoidal,
    'learned': Learned,
    'rope': Rope,
    'alibi': Alibi,
    'relative': Relative,
}
