"""Compares groups of finished runs by loss against training FLOPs: a table, and a picture.

    python benchmarks/compare_runs.py --out=docs/shakespeare.png \
        gpt2=runs/char0,runs/char1 modern=runs/modern0,runs/modern1

Runs of a group differ in their seeds only. FLOPs are the model's by `transformer.summary`: three
times a forward pass, without the optimizer's.
"""

import argparse
import pathlib
import statistics

import matplotlib

matplotlib.use('Agg')
from matplotlib import pyplot

from configs import base
from transformer.flops import training_flops_per_token
from transformer.training.reporting import print_table, read_metrics
from transformer.training.run_folder import read_run


def read_evaluations(workdir):
    """Evaluations of a run as lists: training FLOPs, loss."""
    run = read_run(workdir, base.get_config())
    length = run.config.data.length
    flops = training_flops_per_token(run.model, length) * run.config.data.batch_size * length
    lines = [line for line in read_metrics(workdir) if line['split'] == 'eval']
    return [line['step'] * flops for line in lines], [line['loss'] for line in lines]


def table_rows(name, runs):
    """One row for each evaluation: the mean of the group's runs and their spread."""
    for flops, *losses in zip(runs[0][0], *(run[1] for run in runs), strict=True):
        yield {
            'group': name,
            'runs': len(runs),
            'training TFLOP': flops / 1e12,
            'validation loss, mean': statistics.mean(losses),
            'smallest': min(losses),
            'largest': max(losses),
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--out', type=pathlib.Path, required=True, help='picture to write')
    parser.add_argument('groups', nargs='+', help='NAME=DIR,DIR,...')
    args = parser.parse_args()
    groups = {}
    for group in args.groups:
        name, _, folders = group.partition('=')
        groups[name] = [read_evaluations(pathlib.Path(folder)) for folder in folders.split(',')]
    print_table('validation loss', [row for group in groups.items() for row in table_rows(*group)])

    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout='constrained')
    for number, (name, runs) in enumerate(groups.items()):
        for flops, losses in runs:
            axes.plot([f / 1e12 for f in flops], losses, 'o-', color=f'C{number}', alpha=0.6)
        axes.plot([], [], 'o-', color=f'C{number}', label=f'{name} ({len(runs)} seeds)')
    axes.set_xlabel('training FLOPs (10$^{12}$)')
    axes.set_ylabel('validation loss (nats per character)')
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(args.out, dpi=120)


if __name__ == '__main__':
    main()
