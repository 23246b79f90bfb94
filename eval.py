"""Evaluates a run on a whole split: python eval.py --workdir=DIR

A translating run also decodes the split's sources. The metrics go to DIR/eval.json (eval_test.json
for the test split), and every source, reference and hypothesis to DIR/decoded_SPLIT.jsonl.
"""

import argparse
import json
import pathlib
from collections.abc import Sequence

from configs import base
from transformer.errors import UserError
from transformer.flags import parse, run_main

SHOWN = 5  # decoded pairs printed, spread over the split


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add('--workdir', required=True, type=pathlib.Path, metavar='DIR', help='folder of the run')
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

    from transformer.training.reporting import print_examples, print_table
    from transformer.training.run_evaluation import evaluate_run, write_decoded
    from transformer.training.run_folder import read_run
    from transformer.training.translation import Search

    config = read_run(args.workdir, base.get_config(), overrides).config
    search = Search(
        beam_size=args.beam_size,
        length_penalty=args.length_penalty,
        max_new_tokens=config.data.length,
        batch_size=args.batch_size,
    )
    evaluation = evaluate_run(config, args.workdir, args.split, args.average, search)
    name = 'eval.json' if args.split == 'validation' else f'eval_{args.split}.json'
    (args.workdir / name).write_text(json.dumps(evaluation.metrics, indent=2) + '\n')
    numbers = {name: value for name, value in evaluation.metrics.items() if type(value) is not str}
    print_table(f'{args.workdir}, {args.split} split', [numbers])
    for name in evaluation.metrics.keys() - numbers.keys():
        print(f'{name}: {evaluation.metrics[name]}')
    if evaluation.pairs:
        path = args.workdir / f'decoded_{args.split}.jsonl'
        write_decoded(path, evaluation)
        print_examples(evaluation.pairs, evaluation.hypotheses, SHOWN)
        print(f'all {len(evaluation.pairs):,} pairs: {path}')


if __name__ == '__main__':
    run_main(main)
