"""Low-rank adapters (LoRA, Hu et al. 2021): small matrices trained beside kernels that stay.

An adapted kernel W has `kernel_a` and `kernel_b` beside it in the tree of parameters, and the model
runs with W + alpha / rank * A B (equation 3).
"""

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from ml_collections import ConfigDict

from transformer.errors import UserError
from transformer.modules.axes import is_scanned, map_parameters, parameter_axes

ALL_BUT_ADAPTERS = r'(?<!/kernel_[ab])$'  # finds the paths of what stays


def add_adapters(params: Any, lora: ConfigDict, seed: Any) -> Any:
    """The parameters with adapters beside the kernels whose path `lora.paths` finds.

    A is normal with variance 1 / fan in and B is 0, so that the model is at first what it was.
    With `lora.rank` 0 nothing is added.

    Raises:
        UserError: there is no such kernel.
    """
    if not lora.rank:
        return params
    leaves = flatten_dict(params, sep='/')
    adapted = [name for name in leaves if name.endswith('/kernel') and re.search(lora.paths, name)]
    if not adapted:
        raise UserError(f'lora.paths {lora.paths!r} finds no kernel among the parameters.')
    for number, name in enumerate(sorted(adapted)):
        kernel = leaves[name]
        first = int(is_scanned(name))
        middle = first + len(parameter_axes(name)[0])
        inputs, outputs = kernel.shape[:middle], kernel.shape[middle:]
        key = jax.random.fold_in(jax.random.key(seed), number)
        a = jax.random.normal(key, (*inputs, lora.rank), kernel.dtype)
        leaves[f'{name}_a'] = a * math.prod(inputs[first:]) ** -0.5
        leaves[f'{name}_b'] = jnp.zeros((*inputs[:first], lora.rank, *outputs), kernel.dtype)
    return unflatten_dict(leaves, sep='/')


def merge_adapters(params: Any, scale: float) -> Any:
    """The parameters of the model that the adapters make, which has none.

    Args:
        params: with adapters; without any they are returned as they are.
        scale: alpha / rank.
    """
    leaves = flatten_dict(params, sep='/')
    for name in [name for name in leaves if name.endswith('/kernel_a')]:
        a, b = leaves.pop(name), leaves.pop(f'{name[:-1]}b')
        kernel = leaves[name.removesuffix('_a')]
        layers = kernel.shape[: a.ndim + b.ndim - 2 - kernel.ndim]  # of a scan
        rank = a.shape[-1]
        product = a.reshape(*layers, -1, rank) @ b.reshape(*layers, rank, -1)
        leaves[name.removesuffix('_a')] = kernel + scale * product.reshape(kernel.shape)
    return unflatten_dict(leaves, sep='/')


def stop_frozen(params: Any, frozen: str) -> Any:
    """The parameters, those whose path `frozen` finds without a gradient; '' finds none."""

    def stop(name, leaf):
        return jax.lax.stop_gradient(leaf) if frozen and re.search(frozen, name) else leaf

    return map_parameters(stop, params)


def frozen_paths(config: ConfigDict) -> str:
    """The regular expression of the parameters that training leaves as they are; '': none."""
    frozen = config.train.frozen
    if not config.lora.rank:
        return frozen
    return f'{ALL_BUT_ADAPTERS}|{frozen}' if frozen else ALL_BUT_ADAPTERS


def adapter_scale(lora: ConfigDict) -> float:
    """alpha / rank; 0 without adapters."""
    return lora.alpha / lora.rank if lora.rank else 0.0
