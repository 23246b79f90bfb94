"""Attention as XLA makes it of plain operations, with its logits in memory."""

import itertools

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from transformer.functional.attention_arguments import (
    MASKED,
    AttentionArguments,
    allowed_keys,
    dropped_weights,
    scaled_logits,
)
from transformer.functional.attention_blocks import AXES, Place, cut

GROUPED = AXES._replace(query='..T.', key='.S.', value='.S.')  # [B K, G, T, H], [B K, S, H or V]

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
    places, a = _strips(arguments), _grouped(arguments)
    parts = [_attend(cut(GROUPED, a, place) if place else a) for place in places]
    output, residual, weights = parts[0]
    if len(parts) > 1:
        S = arguments.key.shape[1]
        outputs, residuals, weights = zip(*parts, strict=True)
        weights = [_among_all(w, *p['S'], S) for w, p in zip(weights, places, strict=True)]
        output, residual, weights = (jnp.concatenate(x, 2) for x in (outputs, residuals, weights))
    return output.swapaxes(1, 2), residual.swapaxes(1, 2), weights


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


def _grouped(arguments: AttentionArguments) -> AttentionArguments:
    """Query [..., G, T, H], key [..., S, H] and value [..., S, V]: batches of matrices.

    On a CPU the batch is one axis, B K, for which XLA reads a cache in place and has its fast
    products and sums; elsewhere two, which may be sharded each.
    """
    (B, T, N, H), (_, S, K, V) = arguments.query.shape, arguments.value.shape
    batch = (B * K,) if jax.default_backend() == 'cpu' else (B, K)
    query, key, value = (x.swapaxes(1, 2) for x in arguments[:3])
    return arguments._replace(
        query=query.reshape(*batch, N // K, T, H),
        key=key.reshape(*batch, S, H),
        value=value.reshape(*batch, S, V),
    )


def _attend(arguments: AttentionArguments) -> tuple[Array, Array, Array]:
    """Output [B, N, T, V], residual [B, N, T] and weights [B, N, T, S] of grouped arguments."""
    a = arguments
    (*batch, G, T, H), S = a.query.shape, a.key.shape[-2]
    B, N = len(a.rows), len(a.heads)
    heads = (B * N,) if len(batch) == 1 else (B, N)

    def by_head(x):
        return jnp.broadcast_to(x, (B, N, *x.shape[2:])).reshape(*heads, *x.shape[2:])

    # The query heads of one key head as one long query, whatever the number of groups.
    query, key, value = a.query.reshape(*batch, G * T, H), a.key, a.value
    dtype = jnp.promote_types(query.dtype, jnp.float32)
    logits = _products(query, key, dtype)  # [..., G T, S]
    has_bias = a.bias is not None or a.bias_fn is not None
    logits = scaled_logits(logits.reshape(B, N, T, S) if has_bias else logits, a)
    allowed, sinks = allowed_keys(a), a.sinks
    if allowed is not None:
        allowed = allowed[0, 0] if allowed.shape[:2] == (1, 1) else by_head(allowed)
    if sinks is not None:
        sinks = by_head(sinks.astype(dtype)[None, :, None, None])
    weights, residual = _softmax(logits.reshape(*heads, T, S), allowed, sinks)
    # Not rounded to the value's dtype: nor is then the gradient of a sharp, low-precision row.
    kept = weights
    if a.dropout_words is not None:
        kept = dropped_weights(weights.reshape(B, N, T, S), a)
    kept = kept.reshape(*batch, G * T, S)
    output = jnp.einsum('...TS,...SV->...TV', kept, value, preferred_element_type=dtype)
    output = output.reshape(B, N, T, -1).astype(query.dtype)
    residual = jax.lax.stop_gradient(residual).reshape(B, N, T)
    return output, residual, weights.reshape(B, N, T, S)


@jax.custom_jvp
def _softmax(logits: Array, allowed: Array | None, sinks: Array | None) -> tuple[Array, Array]:
    """Weights [B, N, T, S] over the allowed keys and residual [B, N, T, 1].

    The derivative is written in the weights: of its own XLA would keep logits as well.
    """
    if allowed is not None:
        logits = jnp.where(allowed, logits, MASKED)
    # Above what is masked: all exponentials of a query without a key are 0.
    maximum = logits.max(-1, keepdims=True, initial=MASKED / 2)  # [B, N, T, 1]
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
    total = change.sum(-1, keepdims=True)  # [B, N, T, 1]
    if sinks is not None:
        total += jnp.exp(sinks - residual) * tangents[2]
    return (weights, residual), (change - weights * total, total)
