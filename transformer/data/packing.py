"""Rows of a fixed length out of the stream of a corpus.

A packing says which inputs of the stream are in a row, as positions; `tasks` makes arrays of them.
Rows are numbered, any of them can be had at any time, and together they hold each input once.
"""

import math
from pathlib import Path
from typing import Protocol

import numpy as np

from transformer.data.cache import build_once
from transformer.data.corpus import Corpus

PADDING = -1  # the position of what is no input


class Packing(Protocol):
    length: int  # T
    num_rows: int

    def positions(self, rows: np.ndarray, shift: int = 0) -> np.ndarray:
        """The inputs of some rows.

        Args:
            rows: [B] int64, in [0, num_rows).
            shift: in [0, length); other cuts of the same inputs, where the packing has any.

        Returns:
            [B, T] int64 positions in the stream, PADDING where there is none.
        """
        ...


class Stream:
    """The stream cut into windows; only the last has padding.

    A shift moves every cut, and what is before the first one follows the end of the stream, as on a
    ring.
    """

    def __init__(self, corpus: Corpus, length: int):
        self.length = length
        self._size = corpus.num_inputs
        self.num_rows = -(-self._size // length)

    def positions(self, rows: np.ndarray, shift: int = 0) -> np.ndarray:
        index = rows[:, None] * self.length + np.arange(self.length)  # [B, T]
        return np.where(index < self._size, (index + shift) % self._size, PADDING)


class Layout:
    """Stretches of a stream laid out in rows, several to a row; read from files of `write_layout`.

    Args:
        folder: of the files.
        name: what their names begin with.
        length: T.
    """

    def __init__(self, folder: Path, name: str, length: int):
        self.length = length
        # In the order of the rows: position in the stream, inputs, column.
        self._start, self._size, self._column, self._first = (
            np.asarray(np.load(folder / f'{name}{field}.npy', mmap_mode='r'))
            for field in ('start', 'size', 'column', 'first')
        )
        self.num_rows = len(self._first) - 1

    def positions(self, rows: np.ndarray, shift: int = 0) -> np.ndarray:
        """As of a `Packing`; a shift changes nothing."""
        counts = self._first[rows + 1] - self._first[rows]  # [B] stretches in each row
        pieces = _ranges(self._first[rows], counts)
        row = np.repeat(np.arange(len(rows)), counts)
        size = self._size[pieces]
        result = np.full(len(rows) * self.length, PADDING, np.int64)
        columns = _ranges(row * self.length + self._column[pieces], size)
        result[columns] = _ranges(self._start[pieces], size)
        return result.reshape(len(rows), self.length)


class Examples(Layout):
    """Whole documents, several to a row; a document longer than a row is cut every `length`.

    The rows are found once and kept beside the corpus.
    """

    def __init__(self, corpus: Corpus, length: int):
        folder = build_once(
            corpus.folder.with_name(f'{corpus.folder.name}-examples-{length}'),
            lambda scratch: _write_examples(scratch, corpus.sizes, corpus.starts, length),
        )
        super().__init__(folder, '', length)


def row_positions(packing: Packing, rows: np.ndarray, shift: int = 0) -> np.ndarray:
    """As `packing.positions`, where rows may be PADDING and are then without inputs."""
    positions = packing.positions(np.maximum(rows, 0), shift)  # [B, T]
    positions[rows == PADDING] = PADDING
    return positions


PACKINGS: dict[str, type[Packing]] = {'stream': Stream, 'examples': Examples}


def best_fit(sizes: np.ndarray, length: int) -> np.ndarray:
    """The row of each piece, so that no row holds more than `length`; see `best_fit_pairs`.

    Args:
        sizes: [pieces] in [1, length].

    Returns:
        [pieces] int64 row numbers, from 0 without gaps.
    """
    return best_fit_pairs(np.stack([np.zeros_like(sizes), sizes], axis=1), (0, length))


def best_fit_pairs(sizes: np.ndarray, lengths: tuple[int, int]) -> np.ndarray:
    """The row of each pair of pieces, so that neither part of a row holds more than its length.

    Pairs are taken from the longest to the shortest, by the larger share of a part that they fill,
    and each goes into the row where it leaves the least space in both parts together (best-fit
    decreasing; Ding et al. 2024, https://arxiv.org/abs/2404.10830).

    Args:
        sizes: [pairs, 2], the first in [0, lengths[0]] and the second in [1, lengths[1]].
        lengths: of the parts of a row.

    Returns:
        [pairs] int64 row numbers, from 0 without gaps.
    """
    rows = np.empty(len(sizes), np.int64)
    open_rows: dict[tuple[int, int], list[int]] = {}  # by the space left in them
    spaces = [0] * (lengths[0] + 1)  # bit t of entry s: there is a row with s and t left
    num_rows = 0
    order = np.argsort(-(sizes / np.maximum(lengths, 1)).max(axis=1), kind='stable')
    for pair, (size, other) in zip(order.tolist(), sizes[order].tolist(), strict=True):
        space = _tightest(spaces, size, other)
        if space:
            row = open_rows[space].pop()
            if not open_rows[space]:
                spaces[space[0]] &= ~(1 << space[1])
        else:
            row, space = num_rows, lengths
            num_rows += 1
        rows[pair] = row
        left = space[0] - size, space[1] - other
        if left[1]:
            open_rows.setdefault(left, []).append(row)
            spaces[left[0]] |= 1 << left[1]
    return rows


def _tightest(spaces: list[int], size: int, other: int) -> tuple[int, int] | None:
    """The space with the least left, of those that hold `size` and `other`; None: none does."""
    best, least = None, math.inf
    for space in range(size, len(spaces)):
        if space - size >= least:
            break
        fitting = spaces[space] >> other
        if fitting:
            left = (fitting & -fitting).bit_length() - 1  # its lowest bit
            if space - size + left < least:
                best, least = (space, other + left), space - size + left
    return best


def write_layout(
    folder: Path, name: str, start: np.ndarray, size: np.ndarray, row: np.ndarray
) -> None:
    """Writes the files of a `Layout`.

    Args:
        start: [stretches] int64 positions in the stream.
        size: [stretches] inputs of each.
        row: [stretches] rows from 0 without gaps; stretches of a row keep their order.
    """
    order = np.argsort(row, kind='stable')
    start, size, row = start[order], size[order], row[order]
    first = np.searchsorted(row, np.arange(row[-1] + 2))
    before = np.cumsum(size) - size
    np.save(folder / f'{name}start.npy', start)
    np.save(folder / f'{name}size.npy', size)
    np.save(folder / f'{name}column.npy', before - before[first[row]])
    np.save(folder / f'{name}first.npy', first)


def _write_examples(folder: Path, sizes: np.ndarray, starts: np.ndarray, length: int) -> None:
    counts = -(-sizes // length)  # pieces of each document
    offset = _ranges(np.zeros_like(counts), counts) * length
    start = np.repeat(starts, counts) + offset
    size = np.minimum(np.repeat(sizes, counts) - offset, length)
    write_layout(folder, '', start, size, best_fit(size, length))


def _ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """[starts[0], starts[0] + 1, ... counts[0] of them, then starts[1], ...] int64."""
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(counts.sum())
