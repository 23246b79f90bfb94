"""Trials an hour of the devices here with 1, 16 and 64 trials side by side.

    PYTHONPATH=. python benchmarks/gpu_sweep.py

The trials are those of benchmarks/sweep.py, laid out as sweep.py lays them out. A number of trials
that is not begun within a minute is left out, and said so.
"""

import argparse
import time

import jax

from sweep import FIELDS, make_config
from transformer.training.reporting import print_table
from transformer.training.sweep import fastest_trainer

BEGIN_SECONDS = 60.0


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--trials', type=int, nargs='+', default=[1, 16, 64])
    parser.add_argument('--steps', type=int, default=300, help='updates that a trial is to have')
    args = parser.parse_args()
    config, started, rows = make_config(args.steps), time.perf_counter(), []
    for count in args.trials:
        if time.perf_counter() - started > BEGIN_SECONDS:
            print(f'{count} trials: left out, a minute is over')
            continue
        trainer = fastest_trainer(config, FIELDS, count)
        seconds = trainer.seconds_per_update()
        rate = 3600 * count / (args.steps * seconds)
        gain = rate / rows[0]['trials an hour'] if rows else 1.0
        row = {'trials': count, 'at a time': trainer.parallel.chunk, 'ms an update': 1e3 * seconds}
        rows.append(row | {'trials an hour': rate, f'over {args.trials[0]}': gain})
    print_table(f'{jax.devices()[0].device_kind}, {args.steps} updates a trial', rows)


if __name__ == '__main__':
    main()
