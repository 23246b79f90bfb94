"""Rows of pairs for an encoder and a decoder: whole pairs, packed on both sides at once."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

import numpy as np

from transformer.data.cache import build_once, digest
from transformer.data.corpus import Corpus
from transformer.data.packing import Layout, best_fit_pairs, row_positions, write_layout
from transformer.data.pairs import Pair, is_blank
from transformer.data.tasks import Batch, seq2seq
from transformer.errors import UserError

Overlong = Literal['drop', 'cut']


class PairRows:
    """Rows with an encoder part of S tokens and a decoder part of T tokens.

    Segment k of the encoder part is the source of segment k of the decoder part. The rows are found
    once and kept beside the corpora. A shift changes nothing.

    Args:
        source: corpus of the sources.
        target: corpus of the targets; its document i belongs to document i of the sources.
        lengths: S and T.
        overlong: what becomes of a pair with more tokens, the end included, on either side.
        read: makes the texts of the pairs, blank ones included.
        start_id: of the token that begins a target.

    Raises:
        UserError: no pair is left, or the cache cannot be written.
    """

    unit = 'pairs'

    def __init__(
        self,
        source: Corpus,
        target: Corpus,
        lengths: tuple[int, int],
        overlong: Overlong,
        read: Callable[[], Iterable[Pair]],
        start_id: int,
    ):
        self.source, self.target, self._start_id = source, target, start_id
        key = digest(source.folder.name, target.folder.name, lengths, overlong)
        folder = build_once(
            target.folder.with_name(f'pairs-{key}'),
            lambda scratch: _write_rows(scratch, source, target, lengths, overlong, read),
        )
        self._sources = Layout(folder, 'source_', lengths[0])
        self._targets = Layout(folder, 'target_', lengths[1])
        self.num_rows, self.length = self._targets.num_rows, lengths[1]
        summary = json.loads((folder / 'summary.json').read_text())
        self.num_documents: int = summary['num_documents']
        self.num_tokens: int = summary['num_tokens']
        self.num_bytes: int = summary['num_bytes']  # in proportion to the tokens where cut
        self.skipped: dict[str, int] = summary['skipped']

    def batch(self, rows: np.ndarray, shift: int = 0) -> Batch:
        sources, targets = (row_positions(side, rows) for side in (self._sources, self._targets))
        return seq2seq(self.source, self.target, sources, targets, self._start_id)


def _write_rows(
    folder: Path,
    source: Corpus,
    target: Corpus,
    lengths: tuple[int, int],
    overlong: Overlong,
    read: Callable[[], Iterable[Pair]],
) -> None:
    num_bytes = np.array([-1 if is_blank(pair) else len(pair.target.encode()) for pair in read()])
    blank = num_bytes < 0
    num_bytes = num_bytes[~blank]
    sizes = np.stack([source.sizes, target.sizes], axis=1)  # [pairs, 2]
    long = (sizes > lengths).any(axis=1)
    kept = np.flatnonzero(~long) if overlong == 'drop' else np.arange(len(sizes))
    if not len(kept):
        raise UserError(
            f'Each of the {len(sizes):,} pairs has more than {lengths[0]} tokens of source or '
            f'{lengths[1]} of target: raise data.source_length and data.length, or set '
            "data.overlong='cut'."
        )
    cut = np.minimum(sizes[kept], lengths)
    row = best_fit_pairs(cut, lengths)
    for side, (name, corpus) in enumerate({'source_': source, 'target_': target}.items()):
        write_layout(folder, name, corpus.starts[kept], cut[:, side], row)
    became = 'overlong dropped' if overlong == 'drop' else 'overlong cut'
    skipped = {'blank dropped': int(blank.sum()), became: int(long.sum())}
    summary = {
        'num_documents': len(kept),
        'num_tokens': int(cut[:, 1].sum()),
        'num_bytes': int((num_bytes[kept] * cut[:, 1] / sizes[kept, 1]).sum()),
        'skipped': {name: count for name, count in skipped.items() if count},
    }
    (folder / 'summary.json').write_text(json.dumps(summary))
