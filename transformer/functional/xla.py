"""Attention as XLA makes it of plain operations, with its logits in memory."""

import itertools

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from transformer.functional.attention_arguments import (
    MASKED,
    AttentionArguments,
    dropped_weights,
    masked_logits,
)
from transformer.functional.attention_blocks import AXES, Place, cut

# Strips of queries on a CPU: how many at most, and the fewest queries of one.
MOST_STRIPS = 4
SHORTEST_STRIP = 32
# Fewer than these are multiplied as the steps of decoding are.
FEW_QUERIES = 16


def xla_attention(arguments: AttentionArguments) -> tuple[Array, Array, Array]:
    """The plain implementation, with all logits in memory.

    On a CPU the queries are cut into strips, each with no keys but those that causality or a window
    may leave it: fewer products, and some at a time, where XLA keeps a batch of them to one core.

    Returns:
        Output [B, T, N, V], residual [B, T, N], weights [B, N, T, S].
    """
    places = _strips(arguments)
    parts = [_attend(cut(AXES, arguments, place) if place else arguments) for place in places]
    if len(parts) == 1:
        return parts[0]
    S = arguments.key.shape[1]
    outputs, residuals, weights = zip(*parts, strict=True)
    weights = [_among_all(w, *p['S'], S) for w, p in zip(weights, places, strict=True)]
    return jnp.concatenate(outputs, 1), jnp.concatenate(residuals, 1), jnp.concatenate(weights, 2)


def is_cut(arguments: AttentionArguments) -> bool:
    """Whether there are strips: on a CPU, if the positions are known to be the indices.

    Not in half precision, in which the gradients of a key would be added up strip by strip.
    """
    a = arguments
    is_bounded = a.by_index and (a.is_causal or a.window is not None)
    is_long = a.query.shape[1] >= 2 * SHORTEST_STRIP
    is_wide = a.query.dtype.itemsize >= 4
    return is_bounded and is_long and is_wide and jax.default_backend() == 'cpu'


def _strips(arguments: AttentionArguments) -> list[Place]:
    """Where queries and keys of each strip lie; of the only one, {}."""
    a = arguments
    T, S = a.query.shape[1], a.key.shape[1]
    if not is_cut(a):
        return [{}]
    count = min(MOST_STRIPS, T // SHORTEST_STRIP)
    left, right = a.window or (T, S)
    right = 0 if a.is_causal else right
    edges = [T * n // count for n in range(count + 1)]
    places = []
    for first, end in itertools.pairwise(edges):
        last_key = min(end + right, S)
        first_key = max(min(first - left, last_key - 1), 0)  # one at least, if only to mask it
        places.append({'T': (first, end - first), 'S': (first_key, last_key - first_key)})
    return places


def _among_all(weights: Array, first: int, count: int, S: int) -> Array:
    """Weights [B, N, T, count] of the keys from `first` on, 0 for the others: [B, N, T, S]."""
    return jnp.pad(weights, ((0, 0), (0, 0), (0, 0), (first, S - first - count)))


def _products(query: Array, key: Array, dtype: DTypeLike) -> Array:
    """query key^T: [..., T, S] of [..., T, H] and [..., S, H], written as XLA's CPU backend likes.

    Of few queries the keys, which are read once, come first; of many their gradient needs no
    transposed copy if they come last.
    """
    if query.shape[-2] < FEW_QUERIES:
        return jnp.einsum('...SH,...TH->...ST', key, query, preferred_element_type=dtype).mT
    return jnp.einsum('...TH,...SH->...TS', query, key, preferred_element_type=dtype)


def _attend(arguments: AttentionArguments) -> tuple[Array, Array, Array]:
    a = arguments
    (B, T, N, H), (_, S, K, V) = a.query.shape, a.value.shape
    # Heads outside, and the query heads of one key head as one long query: two plain batched
    # matmuls, whatever the number of groups. On a CPU their batch is one axis, for which XLA reads
    # a cache in place and copies it otherwise; elsewhere two, which may be sharded each.
    groups = (1, B * K) if jax.default_backend() == 'cpu' else (B, K)
    query = a.query.swapaxes(1, 2).reshape(*groups, N // K * T, H)
    key = a.key.swapaxes(1, 2).reshape(*groups, S, H)
    value = a.value.swapaxes(1, 2).reshape(*groups, S, V)
    dtype = jnp.promote_types(query.dtype, jnp.float32)
    logits = _products(query, key, dtype).reshape(B, N, T, S)
    logits = masked_logits(logits, a)
    # Rows stay in the shape of the products: of a reshaped copy, a backward pass would keep both.
    logits = logits.reshape(*groups, N // K * T, S)  # [..., N/K T, S]

    maximum = jax.lax.stop_gradient(logits).max(-1, keepdims=True, initial=MASKED)  # [..., 1]
    if a.sinks is not None:
        sinks = jnp.broadcast_to(a.sinks.astype(dtype)[:, None, None], (B, N, T, 1))
        sinks = sinks.reshape(maximum.shape)
        maximum = jnp.maximum(maximum, jax.lax.stop_gradient(sinks))
    maximum = jnp.where(maximum == MASKED, 0, maximum)  # no key: every exponential below is 0
    weights = jnp.exp(logits - maximum)  # normalised after the product with value
    total = weights.sum(-1, keepdims=True)
    if a.sinks is not None:
        total += jnp.exp(sinks - maximum)
    empty = total == 0
    total = jnp.where(empty, 1, total)

    # Not rounded to the value's dtype: nor is then the gradient of a sharp, low-precision row.
    kept = weights
    if a.dropout_words is not None:
        kept = dropped_weights(weights.reshape(B, N, T, S), a).reshape(weights.shape)
    output = jnp.einsum('BKTS,BKSV->BKTV', kept, value, preferred_element_type=dtype)
    output = (output / total).reshape(B, N, T, V).swapaxes(1, 2).astype(query.dtype)
    residual = jax.lax.stop_gradient(jnp.where(empty, MASKED, maximum + jnp.log(total)))
    residual = residual.reshape(B, N, T).swapaxes(1, 2)
    return output, residual, (weights / total).reshape(B, N, T, S)
