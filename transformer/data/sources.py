"""Corpora: where the documents of `data.path` come from, and how they are split.

A source yields its documents as pieces, so that a document may be larger than memory. A document
belongs to the training or to the validation split by a hash of its path (of its text, for records),
which is the same on every machine and does not move when other documents are added.
"""

import glob
import hashlib
import json
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from transformer.data.cache import digest
from transformer.data.text import cut_text, read_text
from transformer.errors import UserError

Split = Literal['train', 'validation', 'all']

# Folders of the standard library that hold tests, other packages or compiled files.
STDLIB_SKIPPED = {
    'test',
    'tests',
    'idle_test',
    'site-packages',
    'dist-packages',
    '__pycache__',
}


class Piece(NamedTuple):
    """A stretch of a document; never empty."""

    text: str
    begins: bool  # the document starts here
    counted: bool  # its tokens are targets; False in a prompt


class Source(Protocol):
    """One corpus."""

    name: str  # as in data.path
    text_field: str  # of a record that has no prompt and completion
    validation_fraction: float
    num_bytes: int  # about; for progress bars and samples
    fingerprint: str  # of the content

    def pieces(self, split: Split) -> Iterator[Piece]:
        """The documents of a split, in a fixed order."""
        ...


@dataclass(frozen=True)
class Files:
    """Text files, one document each, and .jsonl files, one document a line.

    A lone text file is not one document in one split: its tail validates.
    """

    name: str
    root: Path
    paths: tuple[str, ...]  # relative to root, '/' between folders, sorted
    text_field: str
    validation_fraction: float

    @cached_property
    def num_bytes(self) -> int:
        return sum((self.root / path).stat().st_size for path in self.paths)

    @cached_property
    def fingerprint(self) -> str:
        return digest([(path, hash_file(self.root / path)) for path in self.paths])

    def pieces(self, split: Split) -> Iterator[Piece]:
        for path in self.paths:
            if path.endswith('.jsonl'):
                for parts in self._records(path):
                    if in_split(
                        '\0'.join(text for text, _ in parts), split, self.validation_fraction
                    ):
                        yield from document(parts)
            elif len(self.paths) == 1:
                yield from _mark(read_text(self.root / path, *self._share(split)))
            elif in_split(path, split, self.validation_fraction):
                yield from _mark(read_text(self.root / path))

    def _share(self, split: Split) -> tuple[float, float]:
        """The part of a lone text that a split reads, in fractions of its length."""
        border = 1 - self.validation_fraction
        return {'train': (0, border), 'validation': (border, 1), 'all': (0, 1)}[split]

    def _records(self, path: str) -> Iterator[list[tuple[str, bool]]]:
        with open(self.root / path, 'rb') as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                where = f'{self.root / path}:{number}'
                yield record_parts(parse_record(line, where), self.text_field, where)


@dataclass(frozen=True)
class HuggingFace:
    """A dataset of the Hugging Face hub: 'hf:NAME', 'hf:NAME:CONFIG' or 'hf:NAME:CONFIG:SPLIT'.

    The split read is 'train' unless given; its records are those of a .jsonl file.
    """

    name: str
    text_field: str
    validation_fraction: float

    def __post_init__(self):
        try:
            import datasets  # noqa: F401
        except ImportError:
            raise UserError(
                f'{self.name} needs Hugging Face datasets: pip install "datasets>=3"'
            ) from None

    @cached_property
    def records(self) -> Any:
        import datasets

        name, config, split = (self.name.removeprefix('hf:').split(':') + ['', ''])[:3]
        try:
            return datasets.load_dataset(name, config or None, split=split or 'train')
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f'{self.name} cannot be loaded: {reason}') from error

    @property
    def num_bytes(self) -> int:
        return self.records.dataset_size or 0

    @property
    def fingerprint(self) -> str:
        return self.records._fingerprint

    def pieces(self, split: Split) -> Iterator[Piece]:
        for number, record in enumerate(self.records):
            parts = record_parts(record, self.text_field, f'{self.name} record {number}')
            if in_split('\0'.join(text for text, _ in parts), split, self.validation_fraction):
                yield from document(parts)


def open_source(name: str, text_field: str, validation_fraction: float) -> Source:
    """The corpus that an entry of data.path or data.validation_path names.

    Raises:
        UserError: nothing there, a folder, no match, only empty files, or a missing package.
    """
    if name.startswith('hf:'):
        return HuggingFace(name, text_field, validation_fraction)
    if name == 'stdlib':
        root = Path(sysconfig.get_paths()['stdlib'])
        paths = python_files(root)
    else:
        found = find_files(name)
        root = Path(os.path.commonpath([path.parent for path in found]))
        paths = [path.relative_to(root).as_posix() for path in found]
    source = Files(name, root, tuple(sorted(paths)), text_field, validation_fraction)
    if not source.num_bytes:
        raise UserError(f'{name} is empty: give a corpus with text in it.')
    return source


def in_split(identity: str, split: Split, validation_fraction: float) -> bool:
    """Whether the document of this identity belongs to `split`."""
    if split == 'all':
        return True
    hashed = hashlib.blake2b(identity.encode(), digest_size=8).digest()
    validates = int.from_bytes(hashed, 'big') < validation_fraction * 2**64
    return validates == (split == 'validation')


def hash_file(path: Path) -> str:
    """Of the content.

    Raises:
        UserError: it cannot be read.
    """
    try:
        with open(path, 'rb') as file:
            return hashlib.file_digest(file, 'blake2b').hexdigest()
    except OSError as error:
        raise UserError(f'{path} cannot be read: {error.strerror}.') from None


def parse_record(line: str | bytes, where: str) -> Any:
    """The value of a JSON line.

    Raises:
        UserError: it is none.
    """
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, or too deep
        raise UserError(f'{where} is not JSON: {error}.') from None


def record_parts(record: Any, text_field: str, where: str) -> list[tuple[str, bool]]:
    """The texts of a record, each with whether its tokens count.

    Raises:
        UserError: neither prompt and completion nor `text_field`, or not a text.
    """
    if not isinstance(record, dict):
        raise UserError(f'{where} is a {type(record).__name__}, not an object with fields.')
    if {'prompt', 'completion'} <= record.keys():
        fields = {'prompt': False, 'completion': True}
    elif text_field in record:
        fields = {text_field: True}
    else:
        raise UserError(
            f'{where} has no field {text_field!r}, nor prompt and completion: set data.text_field '
            f'to one of {", ".join(record) or "its fields, but it has none"}.'
        )
    for field in fields:
        check_text(record[field], f'{where}: {field}')
    return [(record[field], counted) for field, counted in fields.items()]


def check_text(value: Any, where: str) -> None:
    """Raises UserError unless `value` is a string that has a UTF-8 form."""
    if not isinstance(value, str):
        raise UserError(f'{where} is a {type(value).__name__}, not a string.')
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UserError(f'{where} has half a surrogate pair, which is no character.') from None


def document(parts: list[tuple[str, bool]]) -> Iterator[Piece]:
    """The pieces of one document of several parts."""
    begins = True
    for text, counted in parts:
        for piece in cut_text([text]):
            yield Piece(piece, begins, counted)
            begins = False


def _mark(texts: Iterator[str]) -> Iterator[Piece]:
    """The pieces of one document in which every token counts."""
    for number, text in enumerate(texts):
        yield Piece(text, begins=number == 0, counted=True)


def python_files(root: Path) -> list[str]:
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in STDLIB_SKIPPED]
        files = [Path(folder, name) for name in names if name.endswith('.py')]
        # Some systems ship links to files that are not installed.
        found += [path.relative_to(root).as_posix() for path in files if path.is_file()]
    return found


def find_files(name: str) -> list[Path]:
    """The files of a path or a glob.

    Raises:
        UserError: nothing there, or a folder.
    """
    path = Path(os.path.expanduser(name)).absolute()
    if path.is_dir():
        raise UserError(f"{name} is a folder: give a glob, such as '{name.rstrip('/')}/**/*.txt'.")
    if path.exists():
        return [path]
    if not glob.has_magic(name):
        raise UserError(
            f"{name} does not exist: corpora are 'stdlib', a file, a glob, 'hf:NAME', and of pairs "
            "'dates' and 'docstrings'."
        )
    found = [Path(match) for match in glob.glob(str(path), recursive=True)]
    found = [match for match in found if match.is_file()]
    if not found:
        raise UserError(f'No file matches {name}: paths are relative to {Path.cwd()}.')
    return found
