"""The corpora that the fields of `config.data` name, opened, and what each split reads of them."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ml_collections import ConfigDict

from transformer.data.pairs import (
    Pair,
    PairSource,
    Side,
    is_blank,
    open_aligned,
    open_pairs,
    read_pairs,
)
from transformer.data.sources import Source, Split, open_source
from transformer.data.tasks import TASKS

Texts = tuple[Sequence[Source], Split]  # what `load_corpus` reads


class Paths(NamedTuple):
    """What a config names for one split."""

    path: tuple[str, ...]
    source: tuple[str, ...]  # files of sources, line by line those of
    target: tuple[str, ...]  # these of targets


@dataclass(frozen=True)
class Documents:
    """Documents of some corpora."""

    sources: Sequence[Source]
    split: Split

    def texts(self, *sides: str) -> Texts:
        """The documents, which have no sides to choose from."""
        return self.sources, self.split

    def pairs(self) -> list[Pair]:
        """None: documents are no pairs."""
        return []


@dataclass(frozen=True)
class Pairs:
    """Pairs of some corpora."""

    sources: Sequence[PairSource]
    split: Split
    validation_fraction: float

    def texts(self, *sides: str) -> Texts:
        """The texts of the sides 'source', 'target' or both."""
        fraction = self.validation_fraction
        return [Side(one, side, fraction) for one in self.sources for side in sides], self.split

    def read(self) -> Iterator[Pair]:
        """Every pair in order, blank ones included."""
        return read_pairs(self.sources, self.split, self.validation_fraction)

    def pairs(self) -> list[Pair]:
        """Every pair in order."""
        return [pair for pair in self.read() if not is_blank(pair)]


Corpora = Documents | Pairs


def each(corpora: Corpora) -> list[Corpora]:
    """The corpora one by one."""
    return [dataclasses.replace(corpora, sources=[source]) for source in corpora.sources]


def split_paths(data: ConfigDict) -> dict[str, Paths]:
    """The paths of each split, by what the names of their fields begin with."""
    return {
        '': Paths(data.path, data.source_path, data.target_path),
        'validation_': Paths(
            data.validation_path, data.validation_source_path, data.validation_target_path
        ),
        'test_': Paths(data.test_path, data.test_source_path, data.test_target_path),
    }


def open_splits(config: ConfigDict) -> dict[str, Corpora]:
    """What 'train', 'validation' and, where fields name it, 'test' read.

    Raises:
        UserError: a corpus is not there, or not of the kind that the task reads.
    """
    train, held_out, test = (_open(config, paths) for paths in split_paths(config.data).values())

    def corpora(sources: list, split: Split) -> Corpora:
        if TASKS[config.task].pairs:
            return Pairs(sources, split, config.data.validation_fraction)
        return Documents(sources, split)

    splits = {
        'train': corpora(train, 'all' if held_out else 'train'),
        'validation': corpora(held_out, 'all') if held_out else corpora(train, 'validation'),
    }
    return splits | {'test': corpora(test, 'all')} if test else splits


def _open(config: ConfigDict, paths: Paths) -> list[Source] | list[PairSource]:
    data = config.data
    if not TASKS[config.task].pairs:
        fraction = data.validation_fraction
        return [open_source(name, data.text_field, fraction) for name in paths.path]
    if paths.source:
        return open_aligned(paths.source, paths.target)
    return [open_pairs(name, (data.source_field, data.target_field)) for name in paths.path]
