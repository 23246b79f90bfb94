"""What all benchmarks share: a process for each contestant, interleaved rounds, rows, results.

A benchmark is a file with a function `rows(args)` that yields rows, made by `time_rows` and `row`,
and is run as `python benchmarks/NAME.py`. Absolute times are those of one machine on one day; what
a row compares was measured in turns, so that what else the machine does falls on all alike.
"""

import argparse
import gc
import importlib.metadata
import importlib.util
import math
import multiprocessing
import operator
import os
import pathlib
import re
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))  # for `transformer` and `configs`, which the benchmarks import

# The peers are builds for CPUs. Nothing is to be looked up in a network.
os.environ.setdefault('JAX_PLATFORMS', 'cpu')
os.environ.setdefault('HF_HUB_OFFLINE', '1')
os.environ.setdefault('TRANSFORMERS_VERBOSITY', 'error')

LEAST_SECONDS = 0.3  # of one timing: shorter runs are repeated
COMPARISONS = {'<=': operator.le, '>=': operator.ge}
Row = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """What a contestant's process does again and again.

    Attributes:
        run: does it once and waits for the result. It may return a float, the seconds that
            count, where these are not all it takes.
        facts: what else is to be known of it, numbers or short lists.
    """

    run: Callable[[], Any]
    facts: dict[str, Any] = field(default_factory=dict)


Contestant = tuple[Any, ...]  # a function of the benchmark's file that returns a Job; its arguments


@dataclass(frozen=True)
class Measurement:
    """Of one contestant.

    Attributes:
        seconds: of one run, in each round.
        peak_bytes: by which the first run raised the peak of the process's resident memory; None
            where the system does not tell.
        facts: of the Job.
    """

    seconds: list[float]
    peak_bytes: float | None
    facts: dict[str, Any]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


class Worker:
    """A process that makes a contestant's Job, runs it when told to, and else waits."""

    def __init__(self, contestant: Contestant):
        context = multiprocessing.get_context('spawn')
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, *contestant), daemon=True)
        self._process.start()
        other.close()
        self.peak_bytes, self.facts = self._receive()

    def seconds(self) -> float:
        """The time of one run, the mean over LEAST_SECONDS, after one that is not timed.

        A program that runs again and again does so with its memory and threads at hand. While
        others had their turn, a virtual machine may have given what was free to its host.
        """
        self._pipe.send(True)
        return self._receive()

    def close(self) -> None:
        self._pipe.send(False)
        self._process.join()

    def _receive(self):
        try:
            answer = self._pipe.recv()
        except EOFError:
            raise SystemExit('error: a contestant ended; it may have run out of memory.') from None
        if isinstance(answer, str):
            raise SystemExit(f'error: a contestant failed:\n{answer}')
        return answer


def _serve(pipe, make, *arguments):
    try:
        job = make(*arguments)
        peak = _peak_growth(job.run)
        pipe.send((peak, job.facts))
        while pipe.recv():
            pipe.send(_mean_seconds(job.run))
    except Exception:
        pipe.send(traceback.format_exc())


def _mean_seconds(run: Callable[[], Any]) -> float:
    run()
    own, elapsed, started = [], 0.0, time.perf_counter()
    while elapsed < LEAST_SECONDS:
        own.append(run())
        elapsed = time.perf_counter() - started
    return (sum(own) if isinstance(own[0], float) else elapsed) / len(own)


def _peak_growth(run: Callable[[], Any]) -> float | None:
    """Bytes by which a run raises the peak of this process's resident memory (Linux only)."""
    clear = pathlib.Path('/proc/self/clear_refs')
    if not clear.exists():
        run()
        return None
    _settle()
    clear.write_text('5')  # the peak starts anew
    before = _resident('VmRSS')
    run()
    return float(_resident('VmHWM') - before)


def _settle() -> None:
    """Returns when no more memory is given back, of which a run would use what it then needs."""
    last = math.inf
    while (now := _resident('VmRSS')) < last:
        last = now
        gc.collect()
        time.sleep(0.5)


def _resident(name: str) -> int:
    status = pathlib.Path('/proc/self/status').read_text()
    return 1024 * int(re.search(rf'{name}:\s+(\d+) kB', status)[1])


def measure(contestants: Mapping[Any, Contestant], rounds: int) -> dict[Any, Measurement]:
    """Runs all contestants in turns, each in a process of its own while the others wait.

    The processes start one after another. Each round begins with another contestant.
    """
    workers = {name: Worker(contestant) for name, contestant in contestants.items()}
    seconds = {name: [] for name in workers}
    names = list(workers)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            seconds[name].append(workers[name].seconds())
    for worker in workers.values():
        worker.close()
    return {
        name: Measurement(seconds[name], worker.peak_bytes, worker.facts)
        for name, worker in workers.items()
    }


def installed(*packages: str) -> bool:
    """Whether these are; if not, says what is left out."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    for name in missing:
        print(f'{name} is not installed (requirements-bench.txt): its rows are left out')
    return not missing


def over(a: Measurement, b: Measurement) -> list[float]:
    """Time of `a` over that of `b`, in each round."""
    return [x / y for x, y in zip(a.seconds, b.seconds, strict=True)]


def row(
    work: str,
    measured: str,
    values: float | Sequence[float],
    unit: str,
    owed: str = '',
    **more: Any,
) -> Row:
    """A line of the results: the median of the values of all rounds.

    Args:
        work: what is done.
        measured: whose, or of whom over whom.
        unit: 'x' of a ratio.
        owed: what is to be reached, as '<= 1.4'; '': nothing.
        **more: kept in the JSON file, and `x` of a line in the picture.
    """
    values = list(values) if isinstance(values, Sequence) else [values]
    value = statistics.median(values)
    met = ''
    if owed:
        sign, bound = owed.split()
        met = 'yes' if COMPARISONS[sign](value, float(bound)) else 'NO'
    columns = {'work': work, 'measured': measured, 'value': value, 'unit': unit}
    spread = f'{100 * _spread(values) / abs(value):.0f}%' if value and len(values) > 1 else ''
    return columns | {'spread': spread, 'owed': owed, 'met': met, 'rounds': values} | more


def _spread(values: Sequence[float]) -> float:
    """Distance of the quartiles."""
    low, _, high = statistics.quantiles(values, n=4, method='inclusive')
    return high - low


def time_rows(
    work: str,
    measurements: Mapping[str, Measurement],
    unit: str = 'ms',
    amount: float = 1.0,
    **more: Any,
) -> Iterator[Row]:
    """A row for each contestant.

    Args:
        unit: 'ms' or 's' of a run, or 'NAME/s': what is done in a second.
        amount: what one run does, in that unit.
    """
    scale = {'ms': 1e3, 's': 1.0}
    for name, one in measurements.items():
        if unit in scale:
            values = [scale[unit] * seconds for seconds in one.seconds]
        else:
            values = [amount / seconds for seconds in one.seconds]
        yield row(work, name, values, unit, **more)


def describe_machine() -> dict[str, Any]:
    """Processor, cores, memory and versions."""
    cpuinfo = pathlib.Path('/proc/cpuinfo')
    model = re.search(r'model name\s*:\s*(.+)', cpuinfo.read_text() if cpuinfo.exists() else '')
    packages = 'jax', 'jaxlib', 'flax', 'optax', 'numpy', 'torch', 'transformers'
    versions = {}
    for name in packages:
        if importlib.util.find_spec(name) is not None:
            versions[name] = importlib.metadata.version(name)
    return {
        'processor': model[1] if model else 'unknown',
        'cores': len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else 0,
        'load': os.getloadavg()[0],  # before the benchmark: near 0 on an idle machine
        'python': sys.version.split()[0],
        **versions,
    }


def common_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--tiny', action='store_true', help='sizes that only show that it works')
    parser.add_argument(
        '--out', type=pathlib.Path, default=ROOT / 'runs/benchmarks', help='folder of the results'
    )


def run_benchmark(
    file: str,
    title: str,
    rows: Callable[[argparse.Namespace], Iterable[Row]],
    add_options: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
    tiny: Mapping[str, Any] | None = None,
) -> None:
    """The main function of a benchmark's file: a table, NAME.json and NAME.png.

    Args:
        file: `__file__`.
        title: one line.
        rows: of the benchmark.
        add_options: adds its own.
        tiny: what --tiny makes of them.
    """
    from report import print_rows, write_results

    parser = argparse.ArgumentParser(description=title)
    common_options(parser)
    add_options(parser)
    if '--tiny' in sys.argv:
        parser.set_defaults(**(tiny or {}))
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error('--rounds must be at least 1')
    machine = describe_machine()
    found = list(rows(args))
    print_rows(title, found)
    write_results(args.out, pathlib.Path(file).stem, title, machine, found)
