"""What a table of one family of published models consists of."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from transformer.config import TransformerConfig
from transformer.errors import UserError, nearest

REQUIRED = object()


class Published:
    """The config.json of a model, and the names of its modules that have tensors."""

    def __init__(self, fields: Mapping[str, Any], modules: frozenset[str] = frozenset()):
        self._fields = fields
        self._modules = modules

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a field, which may be null; a UserError if it is REQUIRED and absent."""
        if name in self._fields:
            return self._fields[name]
        if default is REQUIRED:
            raise UserError(f'config.json has no {name}, which this model_type needs.')
        return default

    def has(self, module: str) -> bool:
        """Whether the file has a tensor of this module."""
        return module in self._modules


class Rule(NamedTuple):
    """One correspondence of configs. Names of ours may be dotted: 'rope.base'.

    Attributes:
        read: Published -> fields of TransformerConfig.
        write: TransformerConfig -> fields of config.json.
    """

    read: Callable[[Published], dict[str, Any]]
    write: Callable[[TransformerConfig], dict[str, Any]]


class Fused(NamedTuple):
    """Parameters of ours that are published as one tensor, or whose axes are not PyTorch's.

    Attributes:
        axes: see `transformer.interop.layout`.
        modules: paths of ours, in the order of the axis `part`.
    """

    axes: str
    modules: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """A published architecture, as data.

    A module is a group of tensors that differ in their last name: our `kernel`, `scale` and
    `table` are all published as `weight`, and `bias` is `bias`. An entry of `tensors` may also be
    of a single tensor and parameter. `*` stands for the number of a layer.

    Attributes:
        model_type: as in config.json.
        classes: head of ours -> the class of `transformers` that has it.
        prefix: what names lack in a file of the model without a head.
        rules: of the config.
        tensors: published module -> ours.
        variants: (fields of ours, tensors that take precedence in a config that has these fields).
        aliases: published tensor -> parameter of ours that it copies, unless it has its own.
        ignored: regular expression of whole names that are no weights, or of no part of our model.
        older: other names of fields in config.json -> today's.
    """

    model_type: str
    classes: Mapping[str, str]
    prefix: str = ''
    rules: tuple[Rule, ...]
    tensors: Mapping[str, str | Fused]
    variants: tuple[tuple[Mapping[str, Any], Mapping[str, str | Fused]], ...] = ()
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ignored: str = r'.^'
    older: Mapping[str, str] = dataclasses.field(default_factory=dict)


def field(
    name: str,
    ours: str,
    default: Any = REQUIRED,
    names: Mapping[Any, Any] | None = None,
    written: str | None = None,
) -> Rule:
    """A field of config.json that is one of ours.

    Args:
        default: where the file has none.
        names: published value -> ours, where they differ. Any other is refused.
        written: attribute of the config that has the value also where ours is unset.
    """

    def read(published):
        value = published.get(name, default)
        return {ours: value if names is None else known(names, value, name)}

    def write(config):
        value = attribute(config, written or ours)
        if names is not None:
            value = next((theirs for theirs, mine in names.items() if mine == value), None)
            if value is None:
                raise UserError(
                    f'model.{ours} {attribute(config, ours)!r} has no name in config.json.'
                )
        return {name: value}

    return Rule(read, write)


def both(first: str, second: str, ours: str, default: Any = REQUIRED) -> Rule:
    """Two fields of config.json, of encoder and decoder, of which we have one."""

    def read(published):
        value, other = published.get(first, default), published.get(second, default)
        if value != other:
            raise UserError(
                f'config.json has {first} {value} but {second} {other}: we have one model.{ours}.'
            )
        return {ours: value}

    return Rule(read, lambda config: dict.fromkeys((first, second), attribute(config, ours)))


def needed(**theirs: Any) -> Rule:
    """Fields of config.json that `transformers` needs and we do not."""
    return Rule(lambda published: {}, lambda config: theirs)


def derived(ours: str, read: Callable[[Published], Any]) -> Rule:
    """A field of ours that follows from others of config.json."""
    return Rule(lambda published: {ours: read(published)}, lambda config: {})


def always(**ours: Any) -> Rule:
    """Fields of ours that the whole family has."""
    return Rule(lambda published: ours, lambda config: {})


def only(**theirs: Any) -> Rule:
    """Fields of config.json of which we have one value, which is also the default."""

    def read(published):
        for name, value in theirs.items():
            if published.get(name) not in (value, None):
                raise UserError(
                    f'config.json has {name} {published.get(name)!r}, of which we have {value!r} '
                    'only.'
                )
        return {}

    said = {name: value for name, value in theirs.items() if value is not None}
    return Rule(read, lambda config: said)


def known(names: Mapping[str, Any], value: str, what: str) -> Any:
    """`names[value]`, or a UserError that lists the names."""
    if value not in names:
        raise UserError(
            f'config.json has {what} {value!r}, which we do not have; known: '
            f'{", ".join(sorted(map(str, names)))}.{nearest(str(value), list(map(str, names)))}'
        )
    return names[value]


def attribute(config: Any, name: str) -> Any:
    """The value of a dotted field name."""
    for part in name.split('.'):
        config = getattr(config, part)
    return config


def layers(theirs: str, ours: str, modules: Mapping[str, str | Fused]) -> dict[str, str | Fused]:
    """`modules` with a prefix each to the published names and to ours."""
    return {
        theirs + name: Fused(target.axes, tuple(ours + module for module in target.modules))
        if isinstance(target, Fused)
        else ours + target
        for name, target in modules.items()
    }
