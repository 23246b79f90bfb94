"""Attention by JAX's splash attention kernel for TPUs (jax.experimental.pallas)."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from transformer.functional.attention_arguments import AttentionArguments

LANES = 128  # what the kernel wants blocks of queries and keys to be a multiple of
LARGEST_BLOCK = 512
HEAD_UNIT = 64  # half a register's lanes: head sizes are padded to a multiple

# A sink of this logit changes no row that has a key, and gives the others something to attend to:
# the kernel alone would return their mean of all values, or NaN. It is above what the kernel writes
# for a masked logit (-2.4e38), so that these vanish beside it.
EMPTY_SINK = -1e30


def splash_refuses(arguments: AttentionArguments) -> str | None:
    """Why the kernel cannot take these arguments, or None if it can."""
    a, dtype = arguments, arguments.query.dtype
    uses_positions = a.is_causal or a.window is not None
    static_softcap = a.softcap is None or isinstance(a.softcap, int | float)
    reasons = {
        f'takes float32 or bfloat16, not {dtype}': dtype not in (jnp.float32, jnp.bfloat16),
        'takes no mask (structure and segment ids it does)': a.mask is not None,
        'takes no bias': a.bias is not None or a.bias_fn is not None,
        'drops no weights (dropout_rate)': a.dropout_words is not None,
        'takes a softcap that is a Python number only': not static_softcap,
        'takes one scale for all': jnp.ndim(a.scale) > 0,
        'takes no positions beside causality or a window': uses_positions and not a.by_index,
        f'takes sinks beside float32 only, not {dtype}, in which it would round their gradient': (
            a.sinks is not None and dtype != jnp.float32
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def splash_attention(
    arguments: AttentionArguments, *, interpret: bool = False
) -> tuple[Array, None]:
    """Attention in memory linear in the lengths, on a TPU.

    The kernel has no scale, so that the query is scaled, in its own dtype, before it. Lengths are
    padded to whole blocks and heads to whole registers.

    Args:
        arguments: such that `splash_refuses` has nothing to say.
        interpret: compute the kernel by plain operations, on any device.

    Returns:
        Output [B, T, N, V], and None in the place of a residual.
    """
    a = arguments
    (T, N, _), (S, _, V) = a.query.shape[1:], a.value.shape[1:]
    blocks = _block(T), _block(S)
    lengths = tuple(
        -(-length // block) * block for length, block in zip((T, S), blocks, strict=True)
    )
    kernel = _kernel(N, lengths, blocks, a.is_causal, a.window, a.softcap, interpret)
    scale = jnp.asarray(a.scale, jnp.float32)
    query = (a.query.astype(jnp.float32) * scale).astype(a.query.dtype)
    operands = [
        _padded(x.swapaxes(1, 2), (0, 0, length - x.shape[1], -x.shape[3] % HEAD_UNIT))
        for x, length in zip((query, a.key, a.value), (lengths[0], *lengths[1:] * 2), strict=True)
    ]  # [B, N, T', H'], [B, K, S', H'], [B, K, S', V']
    sinks = jnp.full(N, EMPTY_SINK, query.dtype) if a.sinks is None else a.sinks.astype(query.dtype)
    attend = jax.vmap(kernel, (0, 0, 0, 0, None))
    output = attend(*operands, _segment_ids(a, lengths), sinks)  # [B, N, T', V']
    return output[:, :, :T, :V].swapaxes(1, 2), None


def _block(length: int) -> int:
    """The size of as few blocks as the limit allows, that pad a length the least."""
    count = -(-length // LARGEST_BLOCK)
    return -(-length // (count * LANES)) * LANES


def _padded(x: Array, after: tuple[int, ...], value: int = 0) -> Array:
    """`x` with so many of `value` after it along each axis."""
    if not any(after):
        return x
    return jnp.pad(x, [(0, size) for size in after], constant_values=value)


def _segment_ids(a: AttentionArguments, lengths: tuple[int, int]) -> Any:
    """Ids [B, T'] and [B, S'] that are equal exactly where a query may attend to a key.

    The kernel compares them and knows no padding: that of keys becomes -1, that of queries -2.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    (B, T), S = a.query.shape[:2], a.key.shape[1]
    ids = a.query_segment_ids, a.key_segment_ids
    if a.key_segment_ids is None:
        if lengths[1] == S:
            return None
        ids = jnp.ones(T, jnp.int32), jnp.ones(S, jnp.int32)
    sides = []
    for x, length, padding in zip(ids, lengths, (-2, -1), strict=True):
        x = jnp.broadcast_to(jnp.where(x > 0, x, padding), (B, x.shape[-1]))
        sides.append(_padded(x, (0, length - x.shape[1]), padding))
    return splash.SegmentIds(*sides)


@functools.lru_cache(maxsize=64)
def _kernel(
    N: int,
    lengths: tuple[int, int],
    blocks: tuple[int, int],
    is_causal: bool,
    window: tuple[int, int] | None,
    softcap: float | None,
    interpret: bool,
) -> Any:
    """The kernel of N heads for padded lengths, with which of its blocks it skips.

    Kept, because that takes seconds to find for long sequences; as numpy arrays, which belong to no
    trace and no device.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    if window is not None:
        left, right = window
        mask = splash.LocalMask(lengths, (left, 0 if is_causal else right), offset=0)
    else:
        mask = splash.CausalMask(lengths) if is_causal else splash.FullMask(lengths)
    queries, keys = blocks
    sizes = splash.BlockSizes(
        block_q=queries,
        block_kv=keys,
        block_q_dkv=queries,
        block_kv_dkv=keys,
        block_q_dq=queries,
        block_kv_dq=keys,
    )
    with jax.ensure_compile_time_eval():
        kernel = splash.make_splash_mha_single_device(
            splash.MultiHeadMask([mask] * N),
            block_sizes=sizes,
            attn_logits_soft_cap=softcap,
            interpret=interpret,
        )
        return jax.tree.map(np.asarray, kernel)
