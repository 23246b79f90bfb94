"""The fields of a config by their dotted names, and the meaning of a text for one of them."""

import math
import re
from typing import Any

from ml_collections import ConfigDict, FieldReference

from transformer.errors import UserError, nearest
from transformer.ranges import flat


def field_names(config: ConfigDict) -> list[str]:
    """The dotted names of all fields, sorted by section: 'seed', 'model.rope.base', ..."""
    return list(flat(config.to_dict()))


def locate(config: ConfigDict, name: str) -> tuple[ConfigDict, str, type, bool]:
    """The section that holds a field, its last name, its type, and whether it may be None."""
    *sections, last = name.split('.')
    for section in sections:
        config = config[section]
    field = dict(config.items(preserve_field_references=True))[last]
    return config, last, config.get_type(last), isinstance(field, FieldReference)


def override(config: ConfigDict, name: str, text: str) -> None:
    """Sets the field with the dotted `name` to what `text` means for the field's type.

    An int may be written 1e3; a bool is true, false, 1 or 0; a tuple is `a,b` or `("a", "b")`,
    its elements of the type of the present ones (a float among ints is welcome) or, where there
    are none, numbers if they look like numbers; `()` and the empty text are the empty tuple.
    `none` unsets an optional field, which is one that was made as a placeholder: so it stays a
    word of its own for all other strings, as in model.remat=none.

    Raises:
        UserError: there is no such field, it is a section, or the text is not of its type.
    """
    names = field_names(config)
    inside = [field for field in names if field.startswith(f'{name}.')]
    if inside:
        raise UserError(f'{name} is a section of the config: set one field of it, as {inside[0]}.')
    if name not in names:
        namesakes = [field for field in names if field.split('.')[-1] == name.split('.')[-1]]
        hint = f' Did you mean {namesakes[0]!r}?' if namesakes else nearest(name, names)
        raise UserError(f'{name} is not a field of the config.{hint}')
    section, last, kind, optional = locate(config, name)
    if kind not in TYPES:
        raise UserError(f'{name} is a {kind.__name__}: set it in the config file.')
    try:
        if optional and text.lower() == 'none':
            section[last] = None
        else:
            section[last] = _tuple(text, section[last]) if kind is tuple else TYPES[kind][0](text)
    except ValueError:
        expected = TYPES[kind][1] + (' or none' if optional else '')
        raise UserError(f'{name} must be {expected}; not {text!r}.') from None


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        if not (number := float(text)).is_integer():
            raise
        return int(number)


def _float(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(text)
    return number


def _bool(text: str) -> bool:
    if text.lower() not in ('true', 'false', '1', '0'):
        raise ValueError(text)
    return text.lower() in ('true', '1')


def _tuple(text: str, present: tuple | None) -> tuple:
    text = text.strip()
    if text[:1] + text[-1:] in ('()', '[]'):
        text = text[1:-1]
    kinds = {type(value) for value in present or ()} or {int, str}
    kinds |= {float} if int in kinds else set()
    words = re.findall(r"""\s*("[^"]*"|'[^']*'|[^,]+)""", text)
    return tuple(_element(word.strip(), kinds) for word in words if word.strip())


def _element(word: str, kinds: set[type]) -> Any:
    """The word as the first of bool, int, float and str that is in `kinds` and can read it."""
    if word[0] in '"\'' and str in kinds:
        return word.strip(word[0])
    for kind in (kind for kind in TYPES if kind in kinds):
        try:
            return TYPES[kind][0](word)
        except ValueError:
            continue
    raise ValueError(word)


TYPES = {
    bool: (_bool, 'a bool (true or false)'),
    int: (_int, 'an int'),
    float: (_float, 'a float'),
    str: (str, 'a str'),
    tuple: (_tuple, 'a tuple such as a,b of elements like the present ones'),
}
