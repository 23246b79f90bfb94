"""Parameters of projections and norms: Flax owns them here, the pure functions use them."""

import math

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.config import TransformerConfig
from transformer.functional import layer_norm, rms_norm


def kernel_init(
    config: TransformerConfig, fan_in: int, fan_out: int, gain: float = 1.0, residual_depth: int = 0
) -> jax.nn.initializers.Initializer:
    """The initializer of a kernel under `config.init`.

    Args:
        fan_in, fan_out: sizes of the contracted and of the produced axes.
        gain: further factor on the standard deviation (DeepNorm's beta).
        residual_depth: layers of the stack, if the kernel writes to the residual stream.
    """
    if config.init == 'xavier':  # Glorot and Bengio 2010, equation 16
        bound = gain * math.sqrt(6 / (fan_in + fan_out))
        return lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, -bound, bound)
    std = fan_in**-0.5 if config.init == 'fan_in' else config.init_std
    if config.init == 'gpt2' and residual_depth:  # Radford et al. 2019, section 2.3
        std /= math.sqrt(2 * residual_depth)
    return nn.initializers.normal(gain * std)


class Weights(nn.Module):
    """Kernel and bias of one projection, in the computation's dtype.

    Attributes:
        inputs, outputs: the contracted and the produced axes; the kernel is [*inputs, *outputs].
        gain, residual_depth: see `kernel_init`.
    """

    config: TransformerConfig
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    use_bias: bool = False
    gain: float = 1.0
    residual_depth: int = 0

    @nn.compact
    def __call__(self) -> tuple[jax.Array, jax.Array | None]:
        config = self.config
        init = kernel_init(
            config, math.prod(self.inputs), math.prod(self.outputs), self.gain, self.residual_depth
        )
        dtype = jnp.dtype(config.param_dtype)
        kernel = self.param('kernel', init, (*self.inputs, *self.outputs), dtype)
        if not self.use_bias:
            return jnp.asarray(kernel, config.dtype), None
        bias = self.param('bias', nn.initializers.zeros, self.outputs, dtype)
        return jnp.asarray(kernel, config.dtype), jnp.asarray(bias, config.dtype)


class Table(nn.Module):
    """A learned table [rows, width], read by index or multiplied whole."""

    config: TransformerConfig
    rows: int
    width: int
    std: float

    @nn.compact
    def __call__(self) -> jax.Array:
        init = nn.initializers.normal(self.std)
        dtype = jnp.dtype(self.config.param_dtype)
        table = self.param('table', init, (self.rows, self.width), dtype)
        return jnp.asarray(table, self.config.dtype)


def norm_scale(norm: nn.Module, shape: tuple[int, ...]) -> jax.Array:
    """The factor of a norm, 1 at first: its parameter `scale` plus `config.norm_offset`.

    With an offset of 1, weight decay and low precision concern the difference from 1 (Gemma).
    """
    config = norm.config
    init = nn.initializers.constant(1 - config.norm_offset)
    scale = norm.param('scale', init, shape, jnp.dtype(config.param_dtype))
    if config.norm_offset:
        scale = jnp.asarray(scale, jnp.promote_types(scale.dtype, jnp.float32))
        scale += config.norm_offset
    return scale


class LayerNorm(nn.Module):
    """`layer_norm` over the last axis with a learned scale and, by config, a bias."""

    config: TransformerConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale, bias = norm_scale(self, x.shape[-1:]), None
        if self.config.norm_bias:
            dtype = jnp.dtype(self.config.param_dtype)
            bias = self.param('bias', nn.initializers.zeros, x.shape[-1:], dtype)
        return layer_norm(x, scale, bias, eps=self.config.norm_eps)


class RMSNorm(nn.Module):
    """`rms_norm` over the last axis with a learned scale."""

    config: TransformerConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return rms_norm(x, norm_scale(self, x.shape[-1:]), eps=self.config.norm_eps)


NORMS = {'layernorm': LayerNorm, 'rmsnorm': RMSNorm}


def make_norm(config: TransformerConfig) -> nn.Module:
    """The norm that `config.norm` names."""
    return NORMS[config.norm](config)
