"""Text on its way to a terminal or a file, and the time it took."""

import json
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

# Characters that can move a terminal's cursor or change its state.
CONTROLS = {code: '\ufffd' for code in (*range(32), *range(127, 160)) if chr(code) not in '\t\n'}


def show(text: str) -> None:
    """Writes to stdout as it is, or, to a terminal, without what a terminal would obey."""
    if sys.stdout.isatty():
        text = text.translate(CONTROLS)
    print(text, end='', flush=True)


def show_answers(answers: Iterable[Any], first: int, total: int, jsonl: bool) -> None:
    """Prints some of `total` answers in order, each under its number unless there is but one.

    Args:
        answers: see `transformer.decoding.answers.Answer`.
        first: number of the first one, from 1.
        jsonl: print one JSON object a line instead.
    """
    for number, answer in enumerate(answers, first):
        if jsonl:
            show(json.dumps(answer.record, ensure_ascii=False) + '\n')
            continue
        remark = f', {answer.remark}' if answer.remark else ''
        heading = f'=== {number} of {total}{remark} ===\n' if total > 1 else ''
        show(f'{heading}{answer.text}\n')


def show_stream(
    decoder: Any, prompt: Sequence[int], chunks: Iterable[list[list[int]]], clock: 'Clock'
) -> list[int]:
    """Prints a prompt at once and then, whole characters only, what is added to it.

    Args:
        decoder: a `transformer.data.StreamDecoder`.
        chunks: what `stream` yields for one prompt.

    Returns:
        The prompt and the new tokens.
    """
    tokens = list(prompt)
    show(''.join(map(decoder.step, prompt)))
    for (new,) in chunks:
        show(''.join(map(decoder.step, new)))
        clock.add(len(new))
        tokens += new
    show(decoder.flush() + '\n')
    return tokens


class Clock:
    """Counts new tokens, and times those after the first ones, with which programs compile."""

    def __init__(self):
        self._started = time.perf_counter()
        self._made: list[tuple[int, float]] = []  # tokens, and the time at which they came

    def add(self, tokens: int) -> None:
        self._made.append((tokens, time.perf_counter()))

    def report(self) -> str:
        total = sum(tokens for tokens, _ in self._made)
        (first, first_time), (_, last_time) = self._made[0], self._made[-1]
        text = f'{total} new tokens in {last_time - self._started:.1f} s'
        if len(self._made) > 1:
            speed = (total - first) / (last_time - first_time)
            text += f', after the first {first} at {speed:.0f} tokens/s'
        return text
