"""Special tokens in a text: the masks and sentinels that a user writes and a model answers with.

A tokenizer never reads a special token in a text, so the text is cut at them here.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def encode_marked(
    tokenizer: Any, texts: Sequence[str], marks: Mapping[str, int]
) -> list[list[int]]:
    """The ids of texts in which special tokens are spelt out.

    Where the tokenizer keeps the space before a word with the word, one space before a mark goes:
    it is a part of what the mark stands for.

    Args:
        tokenizer: a `transformer.data.Tokenizer`.
        marks: the id of each special token by its spelling.

    Raises:
        UserError: as `tokenizer.encode_batch`.
    """
    if not marks:
        return tokenizer.encode_batch(texts)
    space = ' ' if _words_have_spaces(tokenizer) else ''
    spelt = re.compile('|'.join(map(re.escape, sorted(marks, key=len, reverse=True))))
    rows = []
    for text in texts:
        *before, last = spelt.split(text)
        row = []
        for piece, mark in zip(before, spelt.findall(text), strict=True):
            row += [*tokenizer.encode(piece.removesuffix(space)), marks[mark]]
        rows.append(row + tokenizer.encode(last))
    return rows


def decode_marked(tokenizer: Any, ids: Iterable[int], marks: Mapping[str, int]) -> str:
    """The text of ids, with the special tokens among `marks` spelt out and the others left out."""
    spellings = {id: spelling for spelling, id in marks.items()}
    pieces: list[Any] = [[]]
    for id in ids:
        if id in spellings:
            pieces += [spellings[id], []]
        else:
            pieces[-1].append(id)
    return ''.join(part if type(part) is str else tokenizer.decode(part) for part in pieces)


def _words_have_spaces(tokenizer):
    """Whether there are tokens of a space and a word, as seen after another word."""
    ids = range(tokenizer.vocab_size)
    texts = tokenizer.decode_batch([[id] for id in ids])
    word = next((id for id, text in enumerate(texts) if text.isalnum()), None)
    if word is None:
        return False
    pairs = tokenizer.decode_batch([[word, id] for id in ids])
    return any(re.match(r' \w', pair[len(texts[word]) :]) for pair in pairs)
