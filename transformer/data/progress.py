"""A progress bar on the terminal, for work that turns out to take a while."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

PATIENCE = 1.0  # seconds before the bar appears


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yields `advance(amount)`; the bar, on stderr, fills when the amounts reach `total`."""
    console = Console(stderr=True)
    bar = Progress(console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task(title, total=total)
    begin = time.monotonic()

    def advance(amount: int) -> None:
        bar.advance(task, amount)
        if not bar.live.is_started and time.monotonic() - begin > PATIENCE:
            bar.start()

    try:
        yield advance
    finally:
        bar.stop()
