"""Corpora of pairs: a source text and its target text, or its label.

A pair of which either side is blank is no pair: readers pass over it. A pair belongs to the
training or to the validation split by a hash of both its texts.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from transformer.data import dates, docstrings
from transformer.data.cache import digest
from transformer.data.sources import (
    HuggingFace,
    Piece,
    Split,
    check_text,
    document,
    find_files,
    hash_file,
    in_split,
    parse_record,
)
from transformer.errors import UserError

GENERATED = {'dates': dates, 'docstrings': docstrings}  # modules that make pairs out of nothing


class Pair(NamedTuple):
    """A text and what is to be made of it."""

    source: str
    target: str


class PairSource(Protocol):
    """One corpus of pairs."""

    name: str
    num_bytes: int  # of both sides, about; for progress bars and samples
    fingerprint: str  # of the content

    def read(self) -> Iterator[Pair]:
        """Every pair in a fixed order, blank ones included."""
        ...


@dataclass(frozen=True)
class AlignedFiles:
    """Two text files of which line i of the one belongs to line i of the other."""

    source: Path
    target: Path

    @property
    def name(self) -> str:
        return f'{self.source.name} -> {self.target.name}'

    @cached_property
    def num_bytes(self) -> int:
        return self.source.stat().st_size + self.target.stat().st_size

    @cached_property
    def fingerprint(self) -> str:
        """Read before anything else of the files, so it is here that unequal ones are found.

        Raises:
            UserError: the files have different numbers of lines.
        """
        counts = [_count_lines(path) for path in (self.source, self.target)]
        if counts[0] != counts[1]:
            raise UserError(
                f'{self.source} has {counts[0]:,} lines and {self.target} {counts[1]:,}: line i of '
                'one must be the pair of line i of the other.'
            )
        return digest('aligned', hash_file(self.source), hash_file(self.target))

    def read(self) -> Iterator[Pair]:
        sides = _read_lines(self.source), _read_lines(self.target)
        yield from map(Pair, *sides)


@dataclass(frozen=True)
class PairFiles:
    """Files of one pair a line: two columns of a .tsv, or two fields of a .jsonl object."""

    name: str
    paths: tuple[Path, ...]
    fields: tuple[str, str]

    @cached_property
    def num_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.paths)

    @cached_property
    def fingerprint(self) -> str:
        return digest('lines', [(path.suffix, hash_file(path)) for path in self.paths], self.fields)

    def read(self) -> Iterator[Pair]:
        for path in self.paths:
            for number, line in enumerate(_read_lines(path), 1):
                where = f'{path}:{number}'
                if path.suffix == '.tsv':
                    yield _columns(line, where)
                elif line.strip():
                    yield record_pair(parse_record(line, where), self.fields, where)


@dataclass(frozen=True)
class HuggingFacePairs:
    """Two fields of a dataset of the Hugging Face hub; see `HuggingFace`."""

    dataset: HuggingFace
    fields: tuple[str, str]

    @property
    def name(self) -> str:
        return self.dataset.name

    @property
    def num_bytes(self) -> int:
        return self.dataset.num_bytes

    @property
    def fingerprint(self) -> str:
        return digest('hf', self.dataset.fingerprint, self.fields)

    def read(self) -> Iterator[Pair]:
        for number, record in enumerate(self.dataset.records):
            yield record_pair(record, self.fields, f'{self.name} record {number}')


@dataclass(frozen=True)
class Generated:
    """Pairs that a module makes."""

    name: str
    version: Callable[[], Any]  # what decides the pairs
    make: Callable[[], Sequence[tuple[str, str]]]

    @cached_property
    def num_bytes(self) -> int:
        return sum(len(source) + len(target) for source, target in self.make())

    @property
    def fingerprint(self) -> str:
        return digest(self.name, self.version())

    def read(self) -> Iterator[Pair]:
        for source, target in self.make():
            yield Pair(source, target)


@dataclass(frozen=True)
class Side:
    """One side of the pairs of a corpus, as a `Source`: document i is of pair i."""

    pairs: PairSource
    text_field: Literal['source', 'target']
    validation_fraction: float

    @property
    def name(self) -> str:
        return self.pairs.name

    @property
    def num_bytes(self) -> int:
        return self.pairs.num_bytes // 2

    @property
    def fingerprint(self) -> str:
        return self.pairs.fingerprint

    def pieces(self, split: Split) -> Iterator[Piece]:
        for pair in read_pairs([self.pairs], split, self.validation_fraction):
            if not is_blank(pair):
                yield from document([(getattr(pair, self.text_field), True)])


def read_pairs(
    sources: Sequence[PairSource], split: Split, validation_fraction: float
) -> Iterator[Pair]:
    """The pairs of a split of all `sources`, in order, blank ones included."""
    for source in sources:
        for pair in source.read():
            if in_split('\0'.join(pair), split, validation_fraction):
                yield pair


def is_blank(pair: Pair) -> bool:
    """Whether a side has nothing but spaces."""
    return not (pair.source.strip() and pair.target.strip())


def open_pairs(name: str, fields: tuple[str, str]) -> PairSource:
    """The corpus of pairs that an entry of data.path names.

    Args:
        name: 'dates', 'docstrings', 'hf:NAME', or a file or glob of .tsv and .jsonl files.
        fields: of the source and of the target in a record; a dot leads into an object.

    Raises:
        UserError: nothing there, files of another kind, or a missing package.
    """
    if name in GENERATED:
        return Generated(name, GENERATED[name].version, GENERATED[name].pairs)
    if name.startswith('hf:'):
        return HuggingFacePairs(HuggingFace(name, '', 0.0), fields)
    paths = [] if name == 'stdlib' else find_files(name)
    if not paths or any(path.suffix not in ('.tsv', '.jsonl') for path in paths):
        raise UserError(
            f"{name} holds no pairs: give .tsv or .jsonl files, 'hf:NAME', "
            f'{", ".join(map(repr, GENERATED))}, or data.source_path and data.target_path.'
        )
    return PairFiles(name, tuple(sorted(paths)), fields)


def open_aligned(sources: Sequence[str], targets: Sequence[str]) -> list[PairSource]:
    """The files of data.source_path and data.target_path, paired in order.

    Raises:
        UserError: one does not exist.
    """
    found = [
        [path for name in names for path in sorted(find_files(name))]
        for names in (sources, targets)
    ]
    if len(found[0]) != len(found[1]):
        raise UserError(
            f'{", ".join(sources)} names {len(found[0])} files and {", ".join(targets)} '
            f'{len(found[1])}: every file of sources needs its file of targets.'
        )
    return [AlignedFiles(*paths) for paths in zip(*found, strict=True)]


def record_pair(record: Any, fields: tuple[str, str], where: str) -> Pair:
    """The pair of a record.

    Raises:
        UserError: a field that is not there, or that holds no text.
    """
    texts = []
    for role, field in zip(('source', 'target'), fields, strict=True):
        value, found = record, []
        for part in field.split('.'):
            found = list(value) if isinstance(value, dict) else []
            if part not in found:
                raise UserError(
                    f'{where} has no field {field!r}: set data.{role}_field to one of '
                    f'{", ".join(found) or "its fields, but it has none"}.'
                )
            value = value[part]
        check_text(value, f'{where}: {field}')
        texts.append(value)
    return Pair(*texts)


def _columns(line: str, where: str) -> Pair:
    columns = line.split('\t')
    if len(columns) != 2:
        raise UserError(
            f'{where} has {len(columns)} columns: a .tsv of pairs has two, with a tab between.'
        )
    return Pair(*columns)


def _read_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file, which end at line feeds alone, without them."""
    with open(path, 'rb') as file:
        for number, line in enumerate(file, 1):
            try:
                yield line.decode().rstrip('\r\n')
            except UnicodeDecodeError as error:
                raise UserError(f'{path}:{number} is not UTF-8 ({error.reason}).') from None


def _count_lines(path: Path) -> int:
    with open(path, 'rb') as file:
        return sum(1 for _ in file)
