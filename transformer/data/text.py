"""Text in pieces: UTF-8 files of any size, and cuts that no token crosses."""

import codecs
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from transformer.errors import UserError

BLOCK = 1 << 20  # bytes read at a time
PIECE = 1 << 14  # least characters in a piece that is not the last

# Where a word ends. By GPT-2's rule no token holds what is on both sides, so cutting here leaves
# the tokens as they are.
_WORD_END = re.compile(r'(?<=\S)(?=[ \n]\S)')


def read_text(path: Path, start: float = 0, stop: float = 1) -> Iterator[str]:
    """The pieces of a UTF-8 file, or of the part from fraction `start` to `stop` of its length.

    Raises:
        UserError: bytes that are not UTF-8, or a file that cannot be read.
    """
    try:
        with open(path, 'rb') as file:
            size = path.stat().st_size
            first, last = (_character_start(file, int(size * share)) for share in (start, stop))
            file.seek(first)
            yield from cut_text(_decode(file, first, last))
    except OSError as error:
        raise UserError(f'{path} cannot be read: {error.strerror}.') from None


def cut_text(blocks: Iterable[str]) -> Iterator[str]:
    """Joins `blocks` and cuts them again, at the end of a word where there is one."""
    rest = ''
    for block in blocks:
        rest += block
        begin = 0
        while len(rest) - begin >= 2 * PIECE:
            match = _WORD_END.search(rest, begin + PIECE, begin + 2 * PIECE)
            end = match.end() if match else begin + PIECE
            yield rest[begin:end]
            begin = end
        rest = rest[begin:]
    if rest:
        yield rest


def _character_start(file: BinaryIO, position: int) -> int:
    """The first position from `position` on that is not inside a UTF-8 character."""
    file.seek(position)
    continued = file.read(3)
    return position + len(continued) - len(continued.lstrip(bytes(range(0x80, 0xC0))))


def _decode(file: BinaryIO, position: int, stop: int) -> Iterator[str]:
    """The text of the bytes from `position`, where the file is, to `stop`."""
    decoder = codecs.getincrementaldecoder('utf-8')()
    while True:
        block = file.read(min(BLOCK, stop - position))
        held = len(decoder.getstate()[0])
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            raise UserError(
                f'{file.name} is not UTF-8 at byte {position - held + error.start} '
                f'({error.reason}): convert it, or leave it out of data.path.'
            ) from None
        if not block:
            return
        yield text
        position += len(block)
