"""Evaluates a run on its whole validation split: python eval.py --workdir=DIR"""

import argparse
import json
import pathlib
from collections.abc import Sequence

from configs import base
from transformer.flags import parse, run_main


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--workdir', required=True, type=pathlib.Path, help='folder of the run')
    args, overrides = parse(parser, argv)

    from transformer.training.evaluation import evaluate_run  # after the flags: it imports jax
    from transformer.training.reporting import print_table
    from transformer.training.run_folder import read_run

    config, _ = read_run(args.workdir, base.get_config(), overrides)
    metrics = evaluate_run(config, args.workdir)
    (args.workdir / 'eval.json').write_text(json.dumps(metrics, indent=2) + '\n')
    print_table(f'{args.workdir}, validation split', [metrics])


if __name__ == '__main__':
    run_main(main)
