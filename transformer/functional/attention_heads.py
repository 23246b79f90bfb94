"""The arguments of attention by heads: batches of matrices, as devices multiply them.

The query heads of one key head are one long query, whatever the number of groups. On a CPU all
batches are one axis, for which XLA reads a cache in place and has its fast products and sums;
elsewhere rows and heads are an axis each, which may be sharded.
"""

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
from transformer.functional.cpu import on_cpu

# Fewer queries than these are multiplied as the steps of decoding are.
FEW_QUERIES = 16


def by_heads(arguments: AttentionArguments) -> AttentionArguments:
    """The same with query [..., G, T, H], key [..., S, H] and value [..., S, V].

    ... are B K on a CPU, and nothing if that is 1; else B, K. `arguments.rows` and
    `arguments.heads` still count B and N.
    """
    key, value = map(keys_by_heads, (arguments.key, arguments.value))
    query = rows_by_heads(arguments.query, arguments.key.shape[2])
    return arguments._replace(query=query, key=key, value=value)


def keys_by_heads(x: Array) -> Array:
    """[B, S, K, H] as [..., S, H]."""
    return _merged(x.swapaxes(1, 2))


def rows_by_heads(x: Array, kv_heads: int) -> Array:
    """[B, T, N, V] as [..., G, T, V]."""
    B, T, N, V = x.shape
    return _merged(x.swapaxes(1, 2).reshape(B, kv_heads, N // kv_heads, T, V))


def _merged(x: Array) -> Array:
    """The first two axes of `x` as one on a CPU, and as none if both are 1."""
    if not on_cpu():
        return x
    B, N, *rest = x.shape
    # With an axis of 1, XLA would not write exponentials over the logits that it makes without.
    return x.reshape(rest if B * N == 1 else (B * N, *rest))


def scales_query(arguments: AttentionArguments) -> bool:
    """Whether not the logits are scaled but the query, of fewer numbers; half precision rounds."""
    return arguments.query.dtype.itemsize >= 4


def scaled_query(arguments: AttentionArguments) -> AttentionArguments:
    """The same with the scale in the query, if `scales_query`."""
    a = arguments
    if not scales_query(a):
        return a
    return a._replace(query=a.query * jnp.asarray(a.scale, a.query.dtype), scale=1.0)


def long_query(x: Array) -> Array:
    """[..., G, T, H] as [..., G T, H]."""
    *batch, G, T, H = x.shape
    return x.reshape(*batch, G * T, H)


def by_query_head(x: Array, arguments: AttentionArguments) -> Array:
    """[B or 1, N or 1, ...] as the leading axes of `head_logits`, ...."""
    B, N = len(arguments.rows), len(arguments.heads)
    return _merged(jnp.broadcast_to(x, (B, N, *x.shape[2:])))


def head_products(query: Array, key: Array, dtype: DTypeLike) -> Array:
    """query key^T: [..., T, S] of [..., T, H] and [..., S, H], written as XLA's CPU backend likes.

    Of few queries the keys, which are read once, come first; of many their gradient needs no
    transposed copy if they come last. For few there is one more axis: XLA then reads a cache in
    place, here and in `head_sums`.
    """
    if query.shape[-2] >= FEW_QUERIES:
        return jnp.einsum('...TH,...SH->...TS', query, key, preferred_element_type=dtype)
    query, key = query[None], key[None]
    return jnp.einsum('...SH,...TH->...ST', key, query, preferred_element_type=dtype).mT[0]


def head_sums(weights: Array, value: Array, dtype: DTypeLike) -> Array:
    """weights value: [..., T, V] of [..., T, S] and [..., S, V]."""
    if weights.shape[-2] >= FEW_QUERIES:
        return jnp.einsum('...TS,...SV->...TV', weights, value, preferred_element_type=dtype)
    weights, value = weights[None], value[None]
    return jnp.einsum('...TS,...SV->...TV', weights, value, preferred_element_type=dtype)[0]


def head_logits(products: Array, arguments: AttentionArguments) -> Array:
    """Scales, caps and biases products [..., G T, S].

    Returns:
        [B N, T, S] on a CPU, [T, S] if B N is 1; else [B, N, T, S].
    """
    a, has_bias = arguments, arguments.bias is not None or arguments.bias_fn is not None
    whole = len(a.rows), len(a.heads), len(a.query_indices), products.shape[-1]  # [B, N, T, S]
    logits = scaled_logits(products.reshape(whole) if has_bias else products, a)
    return _merged(logits.reshape(whole))


def head_mask(arguments: AttentionArguments) -> Array | None:
    """`allowed_keys`, broadcastable to `head_logits`."""
    allowed = allowed_keys(arguments)
    if allowed is None:
        return None
    # The same for all heads, it is not to be broadcast: XLA's sums would leave their fast form.
    return allowed[0, 0] if allowed.shape[:2] == (1, 1) else by_query_head(allowed, arguments)


def dropped_by_head(weights: Array, arguments: AttentionArguments) -> Array:
    """Dropout, if any, of weights in the shape of `head_logits`."""
    a = arguments
    if a.dropout_words is None:
        return weights
    whole = weights.reshape(len(a.rows), len(a.heads), *weights.shape[-2:])
    return dropped_weights(whole, a).reshape(weights.shape)


def masked_logits(products: Array, arguments: AttentionArguments) -> Array:
    """`head_logits` of products [..., G T, S], `MASKED` where a query may not attend to a key."""
    logits, allowed = head_logits(products, arguments), head_mask(arguments)
    return logits if allowed is None else jnp.where(allowed, logits, MASKED)


def finite(x: Array) -> Array:
    """`x`, or 0 for a query that has no key: exponentials of its masked logits then are 0."""
    return jnp.where(x == MASKED, 0, x)


def by_tokens(x: Array, arguments: AttentionArguments) -> Array:
    """[X, T, V], with X the leading axes of `head_logits`, or [..., G, T, V], as [B, T, N, V]."""
    rows, heads = len(arguments.rows), len(arguments.heads)
    return x.reshape(rows, heads, *x.shape[-2:]).swapaxes(1, 2)


def softmax_dtype(x: Array) -> jnp.dtype:
    """At least float32."""
    return jnp.promote_types(x.dtype, jnp.float32)
