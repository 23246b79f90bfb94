"""Flax Linen modules around the pure functions."""

from transformer.modules.cache import LayerCache, init_cache
from transformer.modules.context import Dropout
from transformer.modules.stack import stack_layers, unstack_layers
from transformer.modules.transformer import Memory, Transformer

__all__ = [
    'Dropout',
    'LayerCache',
    'Memory',
    'Transformer',
    'init_cache',
    'stack_layers',
    'unstack_layers',
]
