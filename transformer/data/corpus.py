"""Tokenised corpora: memory-mapped arrays in the cache, made once for a text and a tokenizer.

The stream of a corpus is

    eos a1 a2 ... eos b1 b2 ... eos

and position i of it is an input whose target is position i + 1. Each document is [eos, t1 .. tn]
as inputs and [t1 .. tn, eos] as targets: every token is predicted once, the last one of a document
predicts its end, and none predicts the first of the next document from this one.
"""

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from transformer.data.cache import build_once, digest
from transformer.data.progress import progress
from transformer.data.sources import Piece, Source, Split
from transformer.data.tokenizers import Tokenizer
from transformer.errors import UserError

FORMAT = 1  # of the arrays; older folders are left alone
CHUNK = 1 << 21  # characters tokenised at a time


@dataclass(frozen=True)
class Corpus:
    """The stream of the documents of one split. All arrays are read-only and may be on disk.

    Attributes:
        folder: where the arrays are.
        tokens: [num_inputs + 1] uint16 or uint32.
        starts: [documents] int64, positions in `tokens` of the eos that begins each document.
        counted: [num_inputs + 1] uint8, whether a token is a target with weight 1; None: all are.
        num_tokens: targets with weight 1.
        num_bytes: UTF-8 bytes that those targets spell.
    """

    folder: Path
    tokens: np.ndarray
    starts: np.ndarray
    counted: np.ndarray | None
    num_tokens: int
    num_bytes: int

    @property
    def num_documents(self) -> int:
        return len(self.starts)

    @property
    def num_inputs(self) -> int:
        return len(self.tokens) - 1

    @property
    def sizes(self) -> np.ndarray:
        """[documents] int64, inputs of each: its tokens and the eos before them."""
        return np.diff(self.starts, append=self.num_inputs)


def load_corpus(
    cache: Path, sources: Sequence[Source], split: Split, tokenizer: Tokenizer
) -> Corpus:
    """The corpus of a split of all `sources`, tokenised now unless the cache has it.

    Raises:
        UserError: a text that cannot be read or encoded, an empty split, or an unwritable cache.
    """
    key = digest(FORMAT, corpus_key(sources, split), tokenizer.to_json(), *tokenizer.prefix)
    folder = build_once(
        cache / 'corpora' / key, lambda scratch: _write(scratch, sources, split, tokenizer)
    )
    summary = json.loads((folder / 'summary.json').read_text())
    counted = folder / 'counted'
    return Corpus(
        folder=folder,
        tokens=_map(folder / 'tokens', summary['dtype']),
        starts=_map(folder / 'starts', 'int64'),
        counted=_map(counted, 'uint8') if counted.exists() else None,
        num_tokens=summary['num_tokens'],
        num_bytes=summary['num_bytes'],
    )


def corpus_key(sources: Sequence[Source], split: Split) -> list:
    """What decides the text of a split: the content of the sources and how they are split."""
    rule = None if split == 'all' else [source.validation_fraction for source in sources]
    fields = [source.text_field for source in sources]
    return [split, rule, fields, [source.fingerprint for source in sources]]


def read_pieces(sources: Sequence[Source], split: Split) -> Iterator[Piece]:
    """The documents of every source, in order.

    Raises:
        UserError: there are none.
    """
    pieces = itertools.chain.from_iterable(source.pieces(split) for source in sources)
    first = next(pieces, None)
    if first is None:
        names = ', '.join(source.name for source in sources)
        raise UserError(_EMPTY[split].format(names=names))
    yield first
    yield from pieces


_EMPTY = {
    'all': '{names} has no text: give a corpus with text in it.',
    'train': (
        'No document of {names} is left to train on: lower data.validation_fraction, set '
        'data.validation_path, or give more documents.'
    ),
    'validation': (
        'No document of {names} is left to validate on: raise data.validation_fraction, set '
        'data.validation_path, or give more documents.'
    ),
}


def _map(path: Path, dtype: str) -> np.ndarray:
    """The file as a plain array: indexing the subclass np.memmap is slower."""
    return np.asarray(np.memmap(path, dtype, mode='r'))


def _write(folder: Path, sources: Sequence[Source], split: Split, tokenizer: Tokenizer) -> None:
    """Tokenises chunk by chunk into the files of `folder`."""
    dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)
    num_tokens = num_bytes = position = 0
    with (
        progress('tokenising', sum(source.num_bytes for source in sources)) as advance,
        open(folder / 'tokens', 'wb') as tokens_file,
        open(folder / 'starts', 'wb') as starts_file,
        open(folder / 'counted', 'wb') as counted_file,
    ):
        for pieces in _chunks(read_pieces(sources, split)):
            tokens, counted, starts = _encode(pieces, tokenizer)
            tokens.astype(dtype).tofile(tokens_file)
            counted.tofile(counted_file)
            (position + starts).tofile(starts_file)
            position += len(tokens)
            num_tokens += int(counted.sum())
            sizes = [len(piece.text.encode()) for piece in pieces]
            num_bytes += sum(itertools.compress(sizes, (piece.counted for piece in pieces)))
            advance(sum(sizes))
        np.array([tokenizer.eos_id], dtype).tofile(tokens_file)
        np.array([1], np.uint8).tofile(counted_file)
    # The first eos is nobody's target and the last one is.
    summary = {'dtype': dtype.name, 'num_tokens': num_tokens, 'num_bytes': num_bytes}
    (folder / 'summary.json').write_text(json.dumps(summary))
    if num_tokens == position:
        (folder / 'counted').unlink()


def _chunks(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    chunk, size = [], 0
    for piece in pieces:
        chunk.append(piece)
        size += len(piece.text)
        if size >= CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _encode(
    pieces: Sequence[Piece], tokenizer: Tokenizer
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The tokens [n] of the pieces, whether each counts [n] uint8, and where documents start."""
    parts, counts, starts, position = [], [], [], 0
    ids_of = tokenizer.encode_batch([piece.text for piece in pieces])
    for piece, ids in zip(pieces, ids_of, strict=True):
        if piece.begins:
            starts.append(position)
            parts.append([tokenizer.eos_id])
            counts.append(True)
        parts.append(ids)
        counts.append(piece.counted)
        position += piece.begins + len(ids)
    counted = np.repeat(np.array(counts, np.uint8), [len(part) for part in parts])
    tokens = np.fromiter(itertools.chain.from_iterable(parts), np.int64, position)
    return tokens, counted, np.array(starts, np.int64)
