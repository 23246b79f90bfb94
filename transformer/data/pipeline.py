"""`load_data`: from `config.data` to a tokenizer and the batches of both splits."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ml_collections import ConfigDict

from transformer.data.cache import build_once, cache_folder, digest
from transformer.data.corpus import Corpus, corpus_key, load_corpus, read_pieces
from transformer.data.datasets import Rows, TrainingSet, ValidationSet
from transformer.data.packing import PACKINGS
from transformer.data.progress import progress
from transformer.data.sources import Source, Split, open_source
from transformer.data.tasks import TASKS
from transformer.data.tokenizers import TRAINERS, Tokenizer, load_tokenizer, train_tokenizer
from transformer.errors import UserError, check_choice
from transformer.ranges import check_ranges, flat

TRAINING_SAMPLE = 32_000_000  # bytes of text, at most, that a bpe tokenizer learns from


@dataclass(frozen=True)
class Data:
    """What a run reads: made by `load_data`."""

    tokenizer: Tokenizer
    train: TrainingSet
    validation: ValidationSet
    names: tuple[str, ...]  # of the corpora trained on

    def describe(self) -> str:
        """Corpora, vocabulary, and the size of each split, in two lines."""
        vocabulary = f'vocabulary of {self.tokenizer.vocab_size:,} tokens'
        splits = f'train {_size(self.train)}; validation {_size(self.validation)}'
        return f'data: {", ".join(self.names)}; {vocabulary}\n{splits}'


def check_data(config: ConfigDict) -> None:
    """Finds mistakes in `config.data` without reading the corpora.

    Raises:
        UserError: an unknown choice, a number out of range, or a path without files.
    """
    data = config.data
    check_choice(config.task, TASKS, 'task')
    check_choice(data.packing, PACKINGS, 'data.packing')
    check_ranges(flat(data.to_dict(), 'data.'))
    if not data.validation_path and not 0 < data.validation_fraction < 1:
        raise UserError(
            f'data.validation_fraction must be between 0 and 1, not {data.validation_fraction}: '
            'or set data.validation_path.'
        )
    if not data.path:
        raise UserError("data.path is empty: give 'stdlib', a file, a glob, or 'hf:NAME'.")
    for name in (*data.path, *data.validation_path):
        if type(name) is not str:
            raise UserError(f'data.path must hold names of corpora, not {name!r}.')
    if data.weights and len(data.weights) != len(data.path):
        raise UserError(
            f'data.weights has {len(data.weights)} entries and data.path {len(data.path)}: give '
            'one for each corpus, or none.'
        )
    for weight in data.weights:
        if type(weight) not in (int, float) or not 0 < weight < math.inf:
            raise UserError(f'data.weights must be positive numbers, not {weight!r}.')
    if data.tokenizer not in TRAINERS:
        load_tokenizer(data.tokenizer)
    _open(config, (*data.path, *data.validation_path))


def load_data(config: ConfigDict, tokenizer: Tokenizer | None = None) -> Data:
    """The tokenizer and the splits of a config, from the cache where it has them.

    Args:
        config: of an experiment; `config.task`, `config.data` and `config.model.vocab_size`.
        tokenizer: used as it is; None: the one that data.tokenizer names, trained if need be.

    Raises:
        UserError: as `check_data`, and text that cannot be read or encoded, an empty split, a cache
            that cannot be written, or a model with fewer entries than the tokenizer.
    """
    check_data(config)
    data = config.data
    cache = cache_folder(data.cache_dir)
    sources = _open(config, data.path)
    held_out = _open(config, data.validation_path)
    split: Split = 'all' if held_out else 'train'
    validation = (held_out, 'all') if held_out else (sources, 'validation')
    if tokenizer is None:
        tokenizer = _make_tokenizer(config, cache, [(sources, split), validation])
    vocab_size = config.model.vocab_size
    if vocab_size is not None and vocab_size < tokenizer.vocab_size:
        raise UserError(
            f'model.vocab_size {vocab_size} is smaller than the {tokenizer.vocab_size} tokens of '
            "the tokenizer: leave it unset for the tokenizer's."
        )

    def rows(corpus: Corpus) -> Rows:
        return Rows(corpus, PACKINGS[data.packing](corpus, data.length), TASKS[config.task])

    # With weights each corpus is a stream of its own; without, all are one.
    groups = [[source] for source in sources] if data.weights else [sources]
    parts = tuple(rows(load_corpus(cache, group, split, tokenizer)) for group in groups)
    weights = tuple(data.weights) or (1.0,)
    return Data(
        tokenizer,
        TrainingSet(parts, weights, data.seed, data.batch_size),
        ValidationSet(rows(load_corpus(cache, *validation, tokenizer))),
        tuple(data.path),
    )


def _size(split: TrainingSet | ValidationSet) -> str:
    return (
        f'{split.num_documents:,} documents, {split.num_tokens:,} tokens, {split.num_bytes:,} bytes'
    )


def _open(config: ConfigDict, names: Sequence[str]) -> list[Source]:
    data = config.data
    return [open_source(name, data.text_field, data.validation_fraction) for name in names]


def _make_tokenizer(
    config: ConfigDict, cache: Path, splits: list[tuple[list[Source], Split]]
) -> Tokenizer:
    """The tokenizer that data.tokenizer names; a trained one is kept in the cache."""
    kind, vocab_size = config.data.tokenizer, config.data.vocab_size
    if kind not in TRAINERS:
        return load_tokenizer(kind)
    if kind == 'bytes':
        return train_tokenizer('bytes', [])
    # bpe learns from what is trained on. A character of the validation text alone must have an id
    # too, or chars could not spell that text; it tells the model nothing.
    texts = splits if kind == 'chars' else splits[:1]
    key = digest(kind, vocab_size, [corpus_key(*group) for group in texts])

    def build(folder: Path) -> None:
        train_tokenizer(kind, _texts(texts, sampled=kind == 'bpe'), vocab_size).save(folder)

    return load_tokenizer(build_once(cache / 'tokenizers' / key, build))


def _texts(splits: list[tuple[list[Source], Split]], sampled: bool) -> Iterator[str]:
    """The text of the splits; if `sampled`, every k-th piece, to stay below TRAINING_SAMPLE."""
    total = sum(source.num_bytes for sources, _ in splits for source in sources)
    step = max(1, -(-total // TRAINING_SAMPLE)) if sampled else 1
    with progress('training the tokenizer', total) as advance:
        for sources, split in splits:
            for number, piece in enumerate(read_pieces(sources, split)):
                advance(len(piece.text.encode()))
                if number % step == 0:
                    yield piece.text
