"""What generate.py does for each kind of run: texts in, answers on stdout."""

import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from transformer.config import TransformerConfig
from transformer.data import StreamDecoder, Tokenizer
from transformer.data.tokenizers import MASK_TOKENS, SENTINELS
from transformer.decoding.answers import Answer, classified, filled, written
from transformer.decoding.beam import Hypothesis, beam_search
from transformer.decoding.checks import (
    check_beams,
    check_draft,
    check_encoding,
    check_filling,
    check_prompts,
    check_sampling,
)
from transformer.decoding.encoding import classify
from transformer.decoding.filling import fill_masks
from transformer.decoding.generation import generate, stream
from transformer.decoding.marks import encode_marked
from transformer.decoding.printing import Clock, show_answers, show_stream
from transformer.errors import UserError
from transformer.modules import Transformer

NEW_TOKENS = 200  # unless the user or the length of the model says otherwise
STREAM_CHUNK = 8  # tokens between two writes of streamed text
Restore = Callable[[], tuple[Transformer, Any]]


class Shown(NamedTuple):
    """The first answer: by which model, what its last stack read and wrote, the encoder's row."""

    model: Transformer
    params: Any
    tokens: list[int]
    source: list[int] | None = None


class Draft(NamedTuple):
    """A smaller model of the same tokens, and what gives it, unrolled, and its parameters."""

    config: TransformerConfig
    restore: Restore


class Encoded(NamedTuple):
    """Texts as tokens; `sources` and `marks` as in `beam_search` and `decode_marked`."""

    prompts: list[list[int]]
    sources: list[list[int]] | None
    marks: Mapping[str, int]

    def part(self, start: int, size: int) -> tuple[list[list[int]], list[list[int]] | None]:
        """Prompts and sources of `size` rows from `start` on."""
        rows = slice(start, start + size)
        return self.prompts[rows], self.sources and self.sources[rows]


def write(args: Namespace, run: Any, texts: list[str], restore: Restore) -> Shown:
    """Prints what the model writes: after each text (causal_lm), or as its answer.

    Args:
        args: of generate.py, settled, its `draft` a `Draft` or None.
        run: a `TrainedRun`.
        restore: gives the model, unrolled, and its parameters; called after all checks.
    """
    searches, tokenizer = args.beam_size is not None, run.tokenizer
    check_writing(args, tokenizer)
    if not searches:
        texts = [text for text in texts for _ in range(args.num_samples)]
    rows = encode_texts(run, texts)
    if args.max_new_tokens is None:
        room = run.model.max_length - max(map(len, rows.prompts))
        args.max_new_tokens = min(NEW_TOKENS, max(room, 1))
    check_prompts(run.model, rows.prompts, args.max_new_tokens, rows.sources)
    drafts = {}
    if args.draft is not None:
        sizes = args.max_new_tokens, args.num_drafts, tokenizer.vocab_size
        check_draft(run.model, args.draft.config, rows.prompts, *sizes)
        drafts = {'draft': args.draft.restore(), 'num_drafts': args.num_drafts}
    model, params = restore()

    clock = Clock()
    if len(texts) > 1 or args.jsonl or searches or rows.marks:
        tokens = write_batches(args, tokenizer, texts, rows, model, params, clock, drafts)
    else:
        options = drawing(args, tokenizer) | drafts | {'chunk': STREAM_CHUNK}
        chunks = stream(model, params, rows.prompts, rows.sources, **options)
        tokens = show_stream(StreamDecoder(tokenizer), rows.prompts[0], chunks, clock)
    print(clock.report(), file=sys.stderr)
    return Shown(model, params, tokens, rows.sources and rows.sources[0])


def check_writing(args: Namespace, tokenizer: Tokenizer) -> None:
    """Raises UserError for options that draw or search nothing."""
    if args.beam_size is None:
        return check_sampling(args.temperature, args.top_k, args.top_p, args.min_p)
    check_beams(args.beam_size, args.length_penalty, args.num_samples)
    if args.beam_size > tokenizer.vocab_size:
        raise UserError(
            f'beam_size {args.beam_size} exceeds the vocabulary of {tokenizer.vocab_size} tokens: '
            'lower it.'
        )
    return None


def encode_texts(run: Any, texts: Sequence[str]) -> Encoded:
    """The texts as the run's model read texts in training.

    A decoder read documents that begin with the end-of-text token; an encoder_decoder read sources
    that end with it, and wrote targets after it. A published model read texts between the special
    tokens of its tokenizer.
    """
    tokenizer = run.tokenizer
    if run.model.topology == 'decoder':
        return Encoded([begun(tokenizer, row) for row in tokenizer.encode_batch(texts)], None, {})
    marks = {}
    if run.config.task == 'span_corruption':
        marks = dict(zip(SENTINELS, tokenizer.sentinel_ids, strict=False))
    encoder = run.source_tokenizer or tokenizer
    before, after = encoder.template
    after = after or [encoder.eos_id]
    sources = [[*before, *row, *after] for row in encode_marked(encoder, texts, marks)]
    start = tokenizer.eos_id if run.start_id is None else run.start_id
    return Encoded([[start] for _ in texts], sources, marks)


def begun(tokenizer: Tokenizer, row: list[int]) -> list[int]:
    """The tokens of a text as a document that begins."""
    before, _ = tokenizer.template
    return [*(before or [tokenizer.eos_id]), *row]


def drawing(args: Namespace, tokenizer: Tokenizer) -> dict[str, Any]:
    """The options of `stream`."""
    return {
        'key': jax.random.key(args.seed),
        'temperature': args.temperature,
        'top_k': args.top_k,
        'top_p': args.top_p,
        'min_p': args.min_p,
    } | limits(args, tokenizer)


def limits(args: Namespace, tokenizer: Tokenizer) -> dict[str, Any]:
    """The options that `stream` and `beam_search` have in common."""
    return {
        'max_new_tokens': args.max_new_tokens,
        'eos_id': tokenizer.eos_id,
        'vocab_limit': tokenizer.vocab_size,
    }


def write_batches(
    args: Namespace,
    tokenizer: Tokenizer,
    texts: list[str],
    rows: Encoded,
    model: Transformer,
    params: Any,
    clock: Clock,
    drafts: dict[str, Any],
) -> list[int]:
    """Prints the answers to all texts in order, batch after batch; the tokens of the first one."""

    def answer(start: int) -> list[list[list[int] | Hypothesis]]:
        prompts, sources = rows.part(start, args.batch_size)
        if args.beam_size is None:
            options = drawing(args, tokenizer) | drafts
            options |= {'sources': sources, 'first_row': start}
            return [[new] for new in generate(model, params, prompts, **options)]
        return beam_search(
            model,
            params,
            prompts,
            sources,
            beam_size=args.beam_size,
            length_penalty=args.length_penalty,
            num_results=args.num_samples,
            **limits(args, tokenizer),
        )

    each = 1 if args.beam_size is None else args.num_samples
    answers: list[Answer] = []
    for start in range(0, len(texts), args.batch_size):
        first, made = len(answers), 0
        for number, found in enumerate(answer(start), start):
            prompt = rows.prompts[number]
            answers += [written(tokenizer, rows.marks, texts[number], prompt, new) for new in found]
            made += sum(len(one.tokens) - len(prompt) for one in answers[-len(found) :])
        clock.add(made)  # of a batch at once, as it came
        show_answers(answers[first:], first + 1, len(texts) * each, args.jsonl)
    return answers[0].tokens


def fill(args: Namespace, run: Any, texts: list[str], restore: Restore) -> Shown:
    """Prints the likeliest tokens for each mask of each text; arguments as of `write`."""
    tokenizer = run.tokenizer
    marks = dict.fromkeys(MASK_TOKENS, tokenizer.mask_id)
    for number, text in enumerate(texts, 1):
        if not any(mark in text for mark in marks):
            raise UserError(f'Prompt {number} has no mask: write [MASK] where to fill.')
    _, after = tokenizer.template
    rows = [[*begun(tokenizer, row), *after] for row in encode_marked(tokenizer, texts, marks)]
    check_filling(run.model, rows, tokenizer.mask_id, args.top_k, tokenizer.vocab_size)
    model, params = restore()
    results = fill_masks(
        model,
        params,
        rows,
        tokenizer.mask_id,
        args.top_k,
        vocab_limit=tokenizer.vocab_size,
        batch_size=args.batch_size,
    )
    answers = [
        filled(tokenizer, text, row, masks)
        for text, row, masks in zip(texts, rows, results, strict=True)
    ]
    show_answers(answers, 1, len(answers), args.jsonl)
    return Shown(model, params, rows[0])


def label(args: Namespace, run: Any, texts: list[str], restore: Restore) -> Shown:
    """Prints how probable each label is for each text; arguments as of `write`."""
    tokenizer = run.tokenizer
    _, after = tokenizer.template
    rows = [[*begun(tokenizer, row), *after] for row in tokenizer.encode_batch(texts)]
    check_encoding(run.model, rows, ('classifier',))
    model, params = restore()
    results = classify(model, params, rows, batch_size=args.batch_size)
    answers = [
        classified(run.labels, text, row, probabilities)
        for text, row, probabilities in zip(texts, rows, results, strict=True)
    ]
    show_answers(answers, 1, len(answers), args.jsonl)
    return Shown(model, params, rows[0])


# By task; the others write.
ACTIONS = {'masked_lm': fill, 'classification': label}
