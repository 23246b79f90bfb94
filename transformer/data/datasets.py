"""Batches of a training and of a validation split, by their number."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Protocol

import numpy as np

from transformer.data.corpus import Corpus
from transformer.data.order import epoch_state, permute
from transformer.data.packing import PADDING, Packing, row_positions
from transformer.data.pairs import Pair
from transformer.data.tasks import Batch
from transformer.errors import UserError


class Rows(Protocol):
    """The rows of one corpus, as batches."""

    num_rows: int
    length: int  # shifts are below it
    unit: str  # what its documents are called
    num_documents: int
    num_tokens: int  # targets that count
    num_bytes: int  # UTF-8 bytes that those targets spell
    skipped: dict[
        str, int
    ]  # documents that are not in the rows as they are, by what became of them

    def batch(self, rows: np.ndarray, shift: int = 0) -> Batch:
        """Some rows; see `tasks`.

        Args:
            rows: [B] int64 in [0, num_rows), or PADDING for rows without tokens.
            shift: in [0, length); other cuts of the same documents, where the rows have any.
        """
        ...


@dataclass(frozen=True)
class CorpusRows:
    """Rows of a stream of documents.

    Args:
        corpus: the stream.
        packing: which inputs are in a row.
        task: what is made of them.
        num_tokens: targets that count.
    """

    corpus: Corpus
    packing: Packing
    task: Callable[[Corpus, np.ndarray], Batch]
    num_tokens: int
    unit: ClassVar[str] = 'documents'
    skipped: ClassVar[dict[str, int]] = {}

    @property
    def num_rows(self) -> int:
        return self.packing.num_rows

    @property
    def length(self) -> int:
        return self.packing.length

    @property
    def num_documents(self) -> int:
        return self.corpus.num_documents

    @property
    def num_bytes(self) -> int:
        return self.corpus.num_bytes

    def batch(self, rows: np.ndarray, shift: int = 0) -> Batch:
        return self.task(self.corpus, row_positions(self.packing, rows, shift))


@dataclass(frozen=True)
class TrainingSet:
    """An endless sequence of batches; batch n is a function of (seed, n) and of nothing else.

    Each corpus goes through epochs: all its rows once, in an order and with cuts of their own.

    Args:
        parts: the corpora.
        weights: share of each in the rows; positive.
        seed: of the order.
        batch_size: B, rows in a batch, over all processes.
    """

    parts: tuple[Rows, ...]
    weights: tuple[float, ...]
    seed: int
    batch_size: int

    @property
    def num_documents(self) -> int:
        return sum(part.num_documents for part in self.parts)

    @property
    def num_tokens(self) -> int:
        """Targets that count, in an epoch of every corpus."""
        return sum(part.num_tokens for part in self.parts)

    @property
    def num_bytes(self) -> int:
        """UTF-8 bytes that those targets spell."""
        return sum(part.num_bytes for part in self.parts)

    @property
    def unit(self) -> str:
        return self.parts[0].unit

    @property
    def skipped(self) -> Counter[str]:
        """Documents that are not in the rows as they are, by what became of them."""
        return sum((Counter(part.skipped) for part in self.parts), Counter())

    def batch(self, n: int, process_index: int = 0, process_count: int = 1) -> Batch:
        """Batch `n` >= 0, or the rows of it that belong to one process; see `tasks`.

        Raises:
            UserError: batch_size is not a multiple of process_count.
        """
        share = process_share(self.batch_size, process_count)
        first = n * self.batch_size + process_index * share
        corpus, row = self._choose(range(first, first + share))
        epoch, row = np.divmod(row, np.array([part.num_rows for part in self.parts])[corpus])
        pieces, places = [], []
        for part, turn in sorted(set(zip(corpus.tolist(), epoch.tolist(), strict=True))):
            place = np.flatnonzero((corpus == part) & (epoch == turn))
            pieces.append(self._epoch_rows(part, turn, row[place]))
            places.append(place)
        if len(pieces) == 1:
            return pieces[0]
        back = np.argsort(np.concatenate(places))
        return {name: np.concatenate([p[name] for p in pieces])[back] for name in pieces[0]}

    def batches(
        self, start: int = 0, process_index: int = 0, process_count: int = 1
    ) -> Iterator[Batch]:
        """Batches `start`, `start` + 1, ... without end, made ahead by threads; as `batch`."""
        process_share(self.batch_size, process_count)  # at once, not in a thread
        make = partial(self.batch, process_index=process_index, process_count=process_count)
        return read_ahead(make, start, sys.maxsize)

    def _choose(self, numbers: range) -> tuple[np.ndarray, np.ndarray]:
        """The corpus [B] of each row of the sequence, and its number [B] among that corpus's."""
        if len(self.parts) == 1:
            return np.zeros(len(numbers), np.int64), np.array(numbers, np.int64)
        corpus, row = np.array([self._mixture[number] for number in numbers], np.int64).T
        return corpus, row

    @cached_property
    def _mixture(self) -> Any:
        """(corpus, row) of every number, the corpora interleaved evenly by their weights."""
        import grain

        numbers = grain.MapDataset.range(sys.maxsize)
        tagged = [numbers.map(lambda row, k=k: (k, row)) for k in range(len(self.parts))]
        return grain.MapDataset.mix(tagged, list(self.weights))

    def _epoch_rows(self, part: int, epoch: int, rows: np.ndarray) -> Batch:
        number, keys = epoch_state(self.seed, part, epoch)
        source = self.parts[part]
        order = permute(rows, source.num_rows, keys)
        return source.batch(order, shift=number % source.length)


@dataclass(frozen=True)
class ValidationSet:
    """A split read once, in order; the last batch is filled up with rows of weight 0.

    Args:
        rows: of the split.
        read: makes its pairs anew, of tasks that read pairs.
    """

    rows: Rows
    read: Callable[[], Iterable[Pair]] = tuple

    @property
    def num_documents(self) -> int:
        return self.rows.num_documents

    @property
    def num_tokens(self) -> int:
        """Targets that count in the whole split."""
        return self.rows.num_tokens

    @property
    def num_bytes(self) -> int:
        """UTF-8 bytes that those targets spell."""
        return self.rows.num_bytes

    @property
    def unit(self) -> str:
        return self.rows.unit

    @property
    def skipped(self) -> Counter[str]:
        """Documents that are not in the rows as they are, by what became of them."""
        return Counter(self.rows.skipped)

    def pairs(self) -> list[Pair]:
        """The texts of every pair in order, overlong ones included; [] for documents."""
        return list(self.read())

    def evaluation_batches(
        self,
        batch_size: int,
        num_batches: int = 0,
        process_index: int = 0,
        process_count: int = 1,
    ) -> Iterator[Batch]:
        """The split in batches of one shape, made ahead by threads; see `tasks`.

        They have one more array: `row` [B] int32, the number of the row in the split, so that what
        is random in an evaluation can be a function of it.

        Args:
            batch_size: rows in a batch, over all processes.
            num_batches: at most so many, of rows spread evenly over the split; 0: all rows.
            process_index: whose rows of each batch.
            process_count: between how many processes a batch is divided.

        Raises:
            UserError: batch_size is not a multiple of process_count.
        """
        share = process_share(batch_size, process_count)
        total = self.rows.num_rows
        count = min(total, num_batches * batch_size) if num_batches else total

        def make(n: int) -> Batch:
            first = n * batch_size + process_index * share
            number = np.arange(first, first + share)
            rows = np.where(number < count, number * total // count, PADDING)
            return self.rows.batch(rows) | {'row': np.maximum(rows, 0).astype(np.int32)}

        return read_ahead(make, 0, -(-count // batch_size))


def read_ahead(make: Callable[[int], Batch], start: int, stop: int) -> Iterator[Batch]:
    """make(start), ..., make(stop - 1) in order, made by threads before they are asked for."""
    import grain  # not above: generating text needs none, and it takes most of a second

    # More threads would only wait for one another, as numpy keeps Python's lock.
    options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=8)
    return iter(grain.MapDataset.range(start, stop).map(make).to_iter_dataset(options))


def process_share(batch_size: int, process_count: int) -> int:
    """Rows of a batch that one process makes.

    Raises:
        UserError: they would not be as many for each.
    """
    if batch_size % process_count:
        raise UserError(
            f'data.batch_size {batch_size} is not a multiple of the {process_count} processes.'
        )
    return batch_size // process_count
