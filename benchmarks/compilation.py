"""Compile time of the training step as the number of layers grows, with scanned layers.

    python benchmarks/compilation.py --layers 4 48

Tracing, lowering and XLA, from nothing each time. A stack that is scanned is compiled as one layer,
whatever its depth: 1 is the best ratio there is.
"""

import argparse
import dataclasses
from collections.abc import Iterator

import gpt2
from gpt2 import Shape
from harness import Job, Row, measure, over, row, run_benchmark, time_rows

TINY = {'layers': [1, 2]}


def make_compilation(shape: Shape) -> Job:
    import jax

    jax.config.update('jax_enable_compilation_cache', False)
    experiment = gpt2.make_ours(shape, scan=True)
    state = jax.eval_shape(experiment.initial_state)
    batch = experiment.parallel.split(experiment.data.train.batch(0))

    def run():
        jax.clear_caches()
        experiment.train_step().lower(state, batch).compile()

    return Job(run)


def rows(args: argparse.Namespace) -> Iterator[Row]:
    shape = gpt2.TINY if args.tiny else Shape()
    few, many = args.layers
    jobs = {
        f'ours, {layers} layers': (make_compilation, dataclasses.replace(shape, layers=layers))
        for layers in (few, many)
    }
    found = measure(jobs, args.rounds)
    shallow, deep = found.values()
    yield from time_rows('training step', found, 's')
    yield row('training step', f'{many} layers / {few}', over(deep, shallow), 'x', '<= 1.2')


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--layers', type=int, nargs=2, default=[4, 48])


if __name__ == '__main__':
    run_benchmark(__file__, 'compilation of the training step', rows, add_options, TINY)
