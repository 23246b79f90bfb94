"""Rows of tokens as padded arrays, in few lengths, so that few programs are compiled."""

from collections.abc import Iterator, Sequence

import numpy as np

SMALLEST_BUCKET = 16


def bucket(length: int, limit: int | None = None) -> int:
    """A power of two that is at least `length`, or `limit` if that is less."""
    size = max(SMALLEST_BUCKET, 1 << (length - 1).bit_length())
    return size if limit is None else min(size, limit)


def padded(rows: Sequence[Sequence[int]], limit: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows as [B, T] int32, padded on the right to a bucket, and their lengths [B] int32."""
    lengths = np.array([len(row) for row in rows], np.int32)
    tokens = np.zeros((len(rows), bucket(int(lengths.max()), limit)), np.int32)
    for padded_row, row in zip(tokens, rows, strict=True):
        padded_row[: len(row)] = row
    return tokens, lengths


def batches(
    rows: Sequence[Sequence[int]], limit: int, batch_size: int
) -> Iterator[tuple[list[int], np.ndarray, np.ndarray]]:
    """All rows, in batches of one bucket each.

    A batch that is not full repeats its first row up to a power of two or `batch_size` rows: so
    buckets, not numbers of rows, decide what is compiled.

    Returns:
        An iterator of indices into `rows`, and of `padded` tokens and lengths, whose first rows
        are those of the indices.
    """
    buckets: dict[int, list[int]] = {}
    for index, row in enumerate(rows):
        buckets.setdefault(bucket(len(row), limit), []).append(index)
    for members in buckets.values():
        for start in range(0, len(members), batch_size):
            indices = members[start : start + batch_size]
            size = min(1 << (len(indices) - 1).bit_length(), batch_size)
            repeated = indices + indices[:1] * (size - len(indices))
            yield indices, *padded([rows[index] for index in repeated], limit)
