"""Attention by kernels of accelerators: what each needs, what it refuses, and cuDNN's.

A kernel takes an `AttentionArguments`, as every implementation does, and is never given what it
would drop or compute otherwise: `unsupported` says why, for the message to the user, for the
automatic choice and for the table in docs/attention.md.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.backend import get_backend

from transformer.functional.attention_arguments import AttentionArguments, allowed_keys
from transformer.functional.splash import splash_attention, splash_refuses

SHORTEST = 128  # queries and keys: below this the automatic choice is none of the kernels
LARGEST_MASK = 2**28  # elements of a dense mask that the automatic choice still has cuDNN read


class Kernel(NamedTuple):
    """One implementation for one kind of device."""

    attend: Callable[[AttentionArguments], tuple[Array, None]]
    refuses: Callable[[AttentionArguments], str | None]  # why not these arguments
    device: str  # what it needs, in words
    is_here: Callable[[], bool]


def unsupported(
    name: str, arguments: AttentionArguments, return_residual: bool = False
) -> str | None:
    """Why the kernel of this name cannot compute this; None: it can."""
    kernel = KERNELS[name]
    if not kernel.is_here():
        return f'needs {kernel.device}, and this process computes on {jax.default_backend()}'
    return refused(name, arguments, return_residual)


def refused(name: str, arguments: AttentionArguments, return_residual: bool = False) -> str | None:
    """The same, but for the device."""
    if return_residual:
        return 'returns no residual'
    return KERNELS[name].refuses(arguments)


def best_kernel(arguments: AttentionArguments, return_residual: bool) -> str | None:
    """The name of the kernel to take here by itself, if any.

    None for short sequences, most of whose only block would be padding, and where cuDNN would read
    a large dense mask.
    """
    (B, T), S = arguments.query.shape[:2], arguments.key.shape[1]
    if min(T, S) < SHORTEST:
        return None
    for name in KERNELS:
        if unsupported(name, arguments, return_residual) is None:
            large = name == 'cudnn' and B * T * S > LARGEST_MASK and needs_mask(arguments)
            return None if large else name
    return None


# cuDNN.


def cudnn_refuses(arguments: AttentionArguments) -> str | None:
    """Why `jax.nn` and cuDNN cannot take these arguments, or None if they can.

    Limits that hold on every NVIDIA GPU from Ampere on: newer ones take larger heads.
    """
    a, dtype = arguments, arguments.query.dtype
    (T, _, H), (S, _, V) = a.query.shape[1:], a.value.shape[1:]
    odd = (T % 2 or S % 2) and needs_mask(a)
    reasons = {
        f'takes bfloat16 or float16, not {dtype}': dtype not in (jnp.bfloat16, jnp.float16),
        f'takes a head_dim that is a multiple of 8 and at most 128, not {H}': H % 8 or H > 128,
        f'takes values of the head_dim of the keys, {H}, not {V}': V != H,
        'takes no softcap': a.softcap is not None,
        'takes no bias, whose gradient it may lack': a.bias is not None or a.bias_fn is not None,
        'takes no sinks': a.sinks is not None,
        'drops no weights (dropout_rate)': a.dropout_words is not None,
        'takes one scale for all': jnp.ndim(a.scale) > 0,
        f'takes a mask, segment ids or lengths for even lengths only, not {T} and {S}': odd,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def cudnn_attention(arguments: AttentionArguments) -> tuple[Array, None]:
    """Flash attention by `jax.nn.dot_product_attention`, on an NVIDIA GPU.

    Causality and a window to the left it honours by structure. Whatever else forbids a query a key
    becomes a dense mask [B, 1, T, S], which takes memory for each pair of query and key.

    Args:
        arguments: such that `cudnn_refuses` has nothing to say.

    Returns:
        Output [B, T, N, H], and None in the place of a residual.
    """
    a, query, scale = arguments, arguments.query, arguments.scale
    mask = cudnn_mask(a) if needs_mask(a) else None
    if not isinstance(scale, int | float):
        query, scale = (query * jnp.asarray(scale, jnp.float32)).astype(query.dtype), 1.0
    attend = functools.partial(
        jax.nn.dot_product_attention,
        scale=scale,
        is_causal=_structurally_causal(a),
        local_window_size=(a.window[0], 0) if a.window and mask is None else None,
        implementation='cudnn',
    )
    return _batchable(attend)(query, a.key, a.value, mask), None


def needs_mask(arguments: AttentionArguments) -> bool:
    """Whether cuDNN is to read a mask."""
    a = arguments
    ordered = (a.is_causal or a.window is not None) and not _structurally_causal(a)
    return ordered or a.mask is not None or a.key_segment_ids is not None


def cudnn_mask(arguments: AttentionArguments) -> Array:
    """Everything that forbids a query a key, bool [B, 1, T, S], or with all heads."""
    (B, T), S = arguments.query.shape[:2], arguments.key.shape[1]
    mask = allowed_keys(arguments)
    return jnp.broadcast_to(mask, (B, mask.shape[1], T, S))


def _structurally_causal(a: AttentionArguments) -> bool:
    """Whether no query sees a later index. A window that ends at the query is such a rule too."""
    square = a.query.shape[1] == a.key.shape[1] and a.by_index
    return square and (a.is_causal or (a.window is not None and a.window[1] == 0))


def _batchable(attend: Callable[..., Array]) -> Callable[..., Array]:
    """`attend`(query, key, value, mask=mask) under any vmap, and zero for queries without a key.

    JAX's own vmap of it fails for operands that not all examples have for themselves, such as the
    mask of a batch that trials share. Here all examples become one batch, forward and backward; for
    that the backward pass runs the forward kernel once more.
    """

    def output(query, key, value, mask):
        attended = attend(query, key, value, mask=mask)  # [B, T, N, H]
        if mask is None:
            return attended
        some = mask.any(-1).swapaxes(1, 2)[..., None]  # [B, T, 1 or N, 1]
        return jnp.where(some, attended, 0)

    def gradients(query, key, value, mask, gradient):
        _, pull = jax.vjp(lambda *qkv: output(*qkv, mask), query, key, value)
        return pull(gradient)

    forward, backward = _joining_examples(output), _joining_examples(gradients)
    attention = jax.custom_vjp(forward)
    attention.defvjp(
        lambda *operands: (forward(*operands), operands),
        lambda operands, gradient: (*backward(*operands, gradient), None),
    )
    return attention


def _joining_examples(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of arrays [B, ...], whose vmap over E examples is one call with [E B, ...]."""
    joining = jax.custom_batching.custom_vmap(function)

    @joining.def_vmap
    def _(examples, batched, *operands):
        def joined(x, is_batched):
            x = x if is_batched else jnp.broadcast_to(x, (examples, *x.shape))
            return x.reshape(-1, *x.shape[2:])

        results = joining(*jax.tree.map(joined, operands, tuple(batched)))
        results = jax.tree.map(lambda x: x.reshape(examples, -1, *x.shape[1:]), results)
        return results, jax.tree.map(lambda _: True, results)

    return joining


KERNELS = {
    'cudnn': Kernel(
        cudnn_attention,
        cudnn_refuses,
        'an NVIDIA GPU',
        lambda: jax.default_backend() == 'gpu' and 'cuda' in get_backend().platform_version,
    ),
    'pallas': Kernel(
        splash_attention, splash_refuses, 'a TPU', lambda: jax.default_backend() == 'tpu'
    ),
}
