"""The permutation of training rows."""

import numpy as np
import pytest

from transformer.data.order import epoch_state, permute


def order(size, *state):
    return permute(np.arange(size), size, epoch_state(*state)[1])


@pytest.mark.parametrize('size', [1, 2, 3, 4, 5, 10, 17, 100, 1000, 12508])
def test_permutes(size):
    np.testing.assert_array_equal(np.sort(order(size, 0, 0, 0)), np.arange(size))


def test_any_part_is_the_same_as_in_the_whole():
    whole = order(1000, 3, 1, 4)
    keys = epoch_state(3, 1, 4)[1]
    for index in [999], [5, 5, 0], range(100, 200):
        np.testing.assert_array_equal(permute(np.array(index), 1000, keys), whole[index])


def test_seeds_corpora_and_epochs_differ():
    states = [
        (seed, corpus, epoch) for seed in range(3) for corpus in range(3) for epoch in range(3)
    ]
    assert len({order(1000, *state).tobytes() for state in states}) == len(states)
    assert len({epoch_state(*state)[0] for state in states}) == len(states)


def test_large_sizes():
    size = 10**12
    index = np.arange(1000) * (size // 1000)
    result = permute(index, size, epoch_state(0, 0, 0)[1])
    assert len(np.unique(result)) == 1000
    assert 0 <= result.min() < size / 50
    assert size * 49 / 50 < result.max() < size


@pytest.mark.parametrize('size', [2, 3, 10, 50])
def test_every_place_is_equally_likely(size):
    trials = 1000
    counts = np.zeros((size, size))
    neighbours = 0
    for seed in range(trials):
        result = order(size, seed, 0, 0)
        counts[np.arange(size), result] += 1
        neighbours += np.sum(np.abs(np.diff(result)) == 1)
    expected = trials / size
    assert np.abs(counts - expected).max() < 4.5 * np.sqrt(expected)  # standard deviations
    # Neighbours stay neighbours as often as in a random order.
    assert neighbours / trials == pytest.approx(2 * (size - 1) / size, rel=0.15)
