"""Tokenizers: text to ids and back, all kept in a `tokenizer.json` of the `tokenizers` library.

Three kinds are made here, each lossless for any text it can encode: `bytes` (256 ids), `chars`
(one id for each character of the corpus) and `bpe` (byte-level byte-pair encoding, Sennrich et
al. 2016, split into words as in GPT-2). Every other `tokenizer.json` can be given by its path.

One special token separates documents, and a task may need others. Text never encodes to one, not
even its own spelling: only the pipeline puts them between documents, and they decode to nothing.
"""

import copy
import json
import os
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from transformer.data import spelling
from transformer.errors import UserError, choose

END_OF_TEXT = '<|endoftext|>'
# What tokenizers made elsewhere call the token that ends a text, in order of preference.
END_TOKENS = (END_OF_TEXT, '<|end_of_text|>', '</s>', '<eos>', '[SEP]')
MASK_TOKENS = ('[MASK]', '<mask>')  # what is in the place of a masked token
SENTINELS = tuple(f'<extra_id_{number}>' for number in range(100))  # in the place of a span, in T5
FILE_NAME = 'tokenizer.json'


class Tokenizer:
    """Text to ids and back.

    Args:
        backend: the `tokenizers` object; its padding, truncation and special tokens are unused.
        name: what an error calls it.

    Attributes:
        vocab_size: largest id + 1.
        eos_id: id of the token that begins and ends every document.
        start_id: id of the token that begins every target of a pair; `eos_id` but in `for_pairs`.
        prefix: ids before those of every text; none but in `for_pairs`.
        mask_id: id of the token that masks another; None: there is none.
        sentinel_ids: ids of the tokens <extra_id_0>, <extra_id_1> ... that it has.

    Raises:
        UserError: `backend` has none of END_TOKENS.
    """

    def __init__(self, backend: tokenizers.Tokenizer, name: str = 'the tokenizer'):
        backend.no_padding()
        backend.no_truncation()
        backend.encode_special_tokens = True  # as the text they are, not as the special ids
        self._backend = backend
        self._characters = _characters(backend)
        vocab = backend.get_vocab(with_added_tokens=True)
        end = next((token for token in END_TOKENS if token in vocab), None)
        if end is None:
            raise UserError(
                f'{name} has no token that ends a document: add one of {", ".join(END_TOKENS)}.'
            )
        self.vocab_size = max(vocab.values()) + 1
        self.eos_id = self.start_id = vocab[end]
        self.prefix: list[int] = []
        self.mask_id = next((vocab[token] for token in MASK_TOKENS if token in vocab), None)
        self.sentinel_ids = tuple(vocab[token] for token in SENTINELS if token in vocab)

    def encode(self, text: str) -> list[int]:
        """The ids of `text`; raises as `encode_batch`."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without separators, after `prefix`.

        Raises:
            UserError: a character that a `chars` vocabulary lacks, or half a surrogate pair.
        """
        text = ''.join(texts)
        if unknown := self.unknown_characters(text):
            shown = ' '.join(map(repr, unknown[:8])) + (' ...' if len(unknown) > 8 else '')
            raise UserError(
                f'The chars vocabulary lacks {shown}: leave them out of the text, or train with '
                'data.tokenizer bytes or bpe, which encode everything.'
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f'The text holds {text[error.start]!r}, half a surrogate pair, which is no '
                'character: give valid UTF-8.'
            ) from None
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [self.prefix + encoding.ids for encoding in encodings]

    def for_pairs(self, start_id: int | None) -> 'Tokenizer':
        """This tokenizer for sources and targets as a published model reads and writes them.

        Args:
            start_id: of the token that begins targets; None: `eos_id`.

        Raises:
            UserError: its tokenizer.json ends texts with something else than `eos_id`.
        """
        before, after = self.template
        if after not in ([], [self.eos_id]):
            raise UserError(
                f'The tokenizer.json ends a text with the tokens {after}, and pairs end with '
                f'{self.eos_id} alone.'
            )
        tokenizer = copy.copy(self)
        tokenizer.prefix = before
        tokenizer.start_id = self.eos_id if start_id is None else start_id
        return tokenizer

    @cached_property
    def template(self) -> tuple[list[int], list[int]]:
        """Special tokens that the tokenizer.json puts before and after a text; ours puts none."""
        plain = self._backend.encode('a', add_special_tokens=False).ids
        whole = self._backend.encode('a', add_special_tokens=True).ids
        first = next(
            (i for i in range(len(whole)) if whole[i : i + len(plain)] == plain), len(whole)
        )
        return whole[:first], whole[first + len(plain) :]

    def unknown_characters(self, text: str) -> list[str]:
        """Characters of `text` that a `chars` vocabulary lacks, sorted; else empty."""
        return [] if self._characters is None else sorted(set(text) - self._characters)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`; raises as `decode_batch`."""
        return self.decode_batch([ids])[0]

    def decode_batch(self, sequences: Iterable[Iterable[int]]) -> list[str]:
        """The text of each; special tokens spell nothing, broken UTF-8 becomes U+FFFD.

        Raises:
            UserError: an id that is not in the vocabulary.
        """
        sequences = [[int(id) for id in ids] for ids in sequences]
        for ids in sequences:
            if ids and not 0 <= min(ids) <= max(ids) < self.vocab_size:
                wrong = next(id for id in ids if not 0 <= id < self.vocab_size)
                raise UserError(
                    f'Token {wrong} is outside the vocabulary of {self.vocab_size} tokens: is this '
                    "the model's own tokenizer?"
                )
        return self._backend.decode_batch(sequences, skip_special_tokens=True)

    def token_texts(self, ids: Iterable[int]) -> list[str]:
        """What each token spells by itself, its leading space included.

        A byte that is no whole character is a surrogate, as of the error handler
        'surrogateescape', and an id that is not in the vocabulary is its number, as #17.
        """
        return spelling.token_texts(self.to_json(), ids)

    def to_json(self) -> str:
        """The text of its tokenizer.json, equal for equal tokenizers."""
        return self._backend.to_str()

    def save(self, folder: str | Path) -> Path:
        """Writes and returns `folder`/tokenizer.json."""
        path = Path(folder) / FILE_NAME
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.to_json(), encoding='utf-8')
        return path


class StreamDecoder:
    """Text of ids that arrive one by one, in whole characters.

    The strings of all `step` calls and the last `flush`, joined, are `decode` of all the ids.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._shown: list[int] = []  # the ids shown last: some decoders look one word back
        self._pending: list[int] = []

    def step(self, id: int) -> str:
        """The text that `id` completes; '' while a character is incomplete."""
        self._pending.append(id)
        text = self._text()
        if not text or text.endswith('\ufffd'):
            return ''
        self._shown, self._pending = self._pending, []
        return text

    def flush(self) -> str:
        """What is left at the end, its incomplete character as U+FFFD."""
        text, self._pending = self._text(), []
        return text

    def _text(self) -> str:
        seen = len(self._tokenizer.decode(self._shown))
        return self._tokenizer.decode(self._shown + self._pending)[seen:]


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a tokenizer.json, or of a folder that holds one.

    Raises:
        UserError: no such file, not a tokenizer.json, or no token that ends a document.
    """
    path = Path(os.path.expanduser(path))  # Path.expanduser raises for a user unknown
    if path.is_dir():
        path = path / FILE_NAME
    if not path.is_file():
        raise UserError(
            f'There is no tokenizer {path}: give bytes, chars, bpe, or the path of a {FILE_NAME}.'
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more precise
        raise UserError(f'{path} is not a {FILE_NAME}: {error}.') from None
    return Tokenizer(backend, str(path))


def train_tokenizer(
    kind: str, texts: Iterable[str], vocab_size: int = 0, special_tokens: Sequence[str] = ()
) -> Tokenizer:
    """A new tokenizer of a kind in TRAINERS, made from `texts`.

    Args:
        kind: 'bytes', 'chars' or 'bpe'.
        texts: read once; unused by 'bytes'.
        vocab_size: entries of 'bpe', special tokens and 256 bytes included. Fewer come out when
            the text has no more pairs to merge.
        special_tokens: after the separator.

    Raises:
        UserError: an unknown kind, or a vocab_size too small for the bytes.
    """
    special_tokens = [END_OF_TEXT, *special_tokens]
    return Tokenizer(choose(TRAINERS, kind, 'data.tokenizer')(texts, vocab_size, special_tokens))


def _train_bytes(texts: Iterable[str], vocab_size: int, special: list[str]) -> tokenizers.Tokenizer:
    backend = _byte_level(models.BPE(vocab=spelling.BYTES, merges=[]), split_words=False)
    backend.add_special_tokens(special)
    return backend


def _train_chars(texts: Iterable[str], vocab_size: int, special: list[str]) -> tokenizers.Tokenizer:
    characters: set[str] = set()
    for text in texts:
        characters.update(text)
    vocab = {character: id for id, character in enumerate(sorted(characters))}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(special)
    return backend


def _train_bpe(texts: Iterable[str], vocab_size: int, special: list[str]) -> tokenizers.Tokenizer:
    if vocab_size < 256 + len(special):
        what = 'a separator' if len(special) == 1 else f'{len(special)} special tokens'
        raise UserError(
            f'data.vocab_size {vocab_size} is too small for bpe, which starts from 256 bytes and '
            f'{what}: set at least {256 + len(special)}.'
        )
    backend = _byte_level(models.BPE(), split_words=True)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return backend


TRAINERS: dict[str, Callable[[Iterable[str], int, list[str]], tokenizers.Tokenizer]] = {
    'bytes': _train_bytes,
    'chars': _train_chars,
    'bpe': _train_bpe,
}


def _byte_level(model: models.BPE, split_words: bool) -> tokenizers.Tokenizer:
    """A tokenizer whose symbols are bytes, written as the library's 256 printable characters."""
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split_words)
    backend.decoder = decoders.ByteLevel()
    return backend


def _characters(backend: tokenizers.Tokenizer) -> set[str] | None:
    """The vocabulary of a `chars` tokenizer; None for other kinds, which know every character.

    The library drops unknown characters without a word, so they are looked for before.
    """
    spec = json.loads(backend.to_str())
    whole = spec['pre_tokenizer'] is None and spec['decoder'] == {'type': 'Fuse'}
    if whole and spec['model']['type'] == 'BPE' and not spec['model']['merges']:
        return set(spec['model']['vocab'])
    return None
