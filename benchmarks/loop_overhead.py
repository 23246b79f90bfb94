"""What the training loop costs the host in each step of a tiny model.

    python benchmarks/loop_overhead.py

The loop of train.py, with its batches, logs, metrics files and progress, against a jitted step in a
Python loop on a batch that is there already. Both are timed from the 100th step on; the evaluation
and the checkpoint come after.
"""

import argparse
import functools
import io
import pathlib
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import gpt2
from gpt2 import Shape
from harness import Job, Row, measure, over, row, run_benchmark, time_rows

SHAPE = Shape(layers=2, width=64, heads=2, length=64, vocab=512, batch=8)
TINY = {'steps': 8, 'warm_up': 2}


def make_bare(shape: Shape, steps: int, warm_up: int) -> Job:
    import jax

    from transformer.training.step import train_step

    experiment = gpt2.make_ours(shape)
    step = functools.partial(train_step, hparams=experiment.hparams, recipe=experiment.recipe)
    step = jax.jit(step, donate_argnums=0)
    batch = jax.device_put(experiment.data.train.batch(0))
    state = experiment.initial_state()

    def run():
        nonlocal state
        started = 0.0
        for number in range(steps):
            if number == warm_up:
                started = time.perf_counter()
            state, _ = step(state, batch)
        jax.block_until_ready(state)
        return (time.perf_counter() - started) / (steps - warm_up)

    return Job(run)


def make_loop(shape: Shape, steps: int, warm_up: int) -> Job:
    from rich.console import Console

    from transformer.training.checkpoint import Checkpoints
    from transformer.training.loop import Run
    from transformer.training.reporting import MetricsWriter, Progress

    class TimedWriter(MetricsWriter):
        """Notes when the loop has written, for which it waits for the device."""

        def write(self, step, split, metrics):
            super().write(step, split, metrics)
            if split == 'train':
                times[step] = time.perf_counter()

    experiment = gpt2.make_ours(shape, loop_settings(steps, warm_up))
    times = {}

    def run():
        quiet = Console(file=io.StringIO())
        with (
            tempfile.TemporaryDirectory() as folder,
            Checkpoints(pathlib.Path(folder, 'checkpoints'), 1) as checkpoints,
            TimedWriter(folder, start_step=0) as writer,
            Progress(steps, console=quiet) as progress,
        ):
            state = experiment.initial_state()
            loop = Run(experiment, pathlib.Path(folder), checkpoints, writer, progress)
            loop.until(steps, state)
        return (times[steps] - times[warm_up]) / (steps - warm_up)

    return Job(run)


def loop_settings(steps: int, warm_up: int) -> dict[str, Any]:
    """Fields of config.train; logs every 10 steps are its default."""
    return {
        'steps': steps,
        'log_every': min(10, warm_up),
        'eval_every': 0,
        'eval_batches': 1,
        'checkpoint_every': 0,
        'peak_flops': 1e11,  # else measured, for a second
    }


def rows(args: argparse.Namespace) -> Iterator[Row]:
    shape = gpt2.TINY if args.tiny else SHAPE
    sizes = shape, args.steps, args.warm_up
    jobs = {'ours, the loop': (make_loop, *sizes), 'a bare step': (make_bare, *sizes)}
    found = measure(jobs, args.rounds)
    loop, bare = found.values()
    work = f'{shape.layers} layers, {shape.width} wide'
    yield from time_rows(work, found)
    yield row(work, 'the loop / a bare step', over(loop, bare), 'x', '<= 1.05')


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--steps', type=int, default=1000)
    parser.add_argument('--warm_up', type=int, default=100, help='steps before those timed')


if __name__ == '__main__':
    run_benchmark(__file__, "the training loop's cost for each step", rows, add_options, TINY)
