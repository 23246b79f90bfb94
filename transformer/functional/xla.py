"""Attention as XLA makes it of plain operations, with its logits in memory."""

import jax
import jax.numpy as jnp
from jax import Array

from transformer.functional.attention_arguments import MASKED, AttentionArguments
from transformer.functional.attention_blocks import BY_HEADS, cut
from transformer.functional.attention_heads import (
    by_heads,
    by_query_head,
    dropped_by_head,
    head_logits,
    head_mask,
    head_products,
    head_sums,
    long_query,
    softmax_dtype,
)
from transformer.functional.attention_strips import is_cut, strips

MOST_STRIPS = 4


def xla_attention(arguments: AttentionArguments) -> tuple[Array, Array, Array]:
    """The plain implementation, with all logits in memory.

    On a CPU the queries are cut into strips, each with no keys but those that causality or a window
    may leave it: fewer products, and some at a time, where XLA keeps a batch of them to one core.

    Returns:
        Output [B, T, N, V], residual [B, T, N], weights [B, N, T, S].
    """
    a = by_heads(arguments)
    if is_cut(arguments):
        T, S = arguments.query.shape[1], arguments.key.shape[1]
        places = strips(arguments, T, S, MOST_STRIPS)
        outputs, residuals, weights = zip(
            *(_attend(cut(BY_HEADS, a, place)) for place in places), strict=True
        )
        weights = [_among_all(w, *p['S'], S) for w, p in zip(weights, places, strict=True)]
        output, residual, weights = (jnp.concatenate(x, 2) for x in (outputs, residuals, weights))
    else:
        output, residual, weights = _attend(a)
    return output.swapaxes(1, 2), residual.swapaxes(1, 2), weights


def _among_all(weights: Array, first: int, count: int, S: int) -> Array:
    """Weights [B, N, T, count] of the keys from `first` on, 0 for the others: [B, N, T, S]."""
    return jnp.pad(weights, ((0, 0), (0, 0), (0, 0), (first, S - first - count)))


def _attend(arguments: AttentionArguments) -> tuple[Array, Array, Array]:
    """Output [B, N, T, V], residual [B, N, T] and weights [B, N, T, S] of arguments by heads."""
    a = arguments
    (*batch, G, T, _), (S, V) = a.query.shape, a.value.shape[-2:]
    dtype = softmax_dtype(a.query)
    logits = head_logits(head_products(long_query(a.query), a.key, dtype), a)
    sinks = a.sinks
    if sinks is not None:
        sinks = by_query_head(sinks.astype(dtype)[None, :, None, None], a)
    weights, residual = _softmax(logits, head_mask(a), sinks)
    # Not rounded to the value's dtype: nor is then the gradient of a sharp, low-precision row.
    kept = dropped_by_head(weights, a).reshape(*batch, G * T, S)
    output = head_sums(kept, a.value, dtype)
    heads = len(a.rows), len(a.heads), T
    residual = jax.lax.stop_gradient(residual).reshape(heads)
    output = output.reshape(*heads, V).astype(a.query.dtype)
    return output, residual, weights.reshape(*heads, S)


@jax.custom_jvp
def _softmax(logits: Array, allowed: Array | None, sinks: Array | None) -> tuple[Array, Array]:
    """Weights [..., T, S] over the allowed keys and residual [..., T, 1].

    The derivative is written in the weights: of its own XLA would keep logits as well.
    """
    if allowed is not None:
        logits = jnp.where(allowed, logits, MASKED)
    # A little above what is masked: all exponentials of a query without a key are 0.
    maximum = logits.max(-1, keepdims=True, initial=0.999 * MASKED)  # [..., T, 1]
    if sinks is not None:
        maximum = jnp.maximum(maximum, sinks)
    weights = jnp.exp(logits - maximum)
    total = weights.sum(-1, keepdims=True)
    if sinks is not None:
        total += jnp.exp(sinks - maximum)
    residual = jnp.where(total == 0, MASKED, maximum + jnp.log(total))
    return weights / jnp.maximum(total, 1), residual  # the largest key of a query adds 1


@_softmax.defjvp
def _softmax_jvp(primals, tangents):
    (weights, residual), sinks = _softmax(*primals), primals[2]
    change = weights * tangents[0]
    total = change.sum(-1, keepdims=True)  # [..., T, 1]
    if sinks is not None:
        total += jnp.exp(sinks - residual) * tangents[2]
    return (weights, residual), (change - weights * total, total)
