"""What a user did wrong, said in one line."""

from collections.abc import Collection
from difflib import get_close_matches
from typing import Any


class UserError(ValueError):
    """A mistake in a config, a flag, a file or a prompt.

    The message is one line that names the thing, the reason and the way out; scripts print it
    and exit with code 2 instead of showing a traceback.
    """


def nearest(name: str, names: Collection[str]) -> str:
    """' Did you mean X?', or nothing when no name is close."""
    close = get_close_matches(str(name), names, n=1)
    return f' Did you mean {close[0]!r}?' if close else ''


def check_choice(name: str, table: Collection[str], what: str) -> None:
    """Raises UserError, listing the valid names, unless `name` is in `table`."""
    if name not in table:
        raise UserError(
            f'{what} must be one of {", ".join(sorted(table))}; not {name!r}.{nearest(name, table)}'
        )


def choose(table: dict[str, Any], name: str, what: str) -> Any:
    """`table[name]`, or a UserError that lists the valid names."""
    check_choice(name, table, what)
    return table[name]
