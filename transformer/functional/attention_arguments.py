"""The arguments of attention, checked and normalised once, and what all implementations share.

An implementation that works by blocks slices the fields of an `AttentionArguments`, and takes
logits, mask and dropout of the slice from the same functions as the plain one.
"""

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from transformer.functional.dropout import apply_dropout, dropout_bits, needs_dropout
from transformer.functional.masks import (
    causal_mask,
    combine_masks,
    length_mask,
    segment_mask,
    window_mask,
)

BiasFn = Callable[[Any, Array, Array], Array]

# Stands for minus infinity, whose differences are NaN: within the range of float32 and bfloat16,
# with room left to subtract a logit. A row whose maximum is not above it has no key.
MASKED = -2.4e38


class AttentionArguments(NamedTuple):
    """What an implementation computes from: checked, every array with its batch axis."""

    query: Array  # [B, T, N, H]
    key: Array  # [B, S, K, H]
    value: Array  # [B, S, K, V]
    scale: float | ArrayLike
    softcap: float | None
    bias: Array | None  # broadcastable to [B, N, T, S]
    bias_fn: BiasFn | None  # its result is added as bias is
    bias_params: Any
    mask: Array | None  # bool, broadcastable to [B, N, T, S]
    is_causal: bool
    window: tuple[int, int] | None  # (left, right)
    query_positions: Array  # int32 [T], [1, T] or [B, T]
    key_positions: Array  # int32 [S], [1, S] or [B, S]
    query_segment_ids: Array | None  # int32 [T], [1, T] or [B, T]; 0 beyond a sequence length
    key_segment_ids: Array | None  # int32 [S], [1, S] or [B, S]; 0: masked out
    sinks: Array | None  # [N]
    dropout_rate: float | ArrayLike
    dropout_words: Array | None  # uint32 [words] or [B, words]; None: no dropout
    # What a block's rows, heads, queries and keys are numbered in the whole: int32.
    rows: Array  # [B]
    heads: Array  # [N]
    query_indices: Array  # [T]
    key_indices: Array  # [S]

    @property
    def by_index(self) -> bool:
        """Whether the positions are the indices, none having been given."""
        return self.query_positions is self.query_indices and self.key_positions is self.key_indices


def scaled_logits(logits: Array, arguments: AttentionArguments) -> Array:
    """Scales, caps and biases the products query key^T [B, N, T, S]."""
    a = arguments
    queries, keys = a.query_positions, a.key_positions
    logits = logits * jnp.asarray(a.scale, logits.dtype)
    if a.softcap is not None:
        logits = a.softcap * jnp.tanh(logits / a.softcap)
    if a.bias is not None:
        logits = logits + a.bias.astype(logits.dtype)
    if a.bias_fn is not None:
        bias = checked_bias(a.bias_fn(a.bias_params, queries, keys), logits.shape)
        logits = logits + bias.astype(logits.dtype)
    return logits


def allowed_keys(arguments: AttentionArguments) -> Array | None:
    """bool, broadcastable to [B, N, T, S], where a query may attend to a key; None: everywhere."""
    a = arguments
    queries, keys = a.query_positions, a.key_positions
    return combine_masks(
        a.mask,
        causal_mask(queries, keys) if a.is_causal else None,
        window_mask(queries, keys, *a.window) if a.window else None,
        None if a.key_segment_ids is None else segment_mask(a.query_segment_ids, a.key_segment_ids),
    )


def dropped_weights(weights: Array, arguments: AttentionArguments) -> Array:
    """Dropout of weights [B, N, T, S]: see `dropout_key` of `dot_product_attention`."""
    a = arguments
    words, coordinates = a.dropout_words, [a.heads[:, None, None], a.query_indices[:, None]]
    if words.ndim == 1:
        coordinates.insert(0, a.rows[:, None, None, None])
    else:
        words = words[:, None, None, None]  # [B, 1, 1, 1, words]
    return apply_dropout(weights, a.dropout_rate, dropout_bits(words, *coordinates, a.key_indices))


def checked_inputs(query, key, value) -> tuple[Array, Array, Array]:
    """query, key and value as arrays with a batch axis."""
    inputs = {'query': query, 'key': key, 'value': value}
    inputs = {name: jnp.asarray(x) for name, x in inputs.items()}
    shapes = ', '.join(f'{name} {list(x.shape)}' for name, x in inputs.items())
    dtypes = ', '.join(f'{name} {x.dtype}' for name, x in inputs.items())
    q, k, v = inputs.values()
    if not (q.ndim == k.ndim == v.ndim and q.ndim in (3, 4)):
        raise ValueError(f'query, key and value must all be BTNH or all TNH; got {shapes}.')
    if not (q.dtype == k.dtype == v.dtype and jnp.issubdtype(q.dtype, jnp.floating)):
        raise ValueError(f'query, key and value must have one floating dtype; got {dtypes}.')
    if q.ndim == 3:
        q, k, v = q[None], k[None], v[None]
    if q.shape[0] != k.shape[0] or k.shape[:3] != v.shape[:3] or q.shape[3] != k.shape[3]:
        raise ValueError(
            f'query, key and value must be [B, T, N, H], [B, S, K, H] and [B, S, K, V]; '
            f'got {shapes}.'
        )
    if k.shape[2] == 0 or q.shape[2] % k.shape[2]:
        raise ValueError(f"the query's heads must be a multiple of the key's; got {shapes}.")
    return q, k, v


def checked_bias(bias, shape) -> Array | None:
    """A dense bias with four axes, broadcastable to `shape` [B, N, T, S]."""
    if bias is not None and not jnp.issubdtype(jnp.asarray(bias).dtype, jnp.floating):
        raise ValueError(
            f'bias must be floating, not {jnp.asarray(bias).dtype}: pass a boolean array as mask.'
        )
    return _broadcastable('bias', bias, shape)


def checked_mask(mask, shape) -> Array | None:
    """A boolean mask with four axes, broadcastable to `shape` [B, N, T, S]."""
    if mask is not None and jnp.asarray(mask).dtype != bool:
        raise ValueError(
            f'mask must be boolean, True = may attend, not {jnp.asarray(mask).dtype}: '
            'pass an additive mask as bias.'
        )
    return _broadcastable('mask', mask, shape)


def _broadcastable(name, x, shape) -> Array | None:
    """`x` with four axes, each as in `shape` [B, N, T, S] or 1."""
    if x is None:
        return None
    x = jnp.asarray(x)
    full = (1,) * (4 - x.ndim) + x.shape
    if len(full) != 4 or any(
        size not in (1, whole) for size, whole in zip(full, shape, strict=True)
    ):
        raise ValueError(
            f'{name} {list(x.shape)} does not broadcast to [B, N, T, S] = {list(shape)}.'
        )
    return x.reshape(full)


def checked_pair(name, query, key, B, T, S) -> tuple[Array | None, Array | None]:
    """Integers of queries and keys, the keys' by default those of the queries."""
    if query is None and key is None:
        return None, None
    if query is None:
        raise ValueError(f'key_value_{name} needs query_{name} beside it.')
    if key is None:
        if T != S:
            raise ValueError(
                f'query_{name} needs key_value_{name}: there are {T} queries, {S} keys.'
            )
        key = query
    return (
        _integers(f'query_{name}', query, ((T,), (1, T), (B, T))),
        _integers(f'key_value_{name}', key, ((S,), (1, S), (B, S))),
    )


def _integers(name, x, shapes) -> Array:
    x = jnp.asarray(x)
    if x.shape not in shapes or not jnp.issubdtype(x.dtype, jnp.integer):
        expected = ' or '.join(str(list(shape)) for shape in dict.fromkeys(shapes))
        raise ValueError(f'{name} must be integers {expected}; got {x.dtype} {list(x.shape)}.')
    return x.astype(jnp.int32)


def cut_to_lengths(segment_ids, lengths, B, T, S) -> tuple[Array | None, Array | None]:
    """Segment ids that are 0 beyond the sequence lengths, which so need no rule of their own."""
    if all(x is None for x in lengths):
        return segment_ids
    cut = []
    for name, x, ids, L in zip(('query', 'key_value'), lengths, segment_ids, (T, S), strict=True):
        ids = jnp.ones((1, L), jnp.int32) if ids is None else ids
        if x is not None:
            valid = length_mask(_integers(f'{name}_seq_lengths', jnp.atleast_1d(x), ((B,),)), L)
            ids = jnp.where(valid, ids, 0)
        cut.append(ids)
    return cut[0], cut[1]


def checked_window(size) -> tuple[int, int] | None:
    """(left, right) from one or two sizes."""
    if size is None:
        return None
    try:
        left, right = size if isinstance(size, tuple) else (size, size)
        left, right = operator.index(left), operator.index(right)
    except (TypeError, ValueError):
        left = right = -1
    if left < 0 or right < 0:
        raise ValueError(
            f'local_window_size must be an int or (left, right), none negative; not {size!r}.'
        )
    return left, right


def checked_softcap(softcap) -> float | None:
    """A positive cap, or None."""
    if isinstance(softcap, int | float) and softcap <= 0:
        raise ValueError(f'softcap must be positive, or None for no cap; not {softcap}.')
    return softcap


def checked_sinks(sinks, N) -> Array | None:
    """One logit a query head."""
    if sinks is not None and jnp.shape(sinks) != (N,):
        raise ValueError(f'sinks must be one logit a query head, [{N}]; got {jnp.shape(sinks)}.')
    return None if sinks is None else jnp.asarray(sinks)


def checked_dropout_words(rate, key, B, batched) -> Array | None:
    """The key's words, or None without dropout. A lone row takes a lone key as the row's own."""
    if not needs_dropout(rate, key):
        return None
    words = jax.random.key_data(key)
    if words.ndim == 1 and not batched:
        words = words[None]
    if words.ndim != 1 and words.shape[:-1] != (B,):
        raise ValueError(
            f'dropout_key must be one key or one for each of {B} rows; got {words.shape[:-1]}.'
        )
    return words


def split_arguments(condition: Callable[[Array], bool], tree: Any) -> tuple[Any, Any]:
    """The arrays that meet the condition, and all else: two trees, None where the other has it."""
    leaves, structure = jax.tree.flatten(tree, is_leaf=lambda x: x is None)
    chosen = [hasattr(x, 'dtype') and condition(x) for x in leaves]
    first = [x if flag else None for x, flag in zip(leaves, chosen, strict=True)]
    second = [None if flag else x for x, flag in zip(leaves, chosen, strict=True)]
    return structure.unflatten(first), structure.unflatten(second)


def join_arguments(*trees: Any) -> Any:
    """The tree that `split_arguments` split."""

    def present(*leaves):
        return next((x for x in leaves if x is not None), None)

    return jax.tree.map(present, *trees, is_leaf=lambda x: x is None)
