"""What a sweep searches: distributions by config field, or explicit lists of overrides.

A config file says it in `get_space()`, for example

    def get_space():
        return {
            'optimizer.learning_rate': log_uniform(1e-4, 1e-2),
            'model.position': choice('rope', 'alibi'),
        }

or as a list of trials, each a mapping from field to value:

    def get_space():
        return product(grid({'optimizer.learning_rate': [1e-3, 3e-3]}), grid({'seed': range(3)}))
"""

import copy
import itertools
import math
import pathlib
import runpy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ml_collections import ConfigDict

from transformer.config_fields import override
from transformer.errors import UserError

Overrides = dict[str, Any]  # config field -> value


@dataclass(frozen=True)
class Uniform:
    """Floats between two bounds, evenly or, with `log`, evenly in their logarithm."""

    low: float
    high: float
    log: bool = False


@dataclass(frozen=True)
class Integers:
    """Integers from `low` to `high`, both included; with `log`, evenly in their logarithm."""

    low: int
    high: int
    log: bool = False


@dataclass(frozen=True)
class Choice:
    """One of some values."""

    values: tuple[Any, ...]


Distribution = Uniform | Integers | Choice


@dataclass(frozen=True)
class Space:
    """A checked space, made by `make_space`.

    Attributes:
        distributions: by field; of an explicit list, the values that occur in it.
        points: of an explicit list, its trials in order, each with every field; None: sampled.
    """

    distributions: dict[str, Distribution]
    points: tuple[Overrides, ...] | None = None


def uniform(low: float, high: float) -> Uniform:
    """Floats in [low, high], all alike."""
    return Uniform(low, high)


def log_uniform(low: float, high: float) -> Uniform:
    """Floats in [low, high], low > 0, every factor alike."""
    return Uniform(low, high, log=True)


def integers(low: int, high: int, log: bool = False) -> Integers:
    """Integers in [low, high], all alike or, with `log`, every factor alike."""
    return Integers(low, high, log)


def choice(*values: Any) -> Choice:
    """One of these values."""
    return Choice(values)


def zipped(columns: Mapping[str, Iterable[Any]]) -> list[Overrides]:
    """Trial i has value i of every field.

    Raises:
        UserError: fields with different numbers of values.
    """
    lists = {name: list(values) for name, values in columns.items()}
    if len({len(values) for values in lists.values()}) > 1:
        sizes = ', '.join(f'{name}: {len(values)}' for name, values in lists.items())
        raise UserError(f'zipped fields need as many values each, not {sizes}.')
    return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]


def product(*trials: Iterable[Overrides]) -> list[Overrides]:
    """Every trial of the first list with every one of the second, and so on."""
    return [
        {name: value for part in parts for name, value in part.items()}
        for parts in itertools.product(*trials)
    ]


def grid(columns: Mapping[str, Iterable[Any]]) -> list[Overrides]:
    """Every combination of the values of the fields."""
    return product(*(zipped({name: values}) for name, values in columns.items()))


def to_text(value: Any) -> str:
    """The value as `--config.FIELD=TEXT` takes it."""
    if isinstance(value, (tuple, list)):
        return '(' + ','.join(map(to_text, value)) + ')'
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, float) else str(value)


def with_overrides(config: ConfigDict, overrides: Mapping[str, Any]) -> ConfigDict:
    """A copy of the config with these fields set.

    Raises:
        UserError: an unknown field, or a value that is not of its type.
    """
    config = copy.deepcopy(config)
    for name, value in overrides.items():
        override(config, name, to_text(value))
    return config


def load_space(path: str) -> Any:
    """What `get_space()` of a config file returns; the file is one that `load_config` has read.

    Raises:
        UserError: there is no such function, or it fails.
    """
    file = pathlib.Path(f'{path.rsplit(".py:", 1)[0]}.py' if '.py:' in path else path)
    names = runpy.run_path(str(file))
    if 'get_space' not in names:
        raise UserError(
            f'{file} has no get_space(): add one that returns what to search, such as '
            "{'optimizer.learning_rate': log_uniform(1e-4, 1e-2)}; see docs/sweeps.md."
        )
    try:
        return names['get_space']()
    except Exception as error:
        text = ' '.join(str(error).split())[:200]
        raise UserError(f'{file}: get_space(): {type(error).__name__}: {text}') from error


def make_space(raw: Any, config: ConfigDict) -> Space:
    """The space that `get_space()` means; `groups.check_space` tries its values.

    Args:
        raw: a mapping from field to distribution, or a sequence of mappings from field to value,
            in which a field that a trial lacks has the value of `config`.

    Raises:
        UserError: it is neither, it is empty, or a bound is wrong.
    """
    if isinstance(raw, Mapping) and raw:
        return Space({name: _distribution(name, value) for name, value in raw.items()})
    if isinstance(raw, Sequence) and raw and all(isinstance(one, Mapping) for one in raw):
        return _listed(raw, config)
    raise UserError(
        'get_space() must return a mapping from field to distribution, or a list of mappings from '
        f'field to value, and not an empty one; it returns {str(raw)[:60]!r}.'
    )


def _listed(trials: Sequence[Mapping[str, Any]], config: ConfigDict) -> Space:
    names = list(dict.fromkeys(name for trial in trials for name in trial))
    if not names:
        raise UserError('get_space() lists trials without a field: name what differs.')
    default = {name: _value(config, name) for name in names}
    points = [{name: _plain(trial.get(name, default[name])) for name in names} for trial in trials]
    for number, point in enumerate(points):
        if point in points[:number]:
            raise UserError(
                f'get_space() lists trial {number} twice ({describe(point)}): leave one out.'
            )
    values = {name: tuple(dict.fromkeys(point[name] for point in points)) for name in names}
    return Space({name: Choice(values[name]) for name in names}, tuple(points))


def describe(overrides: Mapping[str, Any]) -> str:
    """'optimizer.learning_rate=0.001 seed=1'."""
    return ' '.join(f'{name}={to_text(value)}' for name, value in overrides.items())


def _value(config: ConfigDict, name: str) -> Any:
    """A field's value; None for a field that does not exist, which is reported when it is set."""
    value: Any = config
    for part in name.split('.'):
        value = value[part] if isinstance(value, ConfigDict) and part in value else None
    return value


def _plain(value: Any) -> Any:
    """numpy's numbers as Python's and tuples as texts, which any storage can hold."""
    value = value.item() if hasattr(value, 'item') else value
    return to_text(value) if isinstance(value, (tuple, list)) else value


def _distribution(name: str, distribution: Any) -> Distribution:
    """The distribution, checked."""
    if isinstance(distribution, Choice):
        if not distribution.values:
            raise UserError(f'{name}: choice() needs at least one value.')
        return Choice(tuple(dict.fromkeys(map(_plain, distribution.values))))
    if not isinstance(distribution, (Uniform, Integers)):
        raise UserError(
            f'{name} must have a distribution (uniform, log_uniform, integers or choice) or, in a '
            f'list of trials, a value; not {distribution!r}.'
        )
    low, high = distribution.low, distribution.high
    kinds = (int,) if isinstance(distribution, Integers) else (int, float)
    for bound in low, high:
        if type(bound) not in kinds or not math.isfinite(bound):
            what = 'an int' if kinds == (int,) else 'a finite number'
            raise UserError(f'{name}: the bound {bound!r} is not {what}.')
    if low >= high:
        raise UserError(f'{name}: the lower bound {low} must be below the upper bound {high}.')
    if distribution.log and low <= 0:
        raise UserError(f'{name}: a logarithmic range must be above 0, and {low} is not.')
    return distribution
