"""Searches hyperparameters: python sweep.py --config=configs/NAME.py --workdir=DIR --trials=32

The config file says in get_space() what to search; docs/sweeps.md explains. Trials run side by side
in one program, DIR/report.html shows what they found, and the same command on other machines, with
the same --storage, joins in. A sweep that was stopped goes on where it was.
"""

import argparse
import pathlib
from collections.abc import Sequence

from transformer.config_fields import override
from transformer.config_files import load_config
from transformer.flags import parse, run_main


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    file = 'file that defines get_config() and get_space()'
    add('--config', required=True, dest='config_file', metavar='FILE', help=file)
    add('--workdir', required=True, type=pathlib.Path, metavar='DIR', help='folder of the report')
    add('--trials', type=int, metavar='N', help='how many; default: every one of a list or grid')
    parallel = 'trials side by side in this process (default 16)'
    add('--parallel_trials', type=int, default=16, metavar='K', help=parallel)
    sampler = 'tpe (default), random, cmaes, qmc; grid: every combination (default for a list)'
    add('--sampler', help=sampler)
    add('--pruner', default='none', help='asha, median or none (default)')
    storage = 'URL of a database, or a FILE.journal, shared by all (default: DIR/study.db)'
    add('--storage', metavar='URL', help=storage)
    metric = 'eval/loss (default), eval/perplexity, eval/bits_per_byte or eval/accuracy'
    add('--metric', default='eval/loss', help=metric)
    return parser


def main(argv: Sequence[str]) -> None:
    args, overrides = parse(make_parser(), argv)
    config = load_config(args.config_file)
    for name, value in overrides:
        override(config, name, value)

    from transformer.training.sweep.command import sweep  # after the flags: it imports jax

    sweep(config, overrides, **vars(args))


if __name__ == '__main__':
    run_main(main)
