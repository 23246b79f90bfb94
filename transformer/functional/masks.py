"""Boolean attention masks: pure functions, True = may attend.

Every mask broadcasts to [B, N, T, S] (batch, heads, query length, key length), so masks combine by
logical and, and none is ever larger than its own information. Where a function takes positions, a
length L stands for the positions 0 to L - 1.
"""

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike


def causal_mask(query_positions: int | ArrayLike, key_positions: int | ArrayLike) -> Array:
    """True where the key's position is not after the query's (Vaswani et al. 2017, section 3.2.3).

    Args:
        query_positions: a length T, or int positions [T] or [B, T].
        key_positions: a length S, or int positions [S] or [B, S]. With two lengths the diagonal
            starts in the upper left corner, whether T equals S or not.

    Returns:
        bool [1, 1, T, S] or [B, 1, T, S].
    """
    return _rows(_positions(query_positions)) >= _columns(_positions(key_positions))


def window_mask(
    query_positions: int | ArrayLike, key_positions: int | ArrayLike, left: int, right: int
) -> Array:
    """True where the key lies at most `left` positions before and `right` after the query.

    Args:
        query_positions: a length T, or int positions [T] or [B, T].
        key_positions: a length S, or int positions [S] or [B, S].
        left, right: distances in positions; 0 on both sides leaves the query's own position.

    Returns:
        bool [1, 1, T, S] or [B, 1, T, S].
    """
    distance = _rows(_positions(query_positions)) - _columns(_positions(key_positions))
    return (distance <= left) & (distance >= -right)


def segment_mask(query_segment_ids: ArrayLike, key_segment_ids: ArrayLike) -> Array:
    """True where query and key belong to the same sequence of a packed row.

    Args:
        query_segment_ids: int [T] or [B, T], 1, 2, ... for the sequences of a row.
        key_segment_ids: int [S] or [B, S]; 0 = padding or an empty cache slot, seen by no query.

    Returns:
        bool [1, 1, T, S] or [B, 1, T, S].
    """
    queries, keys = _rows(query_segment_ids), _columns(key_segment_ids)
    return (queries == keys) & (keys > 0)


def padding_mask(valid: ArrayLike) -> Array:
    """The mask over keys of a padded batch; `length_mask` makes `valid` from lengths.

    Args:
        valid: bool [B, S], True for a token, False for padding.

    Returns:
        bool [B, 1, 1, S].

    Raises:
        ValueError: `valid` is not a boolean [B, S].
    """
    valid = jnp.asarray(valid)
    if valid.dtype != bool or valid.ndim != 2:
        raise ValueError(
            f'valid must be bool [B, S], True for a token; got {valid.dtype} {list(valid.shape)}: '
            'compare token ids with the padding id.'
        )
    return _columns(valid)


def length_mask(lengths: ArrayLike, length: int) -> Array:
    """True for the first `lengths[b]` positions of row b: int [B] -> bool [B, length]."""
    return jnp.arange(length) < jnp.asarray(lengths)[:, None]


def combine_masks(*masks: ArrayLike | None) -> Array | None:
    """The logical and of masks, each broadcastable to [B, N, T, S]; None means all True."""
    combined = None
    for mask in masks:
        if mask is not None:
            combined = jnp.asarray(mask) if combined is None else combined & mask
    return combined


def _positions(positions: int | ArrayLike) -> Array:
    return jnp.arange(positions) if jnp.ndim(positions) == 0 else jnp.asarray(positions)


def _rows(x: ArrayLike) -> Array:
    return jnp.atleast_2d(x)[:, None, :, None]  # [B, 1, T, 1]


def _columns(x: ArrayLike) -> Array:
    return jnp.atleast_2d(x)[:, None, None, :]  # [B, 1, 1, S]
