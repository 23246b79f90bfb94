"""Generating text from prompts: checks, batches padded to buckets, and tokens back by chunks."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.decoding.checks import check_draft, check_prompts, check_sampling
from transformer.decoding.drafts import Pair, speculate
from transformer.decoding.loop import CHUNK, State, decode, encode, prefill
from transformer.decoding.padding import bucket, padded
from transformer.errors import UserError
from transformer.modules import Transformer, unstack_layers
from transformer.parallel import RowParallel

NUM_DRAFTS = 4  # tokens that a smaller model proposes at a time, if the user does not say


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
    sources: Sequence[Sequence[int]] | None = None,
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
    draft: tuple[Transformer, Any] | None = None,
    num_drafts: int = NUM_DRAFTS,
) -> Iterator[list[list[int]]]:
    """Continues prompts, all together, and yields the new tokens as they are made.

    Prompts, sources and cache are padded to buckets of length, a power of two each. A compiled
    program serves all rows of its buckets and all values of temperature, top_k, top_p and min_p but
    those that turn the option off. Of several prompts each device of this process continues a part.

    Args:
        model: a decoder or an encoder_decoder, with a language-model head.
        params: its parameters. A caller of many times passes model and parameters through
            `unrolled` once, which is else done by each call.
        prompts: token ids, at least one a prompt: that of the token which begins a document.
        sources: of an encoder_decoder, and of no other: what the encoder reads for each prompt,
            token ids with the one that ends a document. They are encoded once.
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
        draft: a smaller decoder of the same tokens and its parameters, which proposes tokens that
            the model keeps or replaces, several in one pass (see `accept_drafts`): the tokens are
            those of greedy decoding or have the same distribution. Prompts are then continued one
            after the other, each by chunks of `chunk` and up to `num_drafts` more.
        num_drafts: tokens proposed at a time.

    Returns:
        An iterator of chunks: for each prompt the list of its new tokens, empty after its end.

    Raises:
        UserError: at the call, before any work: see `check_sampling`, `check_prompts` and
            `check_draft`.
    """
    check_sampling(temperature, top_k, top_p, min_p)
    check_prompts(model.config, prompts, max_new_tokens, sources)
    vocab_limit = vocab_limit or model.config.vocab_size
    if draft is not None:
        configs = model.config, draft[0].config
        check_draft(*configs, prompts, max_new_tokens, num_drafts, vocab_limit)
    if temperature > 0 and key is None:
        raise UserError(f'temperature {temperature} draws tokens: give a key, or temperature 0.')
    if not 1 <= chunk <= CHUNK:
        raise UserError(f'chunk must be in 1 to {CHUNK}, not {chunk}.')

    model, params = unrolled(model, params)
    rows = np.arange(first_row, first_row + len(prompts), dtype=np.int32)
    options = {
        'key': key if temperature > 0 else None,
        'options': _draw_options(temperature, top_k, top_p, min_p) if temperature > 0 else None,
        'eos_id': np.int32(-1 if eos_id is None else eos_id),
        'vocab_limit': vocab_limit,
    }
    if draft is None:
        return _together(model, params, prompts, sources, max_new_tokens, chunk, rows, **options)
    options |= {'num_drafts': num_drafts}
    return _in_turn(model, params, draft, prompts, max_new_tokens, chunk, rows, **options)


def _together(
    model, params, prompts, sources, max_new_tokens, chunk, rows, key, options, eos_id, vocab_limit
) -> Iterator[list[list[int]]]:
    """The chunks of all prompts side by side; options as of `decode`."""
    parallel = RowParallel(len(prompts))
    params, rows = parallel.replicate(params), parallel.split(rows)
    slots = bucket(max(map(len, prompts)) + max_new_tokens, model.config.max_length)
    state = start(parallel, model, params, prompts, sources, slots)
    static = {'config': model.config, 'vocab_limit': vocab_limit}
    run = parallel.map(decode, (None, 0, None, 0, None, None, None), donate=(1,), **static)

    def advance(state, stop):
        state, tokens = run(params, state, key, rows, options, eos_id, np.int32(stop))
        return state, parallel.gather(tokens)[: len(prompts)]

    return _chunks(state, advance, len(prompts), max_new_tokens, int(eos_id), chunk)


def _in_turn(
    model, params, draft, prompts, max_new_tokens, chunk, rows, **options
) -> Iterator[list[list[int]]]:
    """The chunks of prompts continued with drafts, one after the other."""
    draft = unrolled(*draft)
    for number, (prompt, row) in enumerate(zip(prompts, rows, strict=True)):
        for (new,) in _with_drafts(
            model, params, draft, prompt, max_new_tokens, chunk, row=row, **options
        ):
            yield [new if i == number else [] for i in range(len(prompts))]


def _with_drafts(
    model, params, draft, prompt, max_new_tokens, chunk, **options
) -> Iterator[list[list[int]]]:
    """The chunks of a single prompt; options as of `speculate`."""
    draft_model, draft_params = draft

    def advance(pair, stop):
        limits = {'stop': np.int32(stop), 'limit': np.int32(max_new_tokens)}
        configs = {'config': model.config, 'draft_config': draft_model.config}
        return speculate(params, draft_params, pair, **configs, **limits, **options)

    slots = bucket(len(prompt) + max_new_tokens + options['num_drafts'])
    parallel = RowParallel(1)
    state = start(parallel, model, params, [prompt], None, slots)
    pair = Pair(state, start(parallel, draft_model, draft_params, [prompt], None, slots).cache)
    return _chunks(pair, advance, 1, max_new_tokens, int(options['eos_id']), chunk)


def start(
    parallel: RowParallel,
    model: Transformer,
    params: Any,
    prompts: Sequence[Sequence[int]],
    sources: Sequence[Sequence[int]] | None,
    slots: int,
) -> State:
    """The state before the first new token of checked rows, with a cache of so many slots.

    The model is `unrolled`, and `parallel` has spread its parameters.
    """
    config = model.config
    memory = None
    if sources is not None:
        read = parallel.map(encode, (None, 0, 0), config=config)
        memory = read(params, *parallel.split(padded(sources, config.max_length)))
    tokens, lengths = padded([prompt[:-1] for prompt in prompts], config.max_length)
    newest = np.array([prompt[-1] for prompt in prompts], np.int32)
    run = parallel.map(prefill, (None, 0, 0, 0, 0), config=config, size=slots)
    return run(params, *parallel.split((tokens, lengths, newest)), memory)


def _chunks(state, advance, size, max_new_tokens, eos_id, chunk) -> Iterator[list[list[int]]]:
    """The new tokens of `advance(state, stop)`, called until all are made or all rows ended.

    Args:
        size: rows. Where all those of a device have ended, its count rises no more.
    """
    ended = [False] * size
    count = 0
    while count < max_new_tokens and not all(ended):
        state, tokens = advance(state, min(count + chunk, max_new_tokens))
        made = int(np.max(state.count)) - count
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
    narrower one: so a step neither slices nor converts what it reads. Attention is chosen by
    itself, as what trained the model may take no single queries, or need another device.
    """
    config = model.config
    if config.scan_layers:
        params = unstack_layers(params, config)
    if config.scan_layers or config.attention_implementation != 'auto':
        config = dataclasses.replace(config, scan_layers=False, attention_implementation='auto')
        model = Transformer(config)
    dtype = jnp.dtype(config.dtype)

    def narrow(leaf):
        # Norms, which are vectors, compute in the dtype of their parameters.
        is_wide = leaf.ndim > 1 and leaf.dtype.itemsize > dtype.itemsize
        return jnp.asarray(leaf, dtype if is_wide else None)

    return model, jax.tree.map(narrow, params)


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
