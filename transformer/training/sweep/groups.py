"""Which fields of a config one compiled program can vary between its trials, and which it cannot.

Every field is of one class:

    traced  changes only numbers in the step or in the initial parameters
    static  changes shapes, structure, data or the evaluation: another program
    host    is what the host does around the program

Trials that agree on all static fields form a group, which is one program.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from ml_collections import ConfigDict

from transformer.config_fields import field_names
from transformer.errors import UserError
from transformer.ranges import flat
from transformer.training.experiment import check_config
from transformer.training.step import hyperparameters
from transformer.training.sweep.space import (
    Choice,
    Integers,
    Overrides,
    Space,
    describe,
    with_overrides,
)

FieldClass = Literal['traced', 'static', 'host']

INIT_FIELDS = ('model.init_std', 'model.embedding_std')  # numbers of the initial parameters alone

# Host fields that each trial may have for itself: of its batches, its end and its failure.
OWN_HOST_FIELDS = ('data.seed', 'train.steps', 'train.on_nonfinite')

# Host fields that are one for the sweep; `train.py` reads those of a second line, a sweep does not.
SHARED_HOST_FIELDS = ('train.eval_every', 'parallel.mode', 'parallel.devices', 'data.cache_dir')
UNUSED_FIELDS = (
    'init_from',
    'train.log_every',
    'train.decode_pairs',
    'train.checkpoint_every',
    'train.keep_checkpoints',
    'train.peak_flops',
)
HOST_FIELDS = OWN_HOST_FIELDS + SHARED_HOST_FIELDS + UNUSED_FIELDS

MOST_COMBINATIONS = 200  # of a sampled space that are tried before the start


def hyperparameter_fields(config: ConfigDict) -> dict[str, tuple[str, ...]]:
    """The fields whose change changes `hyperparameters(config)`, each with what it changes there.

    Found by changing every number in turn, so that nobody keeps a list.
    """
    config = with_overrides(config, {})
    before = hyperparameters(config)
    found = {}
    for field in field_names(config):
        section, name = _locate(config, field)
        kind, value = section.get_type(name), section[name]
        if kind not in (int, float):
            continue
        section[name] = kind(1 if value is None else value + 1)
        after = hyperparameters(config)
        section[name] = value
        changed = tuple(key for key in before if before[key] != after[key])
        if changed:
            found[field] = changed
    return found


def field_classes(config: ConfigDict) -> dict[str, FieldClass]:
    """The class of every field, for experiments like this one."""
    traced = {*hyperparameter_fields(config), *INIT_FIELDS} - set(HOST_FIELDS)
    if config.task == 'span_corruption':
        traced -= {'corruption.rate'}  # it decides how long the rows become
    classes: dict[str, FieldClass] = {}
    for field in field_names(config):
        classes[field] = 'static'
        if field in traced:
            classes[field] = 'traced'
        if field in HOST_FIELDS:
            classes[field] = 'host'
    return classes


def group_key(config: ConfigDict, classes: Mapping[str, FieldClass]) -> tuple[tuple[str, Any], ...]:
    """What trials of one group have in common, hashable: the static fields and their values.

    A traced field that switches something off (no average of the parameters, an initializer
    without a deviation of its own) also decides the structure, by that alone.
    """
    values = flat(config.to_dict())
    static = [(field, values[field]) for field in values if classes[field] == 'static']
    return (
        *static,
        ('train.ema_decay > 0', values['train.ema_decay'] > 0),
        ('model.embedding_std is set', values['model.embedding_std'] is not None),
    )


def group_name(key: tuple[tuple[str, Any], ...], base: tuple[tuple[str, Any], ...]) -> str:
    """How a group differs from the config of the sweep, as overrides; '' if it does not."""
    pairs = zip(key, base, strict=True)
    return describe({name: value for (name, value), (_, other) in pairs if value != other})


def check_space(space: Space, config: ConfigDict) -> None:
    """Raises UserError if a trial of the space could not run, before any does.

    All points of a list are tried. Of a sampled space, every combination of choices (the first
    200) with all numbers at their lower and at their upper bounds.
    """
    classes = field_classes(config)
    for field in space.distributions:
        if field in HOST_FIELDS and field not in OWN_HOST_FIELDS:
            raise UserError(
                f'get_space(): {field} changes no number of a trial: set it for the whole sweep '
                f'with --config.{field}=VALUE.'
            )
    points = _corners(space, classes) if space.points is None else space.points
    for point in itertools.islice(points, None if space.points else MOST_COMBINATIONS):
        try:
            check_config(with_overrides(config, point))
        except UserError as error:
            raise UserError(f'get_space(): {describe(point)}: {error}') from None


def _corners(space: Space, classes: Mapping[str, FieldClass]) -> Iterator[Overrides]:
    for bound in 'low', 'high':
        columns = [
            _examples(distribution, bound, classes.get(field) == 'static')
            for field, distribution in space.distributions.items()
        ]
        for values in itertools.product(*columns):
            yield dict(zip(space.distributions, values, strict=True))


def _examples(distribution: Any, bound: str, every_integer: bool) -> Sequence[Any]:
    if isinstance(distribution, Choice):
        return distribution.values
    if isinstance(distribution, Integers) and every_integer:  # sizes that divide one another
        return range(distribution.low, distribution.high + 1)
    return (getattr(distribution, bound),)


def describe_groups(space: Space, config: ConfigDict) -> list[str]:
    """Lines that say what varies inside the programs, and which programs there are."""
    classes = field_classes(config)
    lines = []
    for kind, text in (
        ('traced', 'varied inside one program'),
        ('host', 'varied by the host'),
        ('static', 'one program for each combination'),
    ):
        fields = [field for field in space.distributions if classes[field] == kind]
        if fields:
            lines.append(f'{text}: {", ".join(fields)}')
    if space.points is not None:
        base = group_key(config, classes)
        keys = [group_key(with_overrides(config, point), classes) for point in space.points]
        for key in dict.fromkeys(keys):
            lines.append(f'group of {keys.count(key)}: {group_name(key, base) or "the config"}')
    unused = [field for field in UNUSED_FIELDS if _is_set(config, field)]
    lines.append(f'not used by a sweep: {", ".join(unused)}')
    return lines


def _is_set(config: ConfigDict, field: str) -> bool:
    section, name = _locate(config, field)
    return bool(section[name])


def _locate(config: ConfigDict, field: str) -> tuple[ConfigDict, str]:
    """The section that holds a field, and its last name."""
    *sections, last = field.split('.')
    for section in sections:
        config = config[section]
    return config, last
