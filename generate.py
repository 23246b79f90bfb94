"""Continues text with a trained model: generate.py --workdir=DIR --prompt=TEXT"""

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from configs import base
from transformer import flags
from transformer.config import TransformerConfig
from transformer.errors import UserError

# What is slow to import is imported where it is used: --help and most refusals answer at once.

EPILOG = (
    'The text, prompt included, goes to stdout and everything else to stderr. A prompt begins a '
    'document; the empty one leaves its first word to the model too. What a prompt gives depends '
    'on the seed and its number, not on the prompts beside it.'
)
NEW_TOKENS = 200  # unless the user or the length of the model says otherwise
STREAM_CHUNK = 8  # tokens between two writes of streamed text
# Characters that can move a terminal's cursor or change its state.
CONTROLS = {code: '\ufffd' for code in (*range(32), *range(127, 160)) if chr(code) not in '\t\n'}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, epilog=EPILOG)
    add = parser.add_argument
    add('--workdir', type=Path, required=True, metavar='DIR', help='folder of a run of train.py')
    add('--prompt', action='append', metavar='TEXT', help='may be repeated; default: empty')
    add('--input', type=Path, metavar='FILE', help='prompts, one a line, instead of --prompt')
    add('--jsonl', action='store_true', help='one JSON object a line: prompt, completion, ended')
    add('--num_samples', type=int, default=1, metavar='N', help='of each prompt (default 1)')
    new_tokens = f'default {NEW_TOKENS}, or as many as model.max_length allows'
    add('--max_new_tokens', type=int, metavar='N', help=new_tokens)
    temperature = "0: always the likeliest token; 1 (default): the model's own distribution"
    add('--temperature', type=float, default=1.0, metavar='T', help=temperature)
    add('--top_k', type=int, default=0, metavar='K', help='draw from the K likeliest; 0: off')
    top_p = 'draw from the likeliest that together have probability P; 1: off'
    add('--top_p', type=float, default=1.0, metavar='P', help=top_p)
    min_p = 'draw from those with at least P times the largest probability; 0: off'
    add('--min_p', type=float, default=0.0, metavar='P', help=min_p)
    add('--seed', type=int, default=0, metavar='N', help='of what is drawn (default 0)')
    add('--batch_size', type=int, default=16, metavar='N', help='prompts at a time (default 16)')
    return parser


def main(argv: Sequence[str]) -> None:
    args, overrides = flags.parse(make_parser(), argv)
    check_numbers(args)
    texts = [text for text in read_prompts(args) for _ in range(args.num_samples)]

    import jax

    from transformer.decoding import check_prompts, check_sampling, generate, stream, unrolled
    from transformer.modules import Transformer
    from transformer.training.experiment import model_config
    from transformer.training.run_folder import read_run

    sampling = {name: getattr(args, name) for name in ('temperature', 'top_k', 'top_p', 'min_p')}
    check_sampling(**sampling)
    config, tokenizer = read_run(args.workdir, base.get_config(), overrides)
    model = model_config(config, tokenizer.vocab_size)
    # Every document that the model has read begins with this token.
    prompts = [[tokenizer.eos_id, *ids] for ids in tokenizer.encode_batch(texts)]
    max_new_tokens = args.max_new_tokens
    if max_new_tokens is None:
        room = model.max_length - max(map(len, prompts))
        max_new_tokens = min(NEW_TOKENS, max(room, 1))
    check_prompts(model, prompts, max_new_tokens)
    model, params = unrolled(Transformer(model), restore_params(args.workdir, model))

    options = sampling | {
        'max_new_tokens': max_new_tokens,
        'key': jax.random.key(args.seed),
        'eos_id': tokenizer.eos_id,
        'vocab_limit': tokenizer.vocab_size,
    }
    clock = Clock()
    if len(texts) == 1 and not args.jsonl:
        run = functools.partial(stream, model, params, chunk=STREAM_CHUNK, **options)
        print_stream(run, tokenizer, prompts[0], clock)
    else:
        run = functools.partial(generate, model, params, **options)
        print_all(run, tokenizer, texts, prompts, clock, args)
    print(clock.report(), file=sys.stderr)


def check_numbers(args: argparse.Namespace) -> None:
    """Raises UserError for numbers that are not about the model."""
    for name in 'num_samples', 'batch_size':
        if getattr(args, name) < 1:
            raise UserError(f'{name} must be at least 1, not {getattr(args, name)}.')
    if not 0 <= args.seed < 2**32:
        raise UserError(f'seed must be in 0 to 2^32 - 1, not {args.seed}.')


def read_prompts(args: argparse.Namespace) -> list[str]:
    """The prompts of the command line or of the file; the empty one if there are none.

    Raises:
        UserError: both are given, or the file cannot be read.
    """
    if args.input is None:
        return args.prompt or ['']
    if args.prompt is not None:
        raise UserError('--prompt and --input exclude each other: give one of them.')
    try:
        text = args.input.read_text(encoding='utf-8')
    except OSError as error:
        raise UserError(f'--input {args.input} cannot be read: {error.strerror}.') from None
    except UnicodeDecodeError as error:
        raise UserError(f'--input {args.input} is not UTF-8: {error}.') from None
    if not text:
        raise UserError(f'--input {args.input} is empty: write one prompt a line.')
    return text.removesuffix('\n').split('\n')


def restore_params(workdir: Path, model: TransformerConfig) -> Any:
    """The parameters of the newest checkpoint of a run; nothing else of it is read."""
    from transformer.flops import parameter_shapes
    from transformer.training.checkpoint import Checkpoints

    with Checkpoints(workdir / 'checkpoints') as checkpoints:
        return checkpoints.restore_params(parameter_shapes(model))


def print_stream(run: Callable[..., Any], tokenizer: Any, prompt: list[int], clock: 'Clock'):
    """Prints the prompt at once and then, whole characters only, what is added to it."""
    from transformer.data import StreamDecoder

    decoder = StreamDecoder(tokenizer)

    def show_tokens(ids: Iterable[int]):
        show(''.join(map(decoder.step, ids)))

    show_tokens(prompt)
    for (new,) in run([prompt]):
        show_tokens(new)
        clock.add(len(new))
    show(decoder.flush() + '\n')


def print_all(
    run: Callable[..., list[list[int]]],
    tokenizer: Any,
    texts: list[str],
    prompts: list[list[int]],
    clock: 'Clock',
    args: argparse.Namespace,
):
    """Prints prompts with their continuations in order, batch after batch."""
    for start in range(0, len(prompts), args.batch_size):
        rows = run(prompts[start : start + args.batch_size], first_row=start)
        clock.add(sum(map(len, rows)))
        for i, row in enumerate(rows, start):
            text = tokenizer.decode([*prompts[i], *row])
            if args.jsonl:
                completion = text[len(tokenizer.decode(prompts[i])) :]
                ended = row[-1] == tokenizer.eos_id
                result = {'prompt': texts[i], 'completion': completion, 'ended': ended}
                show(json.dumps(result, ensure_ascii=False) + '\n')
            else:
                show(f'=== {i + 1} of {len(prompts)} ===\n{text}\n')


def show(text: str) -> None:
    """Writes to stdout as it is, or, to a terminal, without what a terminal would obey."""
    if sys.stdout.isatty():
        text = text.translate(CONTROLS)
    print(text, end='', flush=True)


class Clock:
    """Counts new tokens, and times those after the first ones, with which programs compile."""

    def __init__(self):
        self._started = time.perf_counter()
        self._made: list[tuple[int, float]] = []  # tokens, and the time at which they came

    def add(self, tokens: int) -> None:
        self._made.append((tokens, time.perf_counter()))

    def report(self) -> str:
        total = sum(tokens for tokens, _ in self._made)
        (first, first_time), (_, last_time) = self._made[0], self._made[-1]
        text = f'{total} new tokens in {last_time - self._started:.1f} s'
        if len(self._made) > 1:
            speed = (total - first) / (last_time - first_time)
            text += f', after the first {first} at {speed:.0f} tokens/s'
        return text


if __name__ == '__main__':
    flags.run_main(main)
