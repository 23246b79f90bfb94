"""Runs the benchmarks, a fresh process each, and prints one table of what is owed.

    python benchmarks/run.py --nanogpt=../nanoGPT --nanodo=../nanodo

In the folder of the results each benchmark has NAME.json and NAME.png.
"""

import argparse
import json
import pathlib
import subprocess
import sys

from harness import ROOT, common_options
from report import print_rows

NAMES = (
    'attention',
    'training_step',
    'decoding',
    'compilation',
    'remat',
    'cross_entropy',
    'input_pipeline',
    'loop_overhead',
    'start_up',
)


def command(name: str, args: argparse.Namespace) -> list[str]:
    options = [f'--rounds={args.rounds}', f'--out={args.out}', *['--tiny'] * args.tiny]
    if name == 'training_step':
        checkouts = {'nanogpt': args.nanogpt, 'nanodo': args.nanodo}
        options += [f'--{peer}={path}' for peer, path in checkouts.items() if path]
    return [sys.executable, str(ROOT / f'benchmarks/{name}.py'), *options]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    common_options(parser)
    parser.add_argument('--only', nargs='+', choices=NAMES, default=NAMES)
    parser.add_argument('--nanogpt', type=pathlib.Path, help='path of a checkout')
    parser.add_argument('--nanodo', type=pathlib.Path, help='path of a checkout')
    args = parser.parse_args()
    rows = []
    for name in args.only:
        subprocess.run(command(name, args), check=True)
        found = json.loads((args.out / f'{name}.json').read_text())['rows']
        rows += [row | {'work': f'{name}, {row["work"]}'} for row in found if is_shown(row)]
    print_rows('all benchmarks', rows)


def is_shown(row: dict) -> bool:
    """Whether a row compares, with a peer, a bound or the machine's best."""
    return bool(row['owed']) or row['unit'] in ('x', 'of the best')


if __name__ == '__main__':
    main()
