"""A stack of layers, scanned or looped, rematerialised or not; nothing else knows which."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.config import TransformerConfig
from transformer.modules.block import Block
from transformer.modules.cache import LayerCache
from transformer.modules.context import Context, drop
from transformer.modules.positions import POSITIONS
from transformer.modules.weights import make_norm

STACKS = ('decoder', 'encoder')


class Period(nn.Module):
    """The layers of one period of `config.pattern`, as the scan over periods runs them."""

    config: TransformerConfig
    stack: str
    block: type[nn.Module]

    def setup(self):
        self.slots = [
            self.block(self.config, self.stack, kind, name=f'slot_{slot}')
            for slot, kind in enumerate(self.config.pattern)
        ]

    def __call__(self, x, first, context):
        for slot, block in enumerate(self.slots):
            x, _ = block(x, first + slot, context)
        return x, None


class Stack(nn.Module):
    """Positions, layers and last norm of the stack 'encoder' or 'decoder'.

    With `config.scan_layers`, whole periods of the layer pattern are scanned (parameters under
    `layers/slot_i`, with a leading axis) and the rest is unrolled (`layer_i`); without it, all
    layers are `layer_i`. `unstack_layers` turns the one tree into the other.
    """

    config: TransformerConfig
    stack: str

    def setup(self):
        config = self.config
        depth = stack_depth(config, self.stack)
        self.position = POSITIONS[config.position](config, bidirectional=self.stack == 'encoder')
        if config.embedding_norm:
            self.embedding_norm = make_norm(config)
        if config.norm_placement not in ('post', 'deepnorm'):
            self.final_norm = make_norm(config)
        self.periods = depth // len(config.pattern) if config.scan_layers else 0
        scanned = self.periods * len(config.pattern)
        if self.periods:
            self.layers = nn.scan(
                Period,
                variable_axes={'params': 0, 'intermediates': 0},
                split_rngs={'params': True},
                in_axes=(0, nn.broadcast),
                length=self.periods,
            )(config, self.stack, self._block(in_scan=True))
        self.unrolled = [
            self._block()(
                config, self.stack, config.pattern[i % len(config.pattern)], name=f'layer_{i}'
            )
            for i in range(scanned, depth)
        ]

    def __call__(
        self,
        x: jax.Array,
        context: Context,
        cache: tuple[LayerCache, ...] | None = None,
        memory: tuple[Any, ...] | None = None,
    ) -> tuple[jax.Array, tuple[LayerCache, ...] | None]:
        """Features [B, T, D] of embedded tokens x [B, T, D], and the caches with them added.

        Args:
            cache, memory: one entry a layer: cached self-attention, projected encoder memory.

        Raises:
            ValueError: a cache or memory is given to scanned layers.
        """
        if cache is not None or memory is not None:
            self._check_unrolled()
        bias_fn, bias_params = self.position.bias()
        context = context.replace(bias_fn=bias_fn, bias_params=bias_params)
        context = context.at_site(STACKS.index(self.stack))
        x = self.position.add(x, context.positions)
        if self.config.embedding_norm:
            x = self.embedding_norm(x)
        x = drop(x, context.dropout, 'embedding', 0)
        period = len(self.config.pattern)
        if self.periods:
            x, _ = self.layers(x, jnp.arange(self.periods) * period, context)
        new_cache = []
        for i, block in enumerate(self.unrolled):
            layer_cache = None if cache is None else cache[i]
            layer_memory = None if memory is None else memory[i]
            number = self.periods * period + i
            x, layer_cache = block(x, number, context, layer_cache, layer_memory)
            new_cache.append(layer_cache)
        if hasattr(self, 'final_norm'):
            x = self.final_norm(x)
        return x, None if cache is None else tuple(new_cache)

    def project_memory(self, memory: jax.Array) -> tuple[tuple[jax.Array, jax.Array], ...]:
        """The cross-attention keys and values of every layer.

        Raises:
            ValueError: the layers are scanned.
        """
        self._check_unrolled()
        return tuple(block.project_memory(memory) for block in self.unrolled)

    def _check_unrolled(self):
        if self.periods:
            raise ValueError('Caches need unrolled layers: use transformer.modules.unstack_layers.')

    def _block(self, in_scan=False):
        remat = self.config.remat
        if remat == 'none':
            return Block
        policy = None if remat == 'full' else getattr(jax.checkpoint_policies, remat)
        return nn.remat(Block, policy=policy, prevent_cse=not in_scan)


def stack_depth(config: TransformerConfig, stack: str) -> int:
    """Layers of the stack 'encoder' or 'decoder'."""
    return config.num_layers if stack == 'decoder' else config.encoder_layers


def unstack_layers(params: dict[str, Any], config: TransformerConfig) -> dict[str, Any]:
    """The parameters of a scanned model as those of the same model with scan_layers=False.

    Args:
        params: of `Transformer`, or any tree of that structure (gradients, moments).
    """
    period = len(config.pattern)

    def unstack(stack):
        stack = dict(stack)
        slots = stack.pop('layers', {})
        for name, slot in slots.items():
            offset = int(name.removeprefix('slot_'))
            for i in range(jax.tree.leaves(slot)[0].shape[0]):
                layer = jax.tree.map(lambda leaf, i=i: leaf[i], slot)
                stack[f'layer_{i * period + offset}'] = layer
        return stack

    stacks = {name: unstack(params[name]) for name in ('encoder', 'decoder') if name in params}
    return params | stacks


def stack_layers(params: dict[str, Any], config: TransformerConfig) -> dict[str, Any]:
    """The inverse of `unstack_layers`: parameters for the model with scan_layers=True."""
    period = len(config.pattern)

    def stacked(stack, depth):
        stack = dict(stack)
        periods = depth // period
        layers = [stack.pop(f'layer_{i}') for i in range(periods * period)]
        if periods:
            stack['layers'] = {
                f'slot_{slot}': jax.tree.map(
                    lambda *leaves: jnp.stack(leaves), *layers[slot::period]
                )
                for slot in range(period)
            }
        return stack

    stacks = {
        name: stacked(params[name], stack_depth(config, name))
        for name in ('encoder', 'decoder')
        if name in params
    }
    return params | stacks
