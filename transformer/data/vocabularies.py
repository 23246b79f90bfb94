"""The tokenizers that `config.data` names; trained ones are kept in the cache."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ml_collections import ConfigDict

from transformer.data.cache import build_once, digest
from transformer.data.corpus import corpus_key, read_pieces
from transformer.data.opening import Corpora, Texts
from transformer.data.progress import progress
from transformer.data.tasks import TASKS
from transformer.data.tokenizers import TRAINERS, Tokenizer, load_tokenizer, train_tokenizer

TRAINING_SAMPLE = 32_000_000  # bytes of text, at most, that a bpe tokenizer learns from


def make_tokenizer(config: ConfigDict, cache: Path, splits: Sequence[Corpora]) -> Tokenizer:
    """The tokenizer of data.tokenizer: of documents, of texts with labels, or of targets.

    Sources are in it too unless they have one of their own.

    Args:
        splits: what is read; the first is trained on.

    Raises:
        UserError: a corpus that cannot be read, or none of this name.
    """
    data = config.data
    sides = ('source', 'target')
    if config.task == 'classification':
        sides = ('source',)
    elif data.source_tokenizer:
        sides = ('target',)
    texts = [corpora.texts(*sides) for corpora in splits]
    special_tokens = TASKS[config.task].special_tokens
    return _make(cache, data.tokenizer, data.vocab_size, texts, special_tokens)


def make_source_tokenizer(
    config: ConfigDict, cache: Path, splits: Sequence[Corpora]
) -> Tokenizer | None:
    """The tokenizer of data.source_tokenizer, of sources alone; None where it is unset."""
    data = config.data
    if not data.source_tokenizer:
        return None
    texts = [corpora.texts('source') for corpora in splits]
    vocab_size = data.source_vocab_size or data.vocab_size
    return _make(cache, data.source_tokenizer, vocab_size, texts, ())


def _make(
    cache: Path, kind: str, vocab_size: int, splits: list[Texts], special_tokens: Sequence[str]
) -> Tokenizer:
    if kind not in TRAINERS:
        return load_tokenizer(kind)
    if kind == 'bytes':
        return train_tokenizer('bytes', [], special_tokens=special_tokens)
    # bpe learns from what is trained on. A character of a text to evaluate alone must have an id
    # too, or chars could not spell that text; it tells the model nothing.
    texts = splits if kind == 'chars' else splits[:1]
    key = digest(kind, vocab_size, [corpus_key(*group) for group in texts], *special_tokens)

    def build(folder: Path) -> None:
        pieces = _pieces(texts, sampled=kind == 'bpe')
        train_tokenizer(kind, pieces, vocab_size, special_tokens).save(folder)

    return load_tokenizer(build_once(cache / 'tokenizers' / key, build))


def _pieces(splits: list[Texts], sampled: bool) -> Iterator[str]:
    """The text of the splits; if `sampled`, every k-th piece, to stay below TRAINING_SAMPLE."""
    total = sum(source.num_bytes for sources, _ in splits for source in sources)
    step = max(1, -(-total // TRAINING_SAMPLE)) if sampled else 1
    with progress('training the tokenizer', total) as advance:
        for sources, split in splits:
            for number, piece in enumerate(read_pieces(sources, split)):
                advance(len(piece.text.encode()))
                if number % step == 0:
                    yield piece.text
