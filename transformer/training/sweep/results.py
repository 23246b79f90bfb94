"""What a study found: its trials as plain records, seeds taken together, and the best command."""

import math
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial

from transformer.training.sweep.space import Overrides, to_text

SEEDS = ('seed', 'data.seed')  # fields of trials that are repetitions of one another


@dataclass(frozen=True)
class Result:
    """One trial of a study.

    Attributes:
        state: 'complete', 'pruned', 'fail', 'running' or 'waiting'.
        value: the metric after the last evaluation; None before it.
        curve: (updates, metric) of every evaluation.
        metrics: all of the last evaluation.
        reason: of a failure.
        distributions: that the overrides were chosen from.
    """

    number: int
    overrides: Overrides
    state: str
    value: float | None
    curve: tuple[tuple[int, float], ...]
    metrics: dict[str, float]
    reason: str
    distributions: dict[str, BaseDistribution]

    def log_scale(self, field: str) -> bool | None:
        """Whether a field was searched by its logarithm; None: its values were listed."""
        return getattr(self.distributions[field], 'log', None)

    @classmethod
    def of(cls, trial: FrozenTrial) -> 'Result':
        curve = tuple(sorted(trial.intermediate_values.items()))
        value = curve[-1][1] if curve and math.isfinite(curve[-1][1]) else None
        attributes = trial.user_attrs
        return cls(
            number=trial.number,
            overrides=dict(trial.params),
            state=trial.state.name.lower(),
            value=value,
            curve=curve,
            metrics=attributes.get('metrics', {}),
            reason=attributes.get('reason', ''),
            distributions=trial.distributions,
        )


@dataclass(frozen=True)
class Repetitions:
    """Complete trials that differ in their seeds only.

    Attributes:
        overrides: what they have in common, without the seeds.
        mean, spread: of their values; the spread is the sample standard deviation, None of one.
    """

    overrides: Overrides
    results: tuple[Result, ...]
    mean: float
    spread: float | None


def ranked(results: Iterable[Result], direction: str) -> list[Result]:
    """The complete trials with a value, the best first."""
    complete = [one for one in results if one.state == 'complete' and one.value is not None]
    return sorted(complete, key=lambda one: one.value, reverse=direction == 'maximize')


def repetitions(results: Iterable[Result], direction: str) -> list[Repetitions]:
    """The complete trials, those that differ in seeds only taken together, the best mean first."""
    groups: dict[tuple, list[Result]] = {}
    for result in ranked(results, direction):
        groups.setdefault(tuple(without_seeds(result.overrides).items()), []).append(result)
    rows = []
    for key, group in groups.items():
        values = [result.value for result in group]
        spread = statistics.stdev(values) if len(values) > 1 else None
        rows.append(Repetitions(dict(key), tuple(group), statistics.mean(values), spread))
    return sorted(rows, key=lambda row: row.mean, reverse=direction == 'maximize')


def without_seeds(overrides: Mapping[str, Any]) -> Overrides:
    return {name: value for name, value in overrides.items() if name not in SEEDS}


def short_names(fields: Iterable[str]) -> dict[str, str]:
    """The last part of each field's name where that is enough to tell them apart."""
    fields = list(fields)
    lasts = [field.split('.')[-1] for field in fields]
    return {
        field: last if lasts.count(last) == 1 else field
        for field, last in zip(fields, lasts, strict=True)
    }


def train_command(
    config_file: str, base: Sequence[tuple[str, str]], overrides: Mapping[str, Any], workdir: str
) -> str:
    """The shell line that trains a trial alone.

    Args:
        base: the overrides of the sweep's own command line, (field, text).
        overrides: of the trial, with both seeds.
    """
    fields = dict(base) | {name: to_text(value) for name, value in overrides.items()}
    words = ['python', 'train.py', f'--config={config_file}', f'--workdir={workdir}']
    words += [f'--config.{name}={text}' for name, text in fields.items()]
    return shlex.join(words)


def number(value: float | None) -> str:
    """Four significant digits, as people write them."""
    if value is None:
        return '–'
    return f'{value:.4g}' if abs(value) < 1e4 else f'{value:.2e}'


def text(value: Any) -> str:
    """A hyperparameter's value in a table."""
    return number(value) if isinstance(value, float) else to_text(value)
