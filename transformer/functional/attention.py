"""Scaled dot-product attention and multi-head attention (Vaswani et al. 2017, section 3.2)."""

from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from transformer.functional.accelerators import KERNELS, best_kernel, unsupported
from transformer.functional.attention_arguments import (
    AttentionArguments,
    BiasFn,
    checked_bias,
    checked_dropout_words,
    checked_inputs,
    checked_mask,
    checked_pair,
    checked_sinks,
    checked_softcap,
    checked_window,
    cut_to_lengths,
)
from transformer.functional.attention_strips import is_cut
from transformer.functional.blockwise import blockwise_attention
from transformer.functional.cpu import on_cpu
from transformer.functional.projections import merge_heads, split_heads
from transformer.functional.xla import xla_attention


def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | tuple[BiasFn, Any] | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | ArrayLike | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
    softcap: float | None = None,
    query_segment_ids: ArrayLike | None = None,
    key_value_segment_ids: ArrayLike | None = None,
    query_positions: ArrayLike | None = None,
    key_value_positions: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    dropout_rate: float | ArrayLike = 0.0,
    dropout_key: ArrayLike | None = None,
    return_weights: bool = False,
) -> Array | tuple[Array, ...]:
    """softmax(query key^T scale + bias) value, for each head (equation 1).

    With the arguments of `jax.nn.dot_product_attention` alone the result is the same, but for
    queries that may attend to nothing: here they return exactly zero, with zero gradients.
    Logits are scaled, then capped, then biased, then masked; they and the softmax are float32, or
    float64 for float64 inputs. Keys and values that are masked out have zero weight but must be
    finite: zero times NaN is NaN.

    Args:
        query: float [B, T, N, H], or [T, N, H]: then there is no B in any shape below.
        key: [B, S, K, H], of the same dtype. N is a multiple of K: query heads n N/K to
            (n + 1) N/K - 1 share key head n (Ainslie et al. 2023).
        value: [B, S, K, V], of the same dtype.
        bias: float array added to the logits, broadcastable to [B, N, T, S], where -inf and
            finfo.min mask out. Or a pair (bias_fn, bias_params): bias_fn(bias_params,
            query_positions, key_value_positions) returns [N, T, S] or [B, N, T, S] for the
            positions below, and is differentiated with respect to bias_params.
        mask: bool, True = may attend, broadcastable to [B, N, T, S].
        scale: of the logits; None: H^-0.5.
        is_causal: attend only where key position <= query position.
        query_seq_lengths: int [B]; queries from this index on attend to nothing.
        key_value_seq_lengths: int [B]; keys from this index on are masked out.
        local_window_size: (left, right), attend only to keys at most `left` positions before and
            `right` after the query; one int stands for both. None: to all.
        implementation: 'xla', with all logits in memory; 'blockwise', in memory linear in T and S
            (but for dense biases and masks), whose gradient has no gradient in reverse mode;
            'cudnn', on NVIDIA GPUs; 'pallas', JAX's splash attention on TPUs. None: the fastest
            that takes these arguments; docs/attention.md says which each takes. All hand over to
            'xla' where weights are returned.
        return_residual: also return the logsumexp of each query's logits, sinks included, with no
            gradient; MASKED (-2.4e38) for a query that may attend to nothing.
        softcap: c; the scaled logits become c tanh(logits / c) (Gemma Team 2024).
        query_segment_ids: int [T] or [B, T]; attend only where query and key ids are equal.
        key_value_segment_ids: int [S] or [B, S]; 0 = padding or an empty cache slot, seen by no
            query. None: those of the queries, if T = S.
        query_positions: int [T] or [B, T], which causality, window and bias_fn are measured in.
            None: indices.
        key_value_positions: int [S] or [B, S]. None: those of the queries, if T = S.
        sinks: float [N], each a logit that joins its head's softmax and has no value (Xiao et
            al. 2023, as learned in gpt-oss).
        dropout_rate: of the weights, in [0, 1]. A Python 0 skips dropout; an array may be traced.
        dropout_key: one JAX key, or [B] keys, one for each row: then the mask is a function of
            (the row's key, head, query index, key index) only.
        return_weights: also return the softmax, as it is before dropout.

    Returns:
        [B, T, N, V] of the query's dtype; or a tuple of it and of what else was asked for, in
        this order: the residual [B, T, N] and the weights [B, N, T, S], both in the dtype of the
        softmax. A row of weights sums to 1 (less with sinks), or to 0 with nothing to attend to.

    Raises:
        ValueError: shapes or dtypes that do not fit, or an implementation that is unknown, needs
            another device or does not take these arguments.
    """
    batched = jnp.ndim(query) == 4
    query, key, value = checked_inputs(query, key, value)
    (B, T, N, H), S = query.shape, key.shape[1]
    bias_fn, bias_params = bias if isinstance(bias, tuple) else (None, None)
    positions = checked_pair('positions', query_positions, key_value_positions, B, T, S)
    segment_ids = checked_pair('segment_ids', query_segment_ids, key_value_segment_ids, B, T, S)
    indices = [jnp.arange(length, dtype=jnp.int32) for length in (T, S)]
    lengths = query_seq_lengths, key_value_seq_lengths
    segment_ids = cut_to_lengths(segment_ids, lengths, B, T, S)
    arguments = AttentionArguments(
        query=query,
        key=key,
        value=value,
        scale=H**-0.5 if scale is None else scale,
        softcap=checked_softcap(softcap),
        bias=None if bias_fn else checked_bias(bias, (B, N, T, S)),
        bias_fn=bias_fn,
        bias_params=bias_params,
        mask=checked_mask(mask, (B, N, T, S)),
        is_causal=is_causal,
        window=checked_window(local_window_size),
        query_positions=indices[0] if positions[0] is None else positions[0],
        key_positions=indices[1] if positions[1] is None else positions[1],
        query_segment_ids=segment_ids[0],
        key_segment_ids=segment_ids[1],
        sinks=checked_sinks(sinks, N),
        dropout_rate=dropout_rate,
        dropout_words=checked_dropout_words(dropout_rate, dropout_key, B, batched),
        rows=jnp.arange(B, dtype=jnp.int32),
        heads=jnp.arange(N, dtype=jnp.int32),
        query_indices=indices[0],
        key_indices=indices[1],
    )
    chosen = _checked_implementation(implementation, arguments, return_residual, return_weights)
    output, residual, *weights = IMPLEMENTATIONS[chosen](arguments)
    results = (output, *[residual] * return_residual, *weights[:return_weights])
    results = results if batched else tuple(x[0] for x in results)
    return results if len(results) > 1 else results[0]


def multi_head_attention(
    query_input: ArrayLike,
    memory: ArrayLike | None,
    w_query: ArrayLike,
    w_key: ArrayLike,
    w_value: ArrayLike,
    w_out: ArrayLike,
    *,
    b_query: ArrayLike | None = None,
    b_key: ArrayLike | None = None,
    b_value: ArrayLike | None = None,
    b_out: ArrayLike | None = None,
    **attention_arguments: Any,
) -> Array | tuple[Array, ...]:
    """Concat(head_1, ..., head_N) W^O with head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V).

    Vaswani et al. 2017, section 3.2.2.

    Args:
        query_input: float [B, T, D], or [T, D].
        memory: float [B, S, D'], or [S, D'], which keys and values are made of: an encoder's
            output for cross-attention. None: `query_input`, for self-attention.
        w_query: [D, N, H].
        w_key, w_value: [D', K, H], N a multiple of K; the value's H may be another.
        w_out: [N, H, D], H that of the value.
        b_query, b_key, b_value, b_out: biases [N, H], [K, H], [K, H] and [D].
        **attention_arguments: further arguments of `dot_product_attention`.

    Returns:
        [B, T, D], or a tuple that `dot_product_attention` would return, its output so projected.

    Raises:
        ValueError: as `dot_product_attention`, or widths that differ.
    """
    memory = query_input if memory is None else memory
    query = split_heads(query_input, w_query, b_query)  # [B, T, N, H]
    key = split_heads(memory, w_key, b_key)  # [B, S, K, H]
    value = split_heads(memory, w_value, b_value)  # [B, S, K, H]
    results = dot_product_attention(query, key, value, **attention_arguments)
    if isinstance(results, tuple):
        return merge_heads(results[0], w_out, b_out), *results[1:]
    return merge_heads(results, w_out, b_out)


def _checked_implementation(
    name: str | None, arguments: AttentionArguments, return_residual: bool, return_weights: bool
) -> str:
    """The implementation of this name, which takes the arguments; of None, the best that does."""
    if name not in (None, *IMPLEMENTATIONS):
        names = ', '.join(sorted(IMPLEMENTATIONS))
        raise ValueError(f'implementation must be one of {names}, or None; not {name!r}.')
    T, S = arguments.query.shape[1], arguments.key.shape[1]
    if return_weights or T * S == 0:
        return 'xla'  # the only one that has the weights, or takes no keys
    name = name or best_implementation(arguments, return_residual)
    if name in KERNELS and (reason := unsupported(name, arguments, return_residual)):
        raise ValueError(
            f'implementation={name!r} {reason}: leave it None, which chooses one that does, or '
            "take 'blockwise' or 'xla'."
        )
    return name


def best_implementation(arguments: AttentionArguments, return_residual: bool) -> str:
    """The name of the fastest implementation that takes these arguments.

    On a CPU blocks win once all logits of a head leave its caches; of strips, once those of one do,
    or once all logits together take 8 MiB. Other devices have kernels of their own; beside these
    they prefer one large product, until its float32 logits take a GiB.
    """
    (B, T, N, _), S = arguments.query.shape, arguments.key.shape[1]
    if on_cpu():
        in_strips = is_cut(arguments) and T * S < 2**20 and B * N * T * S <= 2**21
        return 'blockwise' if T > 1 and T * S >= 2**18 and not in_strips else 'xla'
    by_blocks = 'blockwise' if T > 1 and B * N * T * S >= 2**28 else 'xla'
    return best_kernel(arguments, return_residual) or by_blocks


# Functions of AttentionArguments to output and residual (None from kernels of accelerators), and to
# the weights where there are any.
IMPLEMENTATIONS = {
    'xla': xla_attention,
    'blockwise': blockwise_attention,
    **{name: kernel.attend for name, kernel in KERNELS.items()},
}
