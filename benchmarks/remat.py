"""Time and memory of a training step under each policy of `model.remat`.

    python benchmarks/remat.py --layers=12

The memory is what XLA plans for the temporary arrays of the step: it is exact and does not depend
on what else the machine does.
"""

import argparse
import dataclasses
import typing
from collections.abc import Iterator

import gpt2
from gpt2 import Shape
from harness import Job, Row, measure, over, row, run_benchmark, time_rows

TINY = {'layers': 2}


def make_step(shape: Shape, policy: str) -> Job:
    import jax

    experiment = gpt2.make_ours(shape, scan=True, remat=policy)
    step, state = experiment.train_step(), experiment.initial_state()
    batch = experiment.parallel.split(experiment.data.train.batch(0))
    planned = step.lower(state, batch).compile().memory_analysis().temp_size_in_bytes

    def run():
        nonlocal state
        state, _ = step(state, batch)
        jax.block_until_ready(state)

    return Job(run, {'temporaries': planned})


def rows(args: argparse.Namespace) -> Iterator[Row]:
    from transformer.config import TransformerConfig

    shape = dataclasses.replace(gpt2.TINY if args.tiny else Shape(), layers=args.layers)
    policies = typing.get_args(typing.get_type_hints(TransformerConfig)['remat'])
    found = measure({policy: (make_step, shape, policy) for policy in policies}, args.rounds)
    work = f'{shape.layers} layers'
    yield from time_rows(work, found)
    whole = found['none']
    for policy, one in found.items():
        yield row(work, f'temporaries, {policy}', one.facts['temporaries'] / 2**20, 'MiB')
        if policy != 'none':
            yield row(work, f'time, {policy} / none', over(one, whole), 'x')
            share = one.facts['temporaries'] / whole.facts['temporaries']
            yield row(work, f'temporaries, {policy} / none', share, 'x')


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--layers', type=int, default=12)


if __name__ == '__main__':
    run_benchmark(__file__, 'rematerialisation of the layers', rows, add_options, TINY)
