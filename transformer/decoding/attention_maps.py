"""Attention weights of a forward pass, and a picture of them: tokens by tokens, head by head."""

import contextlib
import errno
import functools
import os
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import jax
import numpy as np
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, fontManager, get_font

from transformer.config import TransformerConfig
from transformer.errors import UserError, check_choice
from transformer.modules import Transformer, unstack_layers

FORMATS = ('.pdf', '.png', '.svg')
# Sizes of a picture, in inches but for the first.
MAX_CELLS = 600  # tokens times panels along a side: beyond, labels would be too small to read
MAX_SIDE = 64  # of all panels together
CELL = 0.2  # of a token, where there is room
MIN_PANEL = 1.1  # as wide as its title
GAPS = 0.15, 0.35  # between panels: beside and above, where the title is
DPI = 125
POINTS = 72  # an inch

MAX_LABEL = 24  # characters
FONT = 'DejaVu Sans'  # comes with matplotlib
BOXES = 'Last Resort', 'LastResort', '.LastResort'  # fonts that draw a box for any character
ESCAPES = {' ': '␣', '\n': r'\n', '\r': r'\r', '\t': r'\t', '\\': r'\\'}
# What the bytes that are no character decode to.
ESCAPES |= {chr(0xDC00 + byte): rf'\x{byte:02x}' for byte in range(128, 256)}
JOINERS = '\u200c\u200d'  # of the letters on both sides; shown where there are two
CIRCLE = '◌'  # under a mark that has no letter


def attention_weights(
    model: Transformer, params: Any, tokens: Sequence[int], source: Sequence[int] | None = None
) -> list[np.ndarray]:
    """The attention weights of one row of tokens, from the model's own forward pass.

    Row t of a matrix is the query made of token t: in a decoder, of the token that is read while
    the next one is predicted.

    Args:
        model, params: scanned or unrolled.
        tokens: T token ids of the stack that makes the logits.
        source: S token ids of the encoder of an encoder_decoder, None for others.

    Returns:
        For each layer of the stack that makes the logits, float [N, T, S]: the cross-attention of
        an encoder_decoder, the self-attention (S = T) of others. Every row sums to 1.

    Raises:
        UserError: before any device work: a source that lacks or is not for this topology, no
            tokens, more than model.max_length, or ids outside the vocabulary.
    """
    _check_tokens(model.config, tokens, source)
    batch = {'tokens': np.array([tokens], np.int32)}
    if source is not None:
        batch['encoder_tokens'] = np.array([source], np.int32)
    return [np.asarray(layer) for layer in _weights(params, batch, config=model.config)]


@functools.partial(jax.jit, static_argnames='config')
def _weights(params, batch, config):
    """[N, T, S] of each layer, for the one row of the batch."""
    stack = 'encoder' if config.topology == 'encoder' else 'decoder'
    kind = 'cross_attention' if config.topology == 'encoder_decoder' else 'self_attention'
    _, state = Transformer(config).apply(
        {'params': params}, batch, method='features', mutable=['intermediates']
    )
    layers = unstack_layers(state['intermediates'], config)[stack]
    sown = [layers[f'layer_{i}'][kind]['attention_weights'] for i in range(config.num_layers)]
    return [weights[0] for (weights,) in sown]


def plot_attention(
    model: Transformer,
    params: Any,
    tokenizer: Any,
    tokens: Sequence[int],
    path: str | os.PathLike,
    source: Sequence[int] | None = None,
    source_tokenizer: Any = None,
) -> None:
    """Draws `attention_weights`: a row of panels a layer, a column a head, numbered from 0.

    In a panel, queries go down and keys to the right. Every token is labelled with its text: a
    space is ␣, what else cannot be seen is escaped, a part of a character is its bytes (\\xe4), and
    a character that no installed font has is its code point (U+4E09).

    Args:
        model, params, tokens, source: as in `attention_weights`.
        tokenizer: a `transformer.data.Tokenizer`, that of `tokens`.
        path: of the picture, in one of FORMATS; what is there is replaced.
        source_tokenizer: that of `source`; None: the same.

    Raises:
        UserError: before any device work: as `attention_weights`, a path that cannot be written,
            another format, or more tokens and heads than one picture can show.
    """
    config = model.config
    keys = tokens if source is None else source
    _check_tokens(config, tokens, source)
    _check_room(config.num_heads, 'heads', len(keys), 'tokens' if source is None else 'source')
    _check_room(config.num_layers, 'layers', len(tokens), 'tokens')
    path = check_picture(path)
    with _replaced(path) as file:
        texts = tokenizer.token_texts(tokens)
        key_texts = (source_tokenizer or tokenizer).token_texts(keys)
        weights = np.stack(attention_weights(model, params, tokens, source))  # [layers, N, T, S]
        figure = _draw(weights, texts, key_texts, is_cross=source is not None)
        figure.savefig(file, format=path.suffix[1:].lower(), dpi=DPI, bbox_inches='tight')


def check_picture(path: str | os.PathLike) -> Path:
    """The path of a picture to be drawn, a leading ~ expanded.

    Raises:
        UserError: it cannot be written, or is none of FORMATS.
    """
    path = Path(os.path.expanduser(path))
    check_choice(path.suffix.lower(), FORMATS, f'The ending of the picture {path}')
    with _opened(path):
        _unfinished(path).unlink()
    return path


def _check_tokens(config: TransformerConfig, tokens: Sequence[int], source: Sequence[int] | None):
    if (source is None) == (config.topology == 'encoder_decoder'):
        raise UserError(
            f'A model of topology {config.topology!r} has no source: give tokens alone.'
            if source is not None
            else 'An encoder_decoder attends to a source: give the source tokens too.'
        )
    source_size = config.encoder_vocab_size or config.vocab_size
    rows = {'tokens': (tokens, config.vocab_size), 'source': (source, source_size)}
    for name, (ids, size) in rows.items():
        if ids is None:
            continue
        if not 1 <= len(ids) <= config.max_length:
            raise UserError(
                f'{name} must be 1 to model.max_length {config.max_length} ids, not {len(ids)}.'
            )
        if not 0 <= min(ids) <= max(ids) < size:
            wrong = next(id for id in ids if not 0 <= id < size)
            raise UserError(
                f'{name} has token {wrong}, outside the model vocabulary of {size}: encode it '
                'with the tokenizer of the model.'
            )


def _check_room(panels: int, what: str, count: int, name: str):
    if panels * count > MAX_CELLS:
        raise UserError(
            f'{panels} {what} of {count} {name} are {panels * count} cells along one side of the '
            f'picture, and at most {MAX_CELLS} are legible: give at most {MAX_CELLS // panels} '
            f'{name}, or draw a part of what attention_weights returns.'
        )


@contextlib.contextmanager
def _replaced(path: Path) -> Iterator[BinaryIO]:
    """A file that becomes `path` at the end: not before, and not if something fails."""
    try:
        with _opened(path) as file:
            yield file
        os.replace(_unfinished(path), path)
    finally:
        _unfinished(path).unlink(missing_ok=True)


def _opened(path: Path) -> BinaryIO:
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, 'Is a directory')
        return _unfinished(path).open('wb')
    except OSError as error:
        raise UserError(
            f'{path} cannot be written ({error.strerror}): give the path of a picture in a folder '
            'that exists and is yours.'
        ) from None


def _unfinished(path: Path) -> Path:
    return path.with_name(f'{path.name}.tmp')


def make_labels(texts: Iterable[str]) -> tuple[list[str], list[str]]:
    """One line for each text, of characters that can be seen, and the font families to draw them.

    What cannot be seen or has no font is written as its code point, and long texts are cut.
    """
    characters = {character for text in texts for character in text}
    # Controls and spaces show nothing, or turn the label around.
    hidden = {c for c in characters if unicodedata.category(c)[0] in 'CZ'} - {*JOINERS}
    families, missing = choose_fonts(characters - hidden)
    return [_label(text, hidden | missing) for text in texts], families


def _label(text: str, coded: Collection[str]) -> str:
    label = ''
    if text and text[0] not in coded and unicodedata.category(text[0])[0] == 'M':
        label = CIRCLE
    for i, character in enumerate(text):
        joins = 0 < i < len(text) - 1 or character not in JOINERS
        piece = ESCAPES.get(character, character)
        if piece in coded or not joins:
            piece = f' U+{ord(character):04X} '
        if len(label) + len(piece) > MAX_LABEL:
            label += '…'
            break
        label += piece
    return ' '.join(label.split())  # the only spaces are those around code points


def _is_letter(label: str) -> bool:
    """One character, with marks or without."""
    return sum(unicodedata.category(character)[0] != 'M' for character in label) == 1


def choose_fonts(characters: Iterable[str]) -> tuple[list[str], set[str]]:
    """Installed font families, FONT first, and the characters that none of them has."""

    def drawn(path):
        font = get_font(path)
        return {character for character in missing if font.get_char_index(ord(character))}

    families, missing = [FONT], set(characters)
    missing -= drawn(findfont(FONT))
    regular = [font for font in fontManager.ttflist if (font.style, font.weight) == ('normal', 400)]
    for font in sorted(regular, key=lambda font: ('Sans' not in font.name, font.name)):
        if not missing:
            break
        is_there = os.path.isfile(font.fname) and not font.name.startswith(BOXES)
        # A family may have other files: what counts is the one that matplotlib takes.
        if is_there and drawn(font.fname) and (found := drawn(findfont(font.name))):
            families.append(font.name)
            missing -= found
    return families, missing


def _draw(
    weights: np.ndarray, texts: Sequence[str], key_texts: Sequence[str], is_cross: bool
) -> Figure:
    """The figure of weights [layers, N, T, S] with the texts of T queries and S keys.

    Labels hang over its edges: it is saved with a tight bounding box.
    """
    layers, N, T, S = weights.shape
    cell = min(CELL, MAX_SIDE / (N * S), MAX_SIDE / (layers * T))
    width, height = max(S * cell, MIN_PANEL), max(T * cell, MIN_PANEL)
    beside, above = GAPS
    figure = Figure((N * width + (N - 1) * beside, layers * height + (layers - 1) * above))
    edges = {'left': 0, 'right': 1, 'bottom': 0, 'top': 1}
    gaps = {'wspace': beside / width, 'hspace': above / height}
    panels = figure.subplots(layers, N, squeeze=False, gridspec_kw=edges | gaps)
    for layer, head in np.ndindex(layers, N):
        axes = panels[layer, head]
        image = axes.imshow(weights[layer, head], vmin=0, vmax=1, cmap='Blues', aspect='auto')
        axes.set_title(f'layer {layer}, head {head}', fontsize=np.clip(3 * width, 8, 16), pad=4)
        axes.set(xticks=[], yticks=[])

    labels, families = make_labels([*texts, *key_texts])
    style = {'fontsize': min(9, 0.8 * cell * POINTS), 'fontfamily': families, 'parse_math': False}
    query, key = ('output token', 'source token') if is_cross else ('query', 'key')
    for axes in panels[:, 0]:
        axes.set_yticks(range(T), labels[:T], **style)
        axes.set_ylabel(query)
    for axes in panels[-1]:
        axes.set_xticks(range(S), labels[T:], **style)
        axes.set_xlabel(key)
        for label in axes.get_xticklabels():
            label.set_rotation(0 if _is_letter(label.get_text()) else 90)
    inch = 1 / figure.get_figwidth(), 1 / figure.get_figheight()
    tall = min(1, 4 * inch[1])
    bar = figure.add_axes((1 + 0.2 * inch[0], 1 - tall, 0.15 * inch[0], tall))
    figure.colorbar(image, cax=bar, label='attention weight')
    return figure
