"""Rows of a fixed length out of the stream of a corpus.

A packing says which inputs of the stream are in a row, as positions; `tasks` makes arrays of them.
Rows are numbered, any of them can be had at any time, and together they hold each input once.
"""

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


class Examples:
    """Whole documents, several to a row; a document longer than a row is cut every `length`.

    The rows are found once and kept beside the corpus. A shift changes nothing.
    """

    def __init__(self, corpus: Corpus, length: int):
        self.length = length
        folder = build_once(
            corpus.folder.with_name(f'{corpus.folder.name}-examples-{length}'),
            lambda scratch: _write_rows(scratch, corpus.sizes, corpus.starts, length),
        )
        # Pieces of documents in the order of the rows: position in the stream, inputs, column.
        self._start, self._size, self._column, self._first = (
            np.asarray(np.load(folder / f'{name}.npy', mmap_mode='r'))
            for name in ('start', 'size', 'column', 'first')
        )
        self.num_rows = len(self._first) - 1

    def positions(self, rows: np.ndarray, shift: int = 0) -> np.ndarray:
        counts = self._first[rows + 1] - self._first[rows]  # [B] pieces in each row
        pieces = _ranges(self._first[rows], counts)
        row = np.repeat(np.arange(len(rows)), counts)
        size = self._size[pieces]
        result = np.full(len(rows) * self.length, PADDING, np.int64)
        columns = _ranges(row * self.length + self._column[pieces], size)
        result[columns] = _ranges(self._start[pieces], size)
        return result.reshape(len(rows), self.length)


PACKINGS: dict[str, type[Packing]] = {'stream': Stream, 'examples': Examples}


def best_fit(sizes: np.ndarray, length: int) -> np.ndarray:
    """The row of each piece, so that no row holds more than `length`.

    Pieces are taken from the longest to the shortest, and each goes into the row where it leaves
    the least space (best-fit decreasing; Ding et al. 2024, https://arxiv.org/abs/2404.10830).

    Args:
        sizes: [pieces] in [1, length].

    Returns:
        [pieces] int64 row numbers, from 0 without gaps.
    """
    rows = np.empty(len(sizes), np.int64)
    open_rows: list[list[int]] = [[] for _ in range(length)]  # by the space left in them
    spaces = 0  # bit s: there is a row with s left
    num_rows = 0
    for piece in np.argsort(-sizes, kind='stable').tolist():
        size = int(sizes[piece])
        fitting = spaces >> size
        if fitting:
            space = size + (fitting & -fitting).bit_length() - 1  # its lowest bit
            row = open_rows[space].pop()
            if not open_rows[space]:
                spaces &= ~(1 << space)
        else:
            row, space = num_rows, length
            num_rows += 1
        rows[piece] = row
        if left := space - size:
            open_rows[left].append(row)
            spaces |= 1 << left
    return rows


def _write_rows(folder: Path, sizes: np.ndarray, starts: np.ndarray, length: int) -> None:
    counts = -(-sizes // length)  # pieces of each document
    offset = _ranges(np.zeros_like(counts), counts) * length
    start = np.repeat(starts, counts) + offset
    size = np.minimum(np.repeat(sizes, counts) - offset, length)
    row = best_fit(size, length)

    order = np.argsort(row, kind='stable')
    start, size, row = start[order], size[order], row[order]
    first = np.searchsorted(row, np.arange(row[-1] + 2))
    before = np.cumsum(size) - size
    np.save(folder / 'start.npy', start)
    np.save(folder / 'size.npy', size)
    np.save(folder / 'column.npy', before - before[first[row]])
    np.save(folder / 'first.npy', first)


def _ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """[starts[0], starts[0] + 1, ... counts[0] of them, then starts[1], ...] int64."""
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(counts.sum())
