"""Rows of labelled texts: one text a row, and its class."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from transformer.data.cache import build_once
from transformer.data.corpus import Corpus
from transformer.data.packing import PADDING
from transformer.data.pairs import Pair, is_blank
from transformer.data.tasks import Batch, classification
from transformer.errors import UserError


class LabelRows:
    """Row i is text i, cut to its first T tokens, and the number of its class.

    The labels are read once and kept beside the corpus. A shift changes nothing.

    Args:
        corpus: of the texts.
        length: T.
        read: makes the texts and labels, blank ones included.
    """

    unit = 'texts'

    def __init__(self, corpus: Corpus, length: int, read: Callable[[], Iterable[Pair]]):
        self.corpus, self.length = corpus, length
        folder = build_once(
            corpus.folder.with_name(f'{corpus.folder.name}-labels'),
            lambda scratch: _write_labels(scratch, read),
        )
        summary = json.loads((folder / 'summary.json').read_text())
        self.labels: tuple[str, ...] = tuple(summary['labels'])  # that occur, sorted
        self._number = np.load(folder / 'number.npy')  # [texts], among `labels`
        self._classes = np.arange(len(self.labels))
        self.num_rows = self.num_documents = self.num_tokens = corpus.num_documents
        self.num_bytes = corpus.num_bytes  # of the texts
        skipped = {
            'blank dropped': summary['blank'],
            'overlong cut': int((corpus.sizes > length).sum()),
        }
        self.skipped = {name: count for name, count in skipped.items() if count}

    def number_classes(self, labels: Sequence[str]) -> None:
        """Gives the classes the numbers of their places in `labels`, until then those in its own.

        Raises:
            UserError: a text has another label.
        """
        numbers = {label: number for number, label in enumerate(labels)}
        if missing := [label for label in self.labels if label not in numbers]:
            raise UserError(
                f'No text to train on has the label {missing[0]!r} of one to evaluate: leave it '
                'out, or put texts with it into data.path.'
            )
        self._classes = np.array([numbers[label] for label in self.labels])

    def batch(self, rows: np.ndarray, shift: int = 0) -> Batch:
        valid = rows != PADDING
        text = np.maximum(rows, 0)
        column = np.arange(self.length)
        inside = (column < self.corpus.sizes[text][:, None]) & valid[:, None]  # [B, T]
        positions = np.where(inside, self.corpus.starts[text][:, None] + column, PADDING)
        return classification(self.corpus, positions, self._classes[self._number[text]])


def _write_labels(folder: Path, read: Callable[[], Iterable[Pair]]) -> None:
    pairs = list(read())
    targets = [pair.target for pair in pairs if not is_blank(pair)]
    labels = sorted(set(targets))
    numbers = {label: number for number, label in enumerate(labels)}
    np.save(folder / 'number.npy', np.array([numbers[target] for target in targets], np.int32))
    summary = {'labels': labels, 'blank': len(pairs) - len(targets)}
    (folder / 'summary.json').write_text(json.dumps(summary))
