"""What a run tells while it trains: a metrics file, TensorBoard events, curves, a progress bar."""

import functools
import json
import math
import os
import pathlib
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import rich.progress
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

METRICS_FILE = 'metrics.jsonl'
FIRST_METRICS = 'loss', 'perplexity', 'accuracy'  # in this order, before all others
SHOWN = {
    'loss': 'loss {:.3f}',
    'eval_loss': 'eval {:.3f}',
    'learning_rate': 'lr {:.1e}',
    'tokens_per_second': '{:,.0f} tok/s',
}
WIDE = 100  # columns of a terminal that has room for all of them
PLAIN_SECONDS = 5.0  # least time between plain lines
PIPE_WIDTH = 200  # of a table that is not printed on a terminal


class MetricsWriter:
    """Appends to `metrics.jsonl`, one JSON object a line, and to TensorBoard's events.

    A line is complete on disk when `write` returns. A number that is not finite becomes null,
    which keeps the line valid JSON.

    Args:
        workdir: folder of the run.
        start_step: updates done so far. What was written for later steps, by a run that was
            killed after its last checkpoint, is dropped; 0 starts afresh.
    """

    def __init__(self, workdir: str | os.PathLike, *, start_step: int):
        path = pathlib.Path(workdir, METRICS_FILE)
        kept = [line for line in read_metrics(workdir) if 0 < start_step >= line['step']]
        text = ''.join(f'{json.dumps(line)}\n' for line in kept)
        _write_atomically(path, text.encode())
        self._written = {(line['step'], line['split']) for line in kept}
        self._file = path.open('a')
        self._logdir = str(path.with_name('tensorboard'))
        self._purge_step = start_step + 1 if start_step else 0

    @functools.cached_property
    def _events(self):
        from tensorboardX import SummaryWriter  # takes seconds where it finds torch

        return SummaryWriter(logdir=self._logdir, purge_step=self._purge_step, flush_secs=10)

    def write(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
        """Adds the metrics of a split ('train', 'eval') after `step` updates.

        A step and split that a resumed run meets again keep their line.
        """
        if (step, split) in self._written:
            return
        self._written.add((step, split))
        names = [name for name in FIRST_METRICS if name in metrics]
        names += [name for name in metrics if name not in names]
        finite = {name: math.isfinite(metrics[name]) for name in names}
        values = {name: metrics[name] if finite[name] else None for name in names}
        self._file.write(json.dumps({'step': step, 'split': split} | values) + '\n')
        self._file.flush()
        for name in filter(finite.get, names):
            self._events.add_scalar(f'{split}/{name}', metrics[name], step)

    def close(self) -> None:
        self._file.close()
        if '_events' in vars(self):  # something was written
            self._events.close()

    def __enter__(self) -> 'MetricsWriter':
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def read_metrics(workdir: str | os.PathLike) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl` in order; none without the file.

    A line that is no record, such as one that a killed run left unfinished, is passed over.
    """
    path = pathlib.Path(workdir, METRICS_FILE)
    lines = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
            if isinstance(record['step'], int) and isinstance(record['split'], str):
                lines.append(record)
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
    return lines


def _write_atomically(path: pathlib.Path, content: bytes) -> None:
    """A reader sees the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f'{path.name}.tmp')
    unfinished.write_bytes(content)
    os.replace(unfinished, path)


def plot_curves(workdir: str | os.PathLike) -> None:
    """Draws `curves.png` from `metrics.jsonl`."""
    from transformer.training.curves import draw_curves  # matplotlib is slow to import

    image = draw_curves(read_metrics(workdir), title=pathlib.Path(workdir).resolve().name)
    _write_atomically(pathlib.Path(workdir, 'curves.png'), image)


class Progress:
    """A bar with the latest numbers on a terminal; elsewhere a plain line every few seconds.

    A context manager. It writes to stderr, so that stdout stays free.

    Args:
        total: updates of the whole run.
        start: updates done before this process.
    """

    def __init__(self, total: int, *, start: int = 0, console: Console | None = None):
        self._console = console or Console(stderr=True)
        self._total = total
        self._values: dict[str, float] = {}
        self._started = time.monotonic()
        self._first = None  # (step, time) of the first update: compilation is over
        self._printed = -math.inf  # time of the last plain line
        self._bar = None
        if self._console.file.isatty() and self._console.is_interactive:
            self._bar = rich.progress.Progress(
                rich.progress.MofNCompleteColumn(),
                rich.progress.BarColumn(bar_width=None),
                rich.progress.TextColumn('{task.description}', markup=False),
                rich.progress.TimeElapsedColumn(),
                rich.progress.TextColumn('left'),
                rich.progress.TimeRemainingColumn(),
                console=self._console,
                expand=True,
                refresh_per_second=4,
            )
            self._task = self._bar.add_task('', total=total, completed=start)

    def __enter__(self) -> 'Progress':
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._bar:
            self._bar.stop()

    def update(self, step: int, **values: float) -> None:
        """Shows `loss`, `eval_loss`, `learning_rate` and `tokens_per_second` after `step` updates.

        Values stay until they are given anew; others are left to the metrics file.
        """
        self._values |= values
        names = [name for name in SHOWN if name in self._values]
        if self._bar and self._console.width < WIDE:
            names = [name for name in names if name != 'learning_rate']
        numbers = [SHOWN[name].format(self._values[name]) for name in names]
        if self._bar:
            self._bar.update(self._task, completed=step, description=' '.join(numbers))
            return
        now = time.monotonic()
        self._first = self._first or (step, now)
        if now - self._printed >= PLAIN_SECONDS or step == self._total:
            self._printed = now
            times = [f'{_duration(now - self._started)} elapsed', *self._left(step, now)]
            self.message('  '.join([f'step {step}/{self._total}', *numbers, *times]))

    def _left(self, step: int, now: float) -> list[str]:
        first_step, first_time = self._first
        if step == first_step:
            return []
        seconds = (now - first_time) / (step - first_step) * (self._total - step)
        return [f'{_duration(seconds)} left']

    def message(self, text: str) -> None:
        """Prints a line: above the bar, or among the plain lines."""
        if self._bar:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=self._console.file, flush=True)


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def print_table(
    title: str, rows: Sequence[Mapping[str, Any]], console: Console | None = None
) -> None:
    """Prints rows with the same keys as a table under these keys, its numbers to the right."""
    console = console or Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
    table = Table(title=escape(title), title_justify='left', box=SIMPLE_HEAD)
    for name, value in rows[0].items():
        number = isinstance(value, (int, float))
        table.add_column(escape(name), justify='right' if number else 'left', no_wrap=number)
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    console.print(table)


def print_examples(pairs: Sequence[tuple[str, str]], hypotheses: Sequence[str], count: int) -> None:
    """Prints source, reference and hypothesis of `count` pairs, spread over all of them."""
    count = min(count, len(pairs))
    for i in (number * len(pairs) // count for number in range(count)):
        source, reference = pairs[i]
        print(f'source      {source}\nreference   {reference}\nhypothesis  {hypotheses[i]}\n')


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f'{value:.4f}' if abs(value) < 1000 else f'{value:,.0f}'
    return f'{value:,}' if type(value) is int else escape(str(value))
