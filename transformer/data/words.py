"""Where words begin in a row of tokens, for any tokenizer."""

import unicodedata

import numpy as np

from transformer.data.tokenizers import Tokenizer


def word_edges(tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Which tokens begin, and which end, inside a word.

    A word goes on from one token to the next where a letter (a digit, a mark, a byte of a longer
    character) of the one touches one of the other; all other tokens are words of their own. What
    a token spells after another one shows whether a space, written or implied, keeps them apart.

    Returns:
        Both [V] bool: the token's first character may go on with a word; its last one may.
    """
    ids = range(tokenizer.vocab_size)
    alone = tokenizer.decode_batch([[id] for id in ids])
    letter = next((id for id, text in enumerate(alone) if text and all(map(_in_word, text))), None)
    edges = np.zeros((2, tokenizer.vocab_size), bool)
    if letter is not None:
        before = len(alone[letter])
        for id, text in enumerate(tokenizer.decode_batch([[letter, id] for id in ids])):
            if spelt := text[before:]:
                edges[:, id] = _in_word(spelt[0]), _in_word(spelt[-1])
    return edges[0], edges[1]


def _in_word(character: str) -> bool:
    return unicodedata.category(character)[0] in 'LMN' or character == '\ufffd'
