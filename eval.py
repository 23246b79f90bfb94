"""Evaluates a run, or a published model, on a whole split.

    python eval.py --workdir=DIR
    python eval.py --pretrained=FOLDER --config=FILE

A translating run also decodes the split's sources. The metrics go to DIR/eval.json (eval_test.json
for the test split), and every source, reference and hypothesis to DIR/decoded_SPLIT.jsonl. Of a
published model, a folder of Hugging Face's transformers or a name on its hub, the config names the
data and the task; the results go to the folder --workdir, if it is given.
"""

import argparse
import json
import pathlib
from collections.abc import Sequence
from typing import Any

from configs import base
from transformer.config_fields import override
from transformer.config_files import load_config
from transformer.errors import UserError
from transformer.flags import parse, run_main

SHOWN = 5  # decoded pairs printed, spread over the split


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add('--workdir', type=pathlib.Path, metavar='DIR', help='folder of the run')
    add('--pretrained', type=pathlib.Path, metavar='FOLDER', help='a published model instead')
    add('--config', metavar='FILE', help='of its data; the model is as published')
    splits = {'choices': ('validation', 'test'), 'default': 'validation'}
    add('--split', **splits, help='default: validation; test: what data.test_path names')
    average = 'evaluate the mean of the N newest checkpoints (default 1)'
    add('--average', type=int, default=1, metavar='N', help=average)
    add('--beam_size', type=int, default=1, metavar='K', help='1 (default): greedy')
    penalty = "exponent of beam search's length penalty (default 0.6)"
    add('--length_penalty', type=float, default=0.6, metavar='ALPHA', help=penalty)
    add('--batch_size', type=int, default=32, metavar='N', help='sources decoded at a time')
    return parser


def main(argv: Sequence[str]) -> None:
    args, overrides = parse(make_parser(), argv)
    for name in 'average', 'beam_size', 'batch_size':
        if getattr(args, name) < 1:
            raise UserError(f'{name} must be at least 1, not {getattr(args, name)}.')

    if args.workdir is None and args.pretrained is None:
        raise UserError('Say what to evaluate: --workdir=DIR, or --pretrained=FOLDER.')
    if (args.pretrained is None) != (args.config is None):
        raise UserError('--pretrained=FOLDER and --config=FILE go together: give both or neither.')
    evaluation = evaluate(args, overrides)
    report(args, evaluation)


def evaluate(args: argparse.Namespace, overrides: list[tuple[str, str]]) -> Any:
    """The `Evaluation` that was asked for."""
    from transformer.training.run_evaluation import evaluate_pretrained, evaluate_run
    from transformer.training.run_folder import read_run
    from transformer.training.translation import Search

    if args.pretrained is None:
        config = read_run(args.workdir, base.get_config(), overrides).config
    else:
        config = load_config(args.config)
        for name, value in overrides:
            override(config, name, value)
    search = Search(
        beam_size=args.beam_size,
        length_penalty=args.length_penalty,
        max_new_tokens=config.data.length,
        batch_size=args.batch_size,
    )
    if args.pretrained is None:
        return evaluate_run(config, args.workdir, args.split, args.average, search)
    return evaluate_pretrained(config, args.pretrained, args.split, search)


def report(args: argparse.Namespace, evaluation: Any) -> None:
    """Prints the metrics and some of what was decoded, and writes all of it."""
    from transformer.training.reporting import print_examples, print_table
    from transformer.training.run_evaluation import write_decoded

    metrics, name = evaluation.metrics, args.workdir or args.pretrained
    numbers = {name: value for name, value in metrics.items() if type(value) is not str}
    print_table(f'{name}, {args.split} split', [numbers])
    for name in metrics.keys() - numbers.keys():
        print(f'{name}: {metrics[name]}')
    if evaluation.pairs:
        print_examples(evaluation.pairs, evaluation.hypotheses, SHOWN)
    if args.workdir is None:
        return
    args.workdir.mkdir(parents=True, exist_ok=True)
    name = 'eval.json' if args.split == 'validation' else f'eval_{args.split}.json'
    (args.workdir / name).write_text(json.dumps(metrics, indent=2) + '\n')
    if evaluation.pairs:
        path = args.workdir / f'decoded_{args.split}.jsonl'
        write_decoded(path, evaluation)
        print(f'all {len(evaluation.pairs):,} pairs: {path}')


if __name__ == '__main__':
    run_main(main)
