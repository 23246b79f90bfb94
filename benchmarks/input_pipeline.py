"""The input pipeline alone against the rate at which the quickstart's training step consumes.

    python benchmarks/input_pipeline.py

Tokens a second of the batches that train.py reads: rows cut from a stream, as the quickstart has
them, and whole documents packed into rows. The first run tokenises the corpus.
"""

import argparse
import tempfile
from collections.abc import Iterator

from harness import Job, Row, measure, over, row, run_benchmark, time_rows
from ml_collections import ConfigDict
from rates import contestants, reached

PACKINGS = 'stream', 'examples'
BATCHES = 64  # read in one run


def make_config(packing: str, scratch: str | None) -> ConfigDict:
    """The quickstart's; with a folder for scratch, tiny sizes of it that leave nothing behind."""
    from configs import quickstart

    config = quickstart.get_config()
    config.data.packing = packing
    if scratch is not None:
        config.data.cache_dir = scratch
        config.data.path = (__file__,)
        config.data.tokenizer = 'bytes'
        config.data.length = config.data.batch_size = 8
        config.model.embed_dim = config.model.mlp_dim = 16
    return config


def make_pipeline(packing: str, scratch: str | None) -> Job:
    from transformer.data import load_data

    config = make_config(packing, scratch)
    batches = load_data(config).train.batches()
    size = sum(array.nbytes for array in next(batches).values())

    def run():
        for _ in range(BATCHES):
            next(batches)

    return Job(run, {'bytes': BATCHES * size, 'tokens': BATCHES * _tokens(config)})


def make_step(scratch: str | None) -> Job:
    import gpt2
    import jax

    config = make_config('stream', scratch)
    experiment = gpt2.make_experiment(config)
    batch = experiment.parallel.split(experiment.data.train.batch(0))
    step, state = experiment.train_step(), experiment.initial_state()

    def run():
        nonlocal state
        state, _ = step(state, batch)
        jax.block_until_ready(state)

    return Job(run, {'tokens': _tokens(config)})


def _tokens(config):
    return config.data.batch_size * config.data.length


def rows(args: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        scratch = folder if args.tiny else None
        jobs = {f'ours, {packing}': (make_pipeline, packing, scratch) for packing in PACKINGS}
        jobs |= {'training step': (make_step, scratch)}
        found = measure(jobs | contestants('copy', tiny=args.tiny), args.rounds)
    copy, step = found.pop('copy'), found['training step']
    for name, one in found.items():
        yield from time_rows('quickstart', {name: one}, 'tokens/s', one.facts['tokens'])
    del found['training step']
    for name, one in found.items():
        share = one.facts['tokens'] / step.facts['tokens']
        rates = [share * ratio for ratio in over(step, one)]
        yield row('quickstart', f'{name} / training step', rates, 'x', '>= 20')
        # The tokens are read and the batch written: what a copy of the batch does.
        share = reached(one, copy, 2 * one.facts['bytes'])
        yield row('quickstart', f'{name}, of the copy rate', share, 'of the best')


if __name__ == '__main__':
    run_benchmark(__file__, 'input pipeline, batches of the quickstart', rows)
