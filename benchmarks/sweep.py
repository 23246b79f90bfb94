"""Trials an hour of a sweep: one group against the same trials one after another.

    PYTHONPATH=. python benchmarks/sweep.py

Three ways to train 16 trials of a small model (2 layers, 64 wide, rows of 64 tokens, batches of 8,
300 updates), in interleaved repetitions:

    group   side by side, as sweep.py does
    loop    one after another in one process, the step compiled once for all of them
    fresh   one after another by train.py, a process each (a few, and the time of all by proportion)

Then the time to compile a group of 64 against that of one trial, and what a roofline lets one
expect of devices that are not here.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import jax

from configs import base
from transformer.config_files import config_to_json
from transformer.flops import training_flops_per_token
from transformer.parallel import make_cores_devices
from transformer.training.reporting import print_table
from transformer.training.sweep import VectorTrainer, fastest_trainer
from transformer.training.sweep.runner import Listener, Trial, run_group
from transformer.training.sweep.space import with_overrides

ROOT = pathlib.Path(__file__).resolve().parents[1]
FIELDS = ('optimizer.learning_rate', 'optimizer.weight_decay', 'schedule.warmup_steps', 'seed')

# Peak FLOP/s of bfloat16, bytes/s of memory, and seconds that an operation takes at least.
DEVICES = {'TPU v5e': (197e12, 819e9, 1e-6), 'H200': (989e12, 4.8e12, 4e-6)}
BYTES_OF_A_PARAMETER = 4 * 8  # read and written: value, two moments, gradient


def make_config(steps):
    config = base.get_config()
    config.data.tokenizer = 'bytes'
    config.data.length = 64
    config.data.batch_size = 8
    config.model.num_layers = 2
    config.model.embed_dim = 64
    config.model.num_heads = 2
    config.model.mlp_dim = 128
    config.model.scan_layers = False
    config.train.steps = steps
    config.train.eval_every = 0
    config.train.eval_batches = 10
    config.train.checkpoint_every = 0
    return config


def make_trials(config, count):
    trials = []
    for n in range(count):
        overrides = dict(zip(FIELDS, (1e-3 * 1.2**n, 0.01 * n, 10 + n, n), strict=True))
        trials.append(Trial(n, overrides, with_overrides(config, overrides)))
    return trials


def run_in_group(trainer, config, count):
    run_group(trainer, make_trials(config, count), Listener())


def run_in_loop(trainer, config, count):
    for trial in make_trials(config, count):
        run_group(trainer, [trial], Listener())


def run_fresh(config, count):
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, 'small.py')
        text = json.dumps(config_to_json(config))
        file.write_text(
            'from configs import base\nfrom transformer.config_files import config_from_json\n\n'
            f'def get_config():\n    return config_from_json({text}, base.get_config())\n'
        )
        for trial in make_trials(config, count):
            fields = [f'--config.{name}={value}' for name, value in trial.overrides.items()]
            command = ['train.py', f'--config={file}', f'--workdir={folder}/{trial.number}']
            subprocess.run(
                [sys.executable, *command, *fields], cwd=ROOT, check=True, capture_output=True
            )


def seconds(function, *arguments):
    started = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - started


def compile_seconds(config, slots):
    """Of the first update, less those after it."""
    trainer = VectorTrainer(config, FIELDS, slots)
    trainer.start(dict.fromkeys(range(slots), config))
    return seconds(trainer.train, 1) - seconds(trainer.train, 1)


def expected_gains(config, trainer):
    """Rows: of each device, how many trials an hour K side by side make for each of one alone.

    A step takes the longest of its operations' latencies, its arithmetic and its memory traffic;
    K trials have K times the last two, and the same number of operations.
    """
    tokens = config.data.batch_size * config.data.length
    flops = tokens * training_flops_per_token(trainer.experiment.model_config, config.data.length)
    shapes = jax.eval_shape(trainer.experiment.initial_params)
    traffic = BYTES_OF_A_PARAMETER * sum(leaf.size for leaf in jax.tree.leaves(shapes))
    state = jax.eval_shape(trainer.experiment.initial_state)
    batch = trainer.experiment.data.train.batch(0)
    numbers = {name: column[0] for name, column in trainer.columns([config]).items()}
    operations = jax.jit(trainer.updated).lower(state, batch, numbers).compile().as_text()
    count = sum(' fusion(' in line or ' dot(' in line for line in operations.splitlines())
    for name, (peak, bandwidth, latency) in DEVICES.items():
        one = max(flops / peak, traffic / bandwidth)
        waiting = count * latency
        gains = {f'{k} trials': k * max(waiting, one) / max(waiting, k * one) for k in (16, 64)}
        yield {'expected of': name, 'operations': count, 'one trial, us': 1e6 * waiting} | gains


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--trials', type=int, default=16)
    parser.add_argument('--steps', type=int, default=300)
    parser.add_argument('--repetitions', type=int, default=3)
    parser.add_argument('--fresh', type=int, default=2, help='processes timed each time')
    args = parser.parse_args()
    make_cores_devices()
    config = make_config(args.steps)
    group = fastest_trainer(config, FIELDS, args.trials)
    loop = VectorTrainer(config, FIELDS, 1)
    layout = f'{len(group.parallel.devices)} devices x {group.parallel.per_device} trials'
    print(f'{jax.devices()[0].device_kind}: {layout}, {group.parallel.chunk} at a time')
    run_in_group(group, config, args.trials)  # compiles
    run_in_loop(loop, config, 1)
    times = {'group': [], 'loop': [], 'fresh': []}
    for _ in range(args.repetitions):
        times['group'].append(seconds(run_in_group, group, config, args.trials))
        times['loop'].append(seconds(run_in_loop, loop, config, args.trials))
        fresh = seconds(run_fresh, config, args.fresh) * args.trials / args.fresh
        times['fresh'].append(fresh)
    rows = [
        {
            'way': name,
            'seconds, median': statistics.median(all_times),
            'trials an hour': round(3600 * args.trials / statistics.median(all_times)),
            'over the group': statistics.median(
                one / first for one, first in zip(all_times, times['group'], strict=True)
            ),
        }
        for name, all_times in times.items()
    ]
    print_table(f'{args.trials} trials of {args.steps} updates', rows)
    one, many = compile_seconds(config, 1), compile_seconds(config, 64)
    print_table('compilation', [{'one, s': one, '64 trials, s': many, 'ratio': many / one}])
    print_table('by a roofline, not measured', list(expected_gains(config, loop)))


if __name__ == '__main__':
    main()
