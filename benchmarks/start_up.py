"""What a user waits for: importing the kernels, and train.py up to its first step.

    python benchmarks/start_up.py

Fresh processes, the files of Python's and of JAX's compilation cache warm: the first of each fills
them and is not timed. The import of transformer.functional is timed after that of jax; the first
step of the quickstart is over when its progress line appears. Python with jax and its device alone
is what no such program can go under.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator

from harness import ROOT, Job, Row, measure, over, row, run_benchmark

IMPORT = """
import jax, jax.numpy, time
started = time.perf_counter()
import transformer.functional
print(time.perf_counter() - started)
"""
FLOOR = 'import jax; jax.devices()'
TINY_FIELDS = (
    '--config.data.path=README.md',
    '--config.data.tokenizer=bytes',
    '--config.model.num_layers=1',
    '--config.train.peak_flops=1e11',
    '--config.optimizer.name=adamw',
)


def make_script(script: str) -> Job:
    """A process that runs these lines; what it prints, if anything, are the seconds that count."""

    def run():
        command = [sys.executable, '-c', script]
        printed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
        return float(printed) if printed else None

    return Job(run)


def make_train(folder: str, fields: tuple[str, ...]) -> Job:
    """train.py on the quickstart, with more fields, up to the first step.

    Args:
        folder: of the compilation cache and of the runs.
    """
    environment = os.environ | {
        'JAX_COMPILATION_CACHE_DIR': f'{folder}/cache',
        'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
        'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
    }

    def run():
        with tempfile.TemporaryDirectory(dir=folder) as workdir:
            command = [sys.executable, 'train.py', '--config=configs/quickstart.py']
            command += [f'--workdir={workdir}', '--config.train.log_every=1', *fields]
            started = time.perf_counter()
            with subprocess.Popen(
                command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
            ) as process:
                until_step(process.stderr)
                elapsed = time.perf_counter() - started
                process.kill()
        return elapsed

    return Job(run)


def until_step(lines: Iterable[str]) -> None:
    """Reads the lines of a run's progress up to that of a step.

    Raises:
        RuntimeError: there is none; with all lines.
    """
    read = []
    for line in lines:
        read.append(line)
        if line.startswith('step '):
            return
    raise RuntimeError(''.join(read))


def rows(args: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        fields = (*TINY_FIELDS, f'--config.data.cache_dir={folder}') if args.tiny else ()
        jobs = {
            'ours, import of transformer.functional after jax': (make_script, IMPORT),
            'python, import of jax, its device': (make_script, FLOOR),
            'ours, train.py to the first step': (make_train, folder, fields),
        }
        found = measure(jobs, args.rounds)
    _, floor, script = found.values()
    for (name, one), owed in zip(found.items(), ('<= 0.3', '', '<= 8'), strict=True):
        yield row('start-up', name, one.seconds, 's', owed)
    yield row('start-up', 'train.py / jax and its device', over(script, floor), 'x')


if __name__ == '__main__':
    run_benchmark(__file__, 'start-up', rows)
