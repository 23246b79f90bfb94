"""Generating text from prompts: checks, batches padded to buckets, and tokens back by chunks."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.config import TransformerConfig
from transformer.decoding.loop import CHUNK, decode, prefill
from transformer.errors import UserError
from transformer.modules import Transformer, unstack_layers

SMALLEST_BUCKET = 16


def generate(
    model: Transformer, params: Any, prompts: Sequence[Sequence[int]], **options: Any
) -> list[list[int]]:
    """The tokens that continue each prompt.

    Args:
        model, params, prompts: as in `stream`.
        **options: further arguments of `stream`; `max_new_tokens` is required.

    Returns:
        The new tokens of each prompt, an `eos_id` that ended them included.

    Raises:
        UserError: as `stream`.
    """
    rows = [[] for _ in prompts]
    for chunk in stream(model, params, prompts, **options):
        for row, new in zip(rows, chunk, strict=True):
            row += new
    return rows


def stream(
    model: Transformer,
    params: Any,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    key: jax.Array | None = None,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    eos_id: int | None = None,
    vocab_limit: int | None = None,
    first_row: int = 0,
    chunk: int = CHUNK,
) -> Iterator[list[list[int]]]:
    """Continues prompts, all together, and yields the new tokens as they are made.

    Prompts and cache are padded to buckets of length, a power of two each. A compiled program
    serves all prompts of its buckets and all values of temperature, top_k, top_p and min_p but
    those that turn the option off.

    Args:
        model: a decoder with a language-model head.
        params: its parameters. A caller of many times passes model and parameters through
            `unrolled` once, which is else done by each call.
        prompts: token ids, at least one a prompt: that of the token which begins a document.
        max_new_tokens: for each prompt.
        key: of the randomness; only greedy decoding needs none. What a row draws is a function of
            the key, of its number (`first_row` + index) and of the tokens before.
        temperature: of the draw; 0 is greedy, 1 is the model's own distribution.
        top_k, top_p, min_p: as `transformer.functional.sample`; 0, 1 and 0 are off.
        eos_id: the token after which a row ends; None: no token does.
        vocab_limit: ids from here on are never made (the tokenizer's size, where the model's
            is larger); None: all may be.
        first_row: number of the first prompt, if they are a part of many.
        chunk: new tokens of a row in an item of the iterator, at most CHUNK. The device returns
            to the host once a chunk, not once a token.

    Returns:
        An iterator of chunks: for each prompt the list of its new tokens, empty after its end.

    Raises:
        UserError: at the call, before any work: see `check_sampling` and `check_prompts`.
    """
    check_sampling(temperature, top_k, top_p, min_p)
    check_prompts(model.config, prompts, max_new_tokens)
    if temperature > 0 and key is None:
        raise UserError(f'temperature {temperature} draws tokens: give a key, or temperature 0.')
    if not 1 <= chunk <= CHUNK:
        raise UserError(f'chunk must be in 1 to {CHUNK}, not {chunk}.')

    model, params = unrolled(model, params)
    longest = max(map(len, prompts))
    size = _bucket(longest + max_new_tokens, model.config.max_length)
    tokens, lengths = _padded([prompt[:-1] for prompt in prompts], size)
    newest = np.array([prompt[-1] for prompt in prompts], np.int32)
    state = prefill(params, tokens, lengths, newest, config=model.config, size=size)
    rows = np.arange(first_row, first_row + len(prompts), dtype=np.int32)

    draw = {'key': None, 'options': None}
    if temperature > 0:
        draw = {'key': key, 'options': _draw_options(temperature, top_k, top_p, min_p)}

    def advance(state, stop):
        return decode(
            params,
            state,
            rows=rows,
            eos_id=np.int32(-1 if eos_id is None else eos_id),
            stop=np.int32(stop),
            config=model.config,
            vocab_limit=vocab_limit or model.config.vocab_size,
            **draw,
        )

    return _chunks(state, advance, max_new_tokens, eos_id, chunk)


def _chunks(state, advance, max_new_tokens, eos_id, chunk) -> Iterator[list[list[int]]]:
    """The new tokens of `advance(state, stop)`, called until all are made or all rows ended."""
    ended = [False] * len(state.ended)
    count = 0
    while count < max_new_tokens and not all(ended):
        state, tokens = advance(state, min(count + chunk, max_new_tokens))
        made = int(state.count) - count
        count += made
        new = np.asarray(tokens)[:, :made].tolist()
        for i, row in enumerate(new):
            if ended[i]:
                row.clear()
            elif eos_id in row:
                del row[row.index(eos_id) + 1 :]
                ended[i] = True
        yield new


def unrolled(model: Transformer, params: Any) -> tuple[Transformer, Any]:
    """The same model as decoding runs it; what is so already is returned as it is.

    Layers are apart, not scanned, and matrices are in the computation's dtype, if that is the
    narrower one: so a step neither slices nor converts what it reads.
    """
    config = model.config
    if config.scan_layers:
        params = unstack_layers(params, config)
        model = Transformer(dataclasses.replace(config, scan_layers=False))
    dtype = jnp.dtype(config.dtype)

    def narrow(leaf):
        # Norms, which are vectors, compute in the dtype of their parameters.
        is_wide = leaf.ndim > 1 and leaf.dtype.itemsize > dtype.itemsize
        return jnp.asarray(leaf, dtype if is_wide else None)

    return model, jax.tree.map(narrow, params)


def check_sampling(temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    """Raises UserError for options of the draw that mean nothing."""
    _check('temperature', temperature, 0 <= temperature < math.inf, 'finite and at least 0')
    _check('top_k', top_k, top_k >= 0, 'at least 0 (0: off)')
    _check('top_p', top_p, 0 < top_p <= 1, 'in (0, 1] (1: off)')
    _check('min_p', min_p, 0 <= min_p <= 1, 'in [0, 1] (0: off)')


def check_prompts(
    config: TransformerConfig, prompts: Sequence[Sequence[int]], max_new_tokens: int
) -> None:
    """Raises UserError unless the model can read the prompts and has room for the new tokens."""
    if (config.topology, config.head) != ('decoder', 'lm'):
        raise UserError(
            f"Text is generated by a model of topology 'decoder' with head 'lm', not by "
            f'{config.topology!r} with {config.head!r}.'
        )
    _check('max_new_tokens', max_new_tokens, max_new_tokens >= 1, 'at least 1')
    if not prompts:
        raise UserError('There is no prompt: give at least one.')
    for number, prompt in enumerate(prompts, 1):
        if not prompt:
            raise UserError(f'Prompt {number} has no token: begin it with the end-of-text token.')
        if not 0 <= min(prompt) <= max(prompt) < config.vocab_size:
            wrong = next(id for id in prompt if not 0 <= id < config.vocab_size)
            raise UserError(
                f'Prompt {number} has token {wrong}, outside the model vocabulary of '
                f'{config.vocab_size}: encode it with the tokenizer of the model.'
            )
        room = config.max_length - len(prompt)
        if room < max_new_tokens:
            way_out = (
                f'lower max_new_tokens to {room}'
                if room > 0
                else f'shorten the prompt to {config.max_length - 1}'
            )
            raise UserError(
                f'Prompt {number} has {len(prompt)} tokens, its first one included; with '
                f'{max_new_tokens} new ones they exceed model.max_length {config.max_length}: '
                f'{way_out}.'
            )


def _check(name, value, valid, expected):
    if not valid:
        raise UserError(f'{name} must be {expected}, not {value}.')


def _draw_options(
    temperature: float, top_k: int, top_p: float, min_p: float
) -> dict[str, np.generic]:
    """What `choose_tokens` takes. Options that are off are left out, for faster programs."""
    options = {'temperature': np.float32(temperature)}
    if top_k > 0:
        options['top_k'] = np.int32(top_k)
    if top_p < 1:
        options['top_p'] = np.float32(top_p)
    if min_p > 0:
        options['min_p'] = np.float32(min_p)
    return options


def _padded(prompts: Sequence[Sequence[int]], limit: int) -> tuple[np.ndarray, np.ndarray]:
    """The prompts as [B, P] int32, padded on the right, and their lengths [B] int32."""
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    tokens = np.zeros((len(prompts), _bucket(int(lengths.max()), limit)), np.int32)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt)] = prompt
    return tokens, lengths


def _bucket(length: int, limit: int) -> int:
    """A power of two that is at least `length`, or `limit` if that is less."""
    return min(max(SMALLEST_BUCKET, 1 << (length - 1).bit_length()), limit)
