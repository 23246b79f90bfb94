"""Packings: every input once, rows of one length, few of them."""

from pathlib import Path

import numpy as np
import pytest

from transformer.data.corpus import Corpus
from transformer.data.packing import PACKINGS, PADDING, Examples, Stream, best_fit


def corpus(tmp_path: Path, sizes: list[int]) -> Corpus:
    """Documents of so many inputs; the tokens are their positions."""
    total = sum(sizes)
    return Corpus(
        folder=tmp_path / 'corpus',
        tokens=np.arange(total + 1, dtype=np.uint16),
        starts=np.cumsum([0, *sizes[:-1]]),
        counted=None,
        num_tokens=total,
        num_bytes=total,
    )


SIZES = [3, 1, 16, 8, 20, 5, 5, 2, 33, 7, 1, 1]


@pytest.mark.parametrize('name', sorted(PACKINGS))
@pytest.mark.parametrize('length', [1, 3, 8, 16, 200])
def test_every_input_once(tmp_path, name, length):
    packing = PACKINGS[name](corpus(tmp_path, SIZES), length)
    for shift in 0, length // 2, length - 1:
        positions = packing.positions(np.arange(packing.num_rows), shift)
        assert positions.shape == (packing.num_rows, length)
        inputs = positions[positions != PADDING]
        np.testing.assert_array_equal(np.sort(inputs), np.arange(sum(SIZES)))
        assert (positions != PADDING).any(axis=1).all()  # no row without tokens


@pytest.mark.parametrize('name', sorted(PACKINGS))
def test_rows_can_be_had_in_any_order(tmp_path, name):
    packing = PACKINGS[name](corpus(tmp_path, SIZES), 8)
    whole = packing.positions(np.arange(packing.num_rows), 3)
    rows = np.array([2, 0, packing.num_rows - 1, 2])
    np.testing.assert_array_equal(packing.positions(rows, 3), whole[rows])
    assert packing.positions(rows[:0], 3).shape == (0, 8)


def test_stream_cuts_a_ring(tmp_path):
    stream = Stream(corpus(tmp_path, [6, 4]), 4)
    x = PADDING
    plain = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, x, x]]
    np.testing.assert_array_equal(stream.positions(np.arange(3)), plain)
    shifted = [[3, 4, 5, 6], [7, 8, 9, 0], [1, 2, x, x]]
    np.testing.assert_array_equal(stream.positions(np.arange(3), 3), shifted)


def test_examples_are_whole_where_they_fit(tmp_path):
    data = corpus(tmp_path, SIZES)
    packing = Examples(data, 16)
    positions = packing.positions(np.arange(packing.num_rows))
    for start, size in zip(data.starts, data.sizes, strict=True):
        for begin in range(start, start + size, 16):  # the pieces of a document
            piece = np.arange(begin, min(begin + 16, start + size))
            row, column = np.argwhere(positions == begin)[0]
            np.testing.assert_array_equal(positions[row, column : column + len(piece)], piece)
    # 102 inputs need 7 rows of 16, and get no more.
    assert packing.num_rows == 7
    # Padding is at the end of a row.
    assert (np.diff(positions == PADDING, axis=1).sum(axis=1) <= 1).all()
    assert (positions[:, 0] != PADDING).all()


def test_examples_are_packed_once(tmp_path, monkeypatch):
    data = corpus(tmp_path, SIZES)
    rows = np.arange(7)
    expected = Examples(data, 16).positions(rows)
    monkeypatch.setattr('transformer.data.packing.best_fit', None)
    np.testing.assert_array_equal(Examples(data, 16).positions(rows), expected)


def test_best_fit_leaves_little_space():
    sizes = np.random.default_rng(0).integers(1, 65, 2000)
    rows = best_fit(sizes, 64)
    used = np.bincount(rows, sizes)
    assert used.max() <= 64
    np.testing.assert_array_equal(np.unique(rows), np.arange(len(used)))
    assert sizes.sum() / (64 * len(used)) > 0.98


def test_best_fit_fills_the_tightest_row():
    # 6 and 5 open rows with 4 and 5 left; 4 fills the first, and 3 goes into the second.
    assert best_fit(np.array([3, 4, 5, 6]), 10).tolist() == [1, 0, 1, 0]
    assert best_fit(np.array([10, 10]), 10).tolist() == [0, 1]
