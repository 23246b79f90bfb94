"""What a trained model makes of a text.

    generate.py --workdir=DIR --prompt=TEXT
    generate.py --pretrained=FOLDER --prompt=TEXT

The task of the run says what that is: causal_lm goes on with the text, seq2seq and span_corruption
write what they learnt to make of it, masked_lm fills every [MASK] in it, and classification says
how probable each label is.
"""

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from configs import base
from transformer import flags
from transformer.errors import UserError

# What is slow to import is imported where it is used: --help and most refusals answer at once.

EPILOG = """\
What is made goes to stdout and everything else to stderr. A text that causal_lm goes on with begins
a document; the empty one leaves its first word to the model too. A span_corruption run writes what
stands for <extra_id_0>, <extra_id_1> ... in the text. What a prompt gives depends on the seed and
its number, not on the prompts beside it.
"""
# The flags that depend on what is done, and their defaults; None is settled later.
WRITING = {'num_samples': 1, 'max_new_tokens': None}
DRAWING = {'temperature': 1.0, 'top_k': 0, 'top_p': 1.0, 'min_p': 0.0, 'seed': 0}
DRAFTING = {'draft': None, 'num_drafts': 4}
SEARCHING = {'beam_size': None, 'length_penalty': 0.6}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add('--workdir', type=Path, metavar='DIR', help='folder of a run of train.py')
    pretrained = "instead: a model's folder of Hugging Face's transformers, or its name on the hub"
    add('--pretrained', type=Path, metavar='FOLDER', help=pretrained)
    add('--prompt', action='append', metavar='TEXT', help='may be repeated; default: empty')
    add('--input', type=Path, metavar='FILE', help='prompts, one a line, instead of --prompt')
    add('--jsonl', action='store_true', help='one JSON object a line')
    add('--batch_size', type=int, default=16, metavar='N', help='prompts at a time (default 16)')
    average = 'use the mean of the N newest checkpoints (default 1)'
    add('--average', type=int, default=1, metavar='N', help=average)
    plot = "draw the first prompt's attention (.png, .svg, .pdf)"
    add('--plot_attention', type=Path, metavar='FILE', help=plot)
    add('--num_samples', type=int, metavar='N', help='texts for each prompt (default 1)')
    new_tokens = 'default 200, or as many as model.max_length allows'
    add('--max_new_tokens', type=int, metavar='N', help=new_tokens)
    temperature = "0: always the likeliest token (default for an encoder_decoder's tasks); 1 "
    temperature += "(default for causal_lm): the model's own distribution"
    add('--temperature', type=float, metavar='T', help=temperature)
    top_k = 'draw from the K likeliest; 0 (default): off; masked_lm: show K for a mask (default 5)'
    add('--top_k', type=int, metavar='K', help=top_k)
    top_p = 'draw from the likeliest that together have probability P; 1 (default): off'
    add('--top_p', type=float, metavar='P', help=top_p)
    min_p = 'draw from those with at least P times the largest probability; 0 (default): off'
    add('--min_p', type=float, metavar='P', help=min_p)
    add('--seed', type=int, metavar='N', help='of what is drawn (default 0)')
    draft = 'folder of a smaller model of the same tokenizer, which drafts what this one checks: '
    draft += 'the same texts or the same distribution of them, sooner where few prompts are written'
    add('--draft', type=Path, metavar='DIR', help=draft)
    num_drafts = 'tokens drafted at a time (default 4)'
    add('--num_drafts', type=int, metavar='N', help=num_drafts)
    beams = 'draw nothing, search with so many beams; num_samples are then the best ones found'
    add('--beam_size', type=int, metavar='N', help=beams)
    penalty = 'exponent of the length penalty of a search (default 0.6); more: longer texts'
    add('--length_penalty', type=float, metavar='ALPHA', help=penalty)
    return parser


def main(argv: Sequence[str]) -> None:
    args, overrides = flags.parse(make_parser(), argv)
    check_numbers(args)
    texts = read_prompts(args)

    from transformer.decoding.command import ACTIONS, write

    if args.plot_attention is not None:
        from transformer.decoding.attention_maps import check_picture, plot_attention

        check_picture(args.plot_attention)
    run = read_model(args, overrides)
    settle_flags(args, run.config.task)
    args.draft = read_draft(args, run)
    act = ACTIONS.get(run.config.task, write)
    shown = act(args, run, texts, functools.partial(restore_model, args, run))
    if args.plot_attention is not None:
        plot_attention(
            shown.model,
            shown.params,
            run.tokenizer,
            shown.tokens,
            args.plot_attention,
            shown.source,
            run.source_tokenizer,
        )


def check_numbers(args: argparse.Namespace) -> None:
    """Raises UserError for numbers that are not about the model."""
    for name in 'num_samples', 'batch_size', 'average':
        number = getattr(args, name)
        if number is not None and number < 1:
            raise UserError(f'{name} must be at least 1, not {number}.')
    if args.seed is not None and not 0 <= args.seed < 2**32:
        raise UserError(f'seed must be in 0 to 2^32 - 1, not {args.seed}.')
    if args.num_drafts is not None and args.draft is None:
        raise UserError('--num_drafts says nothing without --draft: give both or neither.')
    if args.beam_size is not None and args.temperature:
        raise UserError(
            f'--beam_size searches and --temperature={args.temperature:g} draws: give one of them.'
        )


def settle_flags(args: argparse.Namespace, task: str) -> None:
    """Gives flags that were not given their defaults for what is to be done.

    Raises:
        UserError: a flag was given that says nothing about it.
    """
    where = f'for a run of task {task}'
    if task == 'masked_lm':
        defaults = {'top_k': 5}
    elif task == 'classification':
        defaults = {}
    elif args.beam_size is not None:
        where = 'with --beam_size'
        defaults = WRITING | SEARCHING | {'temperature': 0.0}
    else:
        where = 'without --beam_size'
        defaults = WRITING | DRAWING
        defaults |= DRAFTING if task == 'causal_lm' else {'temperature': 0.0}
    for name in WRITING | DRAWING | DRAFTING | SEARCHING:
        if getattr(args, name) is None:
            setattr(args, name, defaults.get(name))
        elif name not in defaults:
            if name in DRAFTING and args.beam_size is None:
                where = f'for a run of task {task}'
            raise UserError(f'--{name} says nothing {where}: leave it out.')


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


def read_model(args: argparse.Namespace, overrides: Sequence[tuple[str, str]]) -> Any:
    """The `TrainedRun` of the flags."""
    from transformer.training.pretrained import pretrained_run
    from transformer.training.run_folder import read_run

    if (args.workdir is None) == (args.pretrained is None):
        raise UserError('Say whose model it is: --workdir=DIR or --pretrained=FOLDER, one of them.')
    if args.pretrained is None:
        return read_run(args.workdir, base.get_config(), overrides)
    if overrides:
        raise UserError(f'--config.{overrides[0][0]}: a published model is as it is; leave it out.')
    return pretrained_run(args.pretrained, base.get_config())


def read_draft(args: argparse.Namespace, run: Any) -> Any:
    """The `Draft` of the flags, for the model of a run; None: there is none.

    Raises:
        UserError: its folder holds no model, or one of another tokenizer.
    """
    from transformer.decoding.command import Draft
    from transformer.training.pretrained import is_pretrained

    if args.draft is None:
        return None
    where = {'workdir': None, 'pretrained': None}
    where['pretrained' if is_pretrained(args.draft) else 'workdir'] = args.draft
    folder = argparse.Namespace(**where, average=1)
    draft = read_model(folder, ())
    if draft.tokenizer.to_json() != run.tokenizer.to_json():
        raise UserError(
            f'--draft {args.draft} has another tokenizer: take a draft of the same one, for a run '
            'with data.tokenizer set to the tokenizer.json of this one.'
        )
    return Draft(draft.model, functools.partial(restore_model, folder, draft))


def restore_model(args: argparse.Namespace, run: Any) -> tuple[Any, Any]:
    """The model of a run as decoding runs it, and its parameters."""
    from transformer.decoding import unrolled
    from transformer.interop import load_pretrained
    from transformer.modules import Transformer
    from transformer.training.run_folder import restore_run

    if args.pretrained is not None:
        _, params, _ = load_pretrained(args.pretrained)
    else:
        _, params = restore_run(args.workdir, run, args.average)
    return unrolled(Transformer(run.model), params)


if __name__ == '__main__':
    flags.run_main(main)
