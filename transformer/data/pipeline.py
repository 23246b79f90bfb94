"""`load_data`: from `config.data` to a tokenizer and the batches of every split."""

from dataclasses import dataclass

from ml_collections import ConfigDict

from transformer.data.cache import cache_folder
from transformer.data.checks import check_data, check_special_tokens
from transformer.data.datasets import TrainingSet, ValidationSet
from transformer.data.opening import each, open_splits
from transformer.data.rows import RowMaker
from transformer.data.tokenizers import Tokenizer
from transformer.data.vocabularies import make_source_tokenizer, make_tokenizer


@dataclass(frozen=True)
class Data:
    """What a run reads: made by `load_data`.

    Attributes:
        tokenizer: of the text, for pairs of the targets.
        train, validation: the splits.
        names: of the corpora trained on.
        test: the split of the fields data.test_...; None without them.
        source_tokenizer: of the sources of pairs; None: `tokenizer`.
        labels: of the classes, by number; empty for tasks without classes.
    """

    tokenizer: Tokenizer
    train: TrainingSet
    validation: ValidationSet
    names: tuple[str, ...]
    test: ValidationSet | None = None
    source_tokenizer: Tokenizer | None = None
    labels: tuple[str, ...] = ()

    def describe(self) -> str:
        """Corpora, vocabulary, and the size of each split, in two lines."""
        sizes = [f'vocabulary of {self.tokenizer.vocab_size:,} tokens']
        if self.source_tokenizer:
            sizes.append(f'of {self.source_tokenizer.vocab_size:,} tokens of the sources')
        if self.labels:
            sizes.append(f'{len(self.labels):,} classes')
        splits = {'train': self.train, 'validation': self.validation, 'test': self.test}
        lines = [f'{name} {_size(split)}' for name, split in splits.items() if split]
        return f'data: {", ".join(self.names)}; {", ".join(sizes)}\n{"; ".join(lines)}'


def load_data(
    config: ConfigDict,
    tokenizer: Tokenizer | None = None,
    source_tokenizer: Tokenizer | None = None,
) -> Data:
    """The tokenizer and the splits of a config, from the cache where it has them.

    Args:
        config: of an experiment; `config.task` and `config.data`.
        tokenizer: used as it is; None: the one that data.tokenizer names, trained if need be.
        source_tokenizer: the same for data.source_tokenizer, which may be unset.

    Raises:
        UserError: as `check_data`, and text that cannot be read or encoded, an empty split, a cache
            that cannot be written, a tokenizer without the special tokens of the task, or a label
            to evaluate that is not trained on.
    """
    check_data(config)
    data = config.data
    cache = cache_folder(data.cache_dir)
    splits = open_splits(config)
    texts = list(splits.values())
    tokenizer = tokenizer or make_tokenizer(config, cache, texts)
    source_tokenizer = source_tokenizer or make_source_tokenizer(config, cache, texts)
    check_special_tokens(config, tokenizer)
    make = RowMaker(config, cache, tokenizer, source_tokenizer or tokenizer)
    corpora = splits.pop('train')
    # With weights each corpus is a sequence of its own; without, all are one.
    parts = tuple(map(make, each(corpora) if data.weights else [corpora]))
    evaluated = {name: ValidationSet(make(one), one.pairs) for name, one in splits.items()}
    labels: tuple[str, ...] = ()
    if config.task == 'classification':
        labels = tuple(sorted({label for part in parts for label in part.labels}))
        for rows in (*parts, *(dataset.rows for dataset in evaluated.values())):
            rows.number_classes(labels)
    return Data(
        tokenizer=tokenizer,
        train=TrainingSet(parts, tuple(data.weights) or (1.0,), data.seed, data.batch_size),
        names=tuple(source.name for source in corpora.sources),
        **evaluated,
        source_tokenizer=source_tokenizer,
        labels=labels,
    )


def _size(split: TrainingSet | ValidationSet) -> str:
    size = f'{split.num_documents:,} {split.unit}'
    if split.num_tokens != split.num_documents:  # not one class each
        size += f', {split.num_tokens:,} tokens'
    size += f', {split.num_bytes:,} bytes'
    skipped = ', '.join(f'{count:,} {name}' for name, count in split.skipped.items())
    return f'{size} ({skipped})' if skipped else size
