"""What a sweep tells on the terminal while it runs: a live table, or lines elsewhere."""

import math
import time
from collections.abc import Sequence
from datetime import timedelta

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from transformer.training.sweep.results import Result, number, ranked, short_names, text

BEST_SHOWN = 8
RUNNING_SHOWN = 16
PLAIN_SECONDS = 5.0  # least time between plain lines


class SweepProgress:
    """The best and the running trials, how many are done, and the time left.

    A context manager; it writes to stderr. The time left is that of this process alone, so that
    others sharing the study shorten it.
    """

    def __init__(self, metric: str, direction: str, console: Console | None = None):
        self._console = console or Console(stderr=True)
        self._metric, self._direction = metric, direction
        self._done = 0  # updates of trials made by this process
        self._started: float | None = None  # at the first of them, when compilation is over
        self._printed = -math.inf
        self._live = None
        if self._console.file.isatty() and self._console.is_interactive:
            self._live = Live(console=self._console, refresh_per_second=4)

    def __enter__(self) -> 'SweepProgress':
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def message(self, line: str) -> None:
        """Prints a line: above the table, or among the lines."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def update(self, results: Sequence[Result], steps: dict[int, int], updates: int, left: int):
        """Shows the state of the study.

        Args:
            results: all of its trials.
            steps: updates made by each trial that runs in this process, by number.
            updates: made by all of them since the last call.
            left: that the unfinished trials of the study still need.
        """
        now = time.monotonic()
        if self._started is None:
            self._started = now
        else:
            self._done += updates
        summary = self._summary(results, self._left(now, left))
        if self._live:
            self._live.update(self._table(results, steps, summary))
        elif now - self._printed >= PLAIN_SECONDS or not left:
            self._printed = now
            self.message(summary)

    def _left(self, now: float, updates: int) -> str:
        if not self._done or not updates:
            return ''
        seconds = (now - self._started) / self._done * updates
        return f'; {timedelta(seconds=round(seconds))} left'

    def _summary(self, results: Sequence[Result], left: str) -> str:
        states = [result.state for result in results]
        over = sum(states.count(state) for state in ('complete', 'pruned', 'fail'))
        kinds = [('pruned', 'pruned'), ('fail', 'failed'), ('running', 'running')]
        parts = [f'{states.count(state)} {name}' for state, name in kinds if state in states]
        line = f'{over}/{len(results)} trials' + (f' ({", ".join(parts)})' if parts else '')
        best = ranked(results, self._direction)[:1]
        if best:
            line += f'; best {self._metric} {number(best[0].value)} (trial {best[0].number})'
        return line + left

    def _table(self, results: Sequence[Result], steps: dict[int, int], summary: str) -> Table:
        table = Table(title=escape(summary), title_justify='left', box=SIMPLE_HEAD)
        fields = list(dict.fromkeys(name for result in results for name in result.overrides))
        for name in ('trial', *short_names(fields).values(), 'step', self._metric):
            table.add_column(escape(name), justify='right')
        best = ranked(results, self._direction)[:BEST_SHOWN]
        running = [result for result in results if result.number in steps][:RUNNING_SHOWN]
        for rows in best, running:
            for one in rows:
                values = [one.overrides.get(name) for name in fields]
                step = steps.get(one.number, one.curve[-1][0] if one.curve else 0)
                texts = [text(value) for value in values]
                table.add_row(str(one.number), *map(escape, texts), f'{step:,}', number(one.value))
            table.add_section()
        return table
