"""Masks: True = may attend, and every mask broadcasts to [B, N, T, S]."""

import jax.numpy as jnp
import numpy as np
import pytest

from transformer.functional.masks import (
    causal_mask,
    combine_masks,
    length_mask,
    padding_mask,
    segment_mask,
    window_mask,
)


@pytest.mark.parametrize(('T', 'S'), [(4, 4), (2, 5), (5, 2)])
def test_causal_mask_of_lengths_is_the_lower_triangle(T, S):
    mask = causal_mask(T, S)
    assert mask.dtype == bool
    np.testing.assert_array_equal(mask, np.tri(T, S, dtype=bool)[None, None])


def test_causal_mask_of_positions_compares_positions_by_row():
    queries, keys = jnp.array([[5], [2]]), jnp.array([0, 2, 3, 5, 9])
    expected = [[True, True, True, True, False], [True, True, False, False, False]]
    np.testing.assert_array_equal(causal_mask(queries, keys)[:, 0, 0], expected)


def test_lengths_stand_for_positions_from_zero():
    queries, keys = jnp.arange(3), jnp.arange(4)
    np.testing.assert_array_equal(causal_mask(np.int64(3), 4), causal_mask(queries, keys))
    np.testing.assert_array_equal(window_mask(3, 4, 1, 0), window_mask(queries, keys, 1, 0))


@pytest.mark.parametrize(('left', 'right'), [(0, 0), (2, 0), (0, 1), (1, 2)])
def test_window_mask_bounds_the_distance_on_each_side(left, right):
    mask = window_mask(5, 6, left, right)
    for t in range(5):
        for s in range(6):
            assert mask[0, 0, t, s] == (t - left <= s <= t + right)


def test_segment_mask_isolates_sequences_and_hides_padding():
    ids = jnp.array([[1, 1, 2, 0]])
    expected = [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    np.testing.assert_array_equal(segment_mask(ids, ids)[0, 0], np.array(expected, bool))
    decode = segment_mask(jnp.array([[2]]), ids)
    np.testing.assert_array_equal(decode, [[[[False, False, True, False]]]])


def test_padding_mask_is_over_keys():
    valid = jnp.array([[5, 7, 0, 0], [5, 7, 8, 0]]) != 0
    mask = padding_mask(valid)
    assert mask.shape == (2, 1, 1, 4)
    np.testing.assert_array_equal(mask[0, 0, 0], [True, True, False, False])
    np.testing.assert_array_equal(mask, padding_mask(length_mask(jnp.array([2, 3]), 4)))


@pytest.mark.parametrize('valid', [np.ones((2, 4), np.int32), np.ones((2, 4)), np.ones(4, bool)])
def test_padding_mask_refuses_what_is_not_a_boolean_batch(valid):
    with pytest.raises(ValueError, match=r'valid must be bool \[B, S\]'):
        padding_mask(valid)


def test_combine_masks_is_logical_and_over_broadcast_axes():
    valid = jnp.array([[True, True, False], [True, True, True]])
    combined = combine_masks(None, causal_mask(3, 3), None, padding_mask(valid))
    assert combined.shape == (2, 1, 3, 3)
    np.testing.assert_array_equal(combined[0, 0], np.tri(3, dtype=bool) & [True, True, False])
    np.testing.assert_array_equal(combined[1, 0], np.tri(3, dtype=bool))


def test_combine_masks_of_none_is_none():
    assert combine_masks() is None
    assert combine_masks(None, None) is None
