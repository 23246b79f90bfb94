"""Dates as they are written in many languages, and in ISO 8601.

The locales and their ways of writing a date are those of the Unicode CLDR, by Babel, with the
digits 0 to 9 everywhere. The years are exactly one hundred, so that two digits tell one. A text
that is also another day somewhere, as 3/4/87 is, is left out.
"""

import datetime
import functools
import re
from collections.abc import Callable, Iterator

import numpy as np

from transformer.data.order import epoch_state, permute

FORMAT = 1  # of what `pairs` makes

# Pieces of the four lengths in each of the locales below: about 100,000 pairs in all, which show a
# month of a locale some thirty times in each length, and a day of the century about three times.
PAIRS_EACH = 350

FIRST_DAY = datetime.date(1950, 1, 1)
NUM_DAYS = 36_525  # to 2049-12-31
LENGTHS = 'short', 'medium', 'long', 'full'
_LOCALES = """
    af am ar az be bg bn bs ca cs cy da de el en_GB en_US es et eu fa fi fil fr ga gl gu he hi hr
    hu hy id is it ja ka kk km kn ko ky lo lt lv mk ml mn mr ms my nb ne nl pa pl ps pt ro ru si sk
    sl sq sr sv sw ta te th tr uk ur uz vi zh zh_Hant zu
"""
LOCALES = tuple(_LOCALES.split())

UNSEEN = re.compile('[\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]')  # joiners, directions
NUMBER = re.compile(r'[0-9]+')

# The fields (year, month, day) in the order of a text's numbers, and the month where a name tells.
Reading = tuple[str, int | None]


def version() -> list:
    """What decides the pairs."""
    import babel

    return [FORMAT, babel.__version__]


@functools.cache
def pairs() -> tuple[tuple[str, str], ...]:
    """(a date as some locale writes it, the same as YYYY-MM-DD); every text once."""
    found = {}
    readings = _readings()
    for write, days in _assignments():
        for day in days:
            text = write(day)
            if text not in found and _meanings(text, readings) == {day}:
                found[text] = day.isoformat()
    return tuple(found.items())


def _assignments() -> Iterator[tuple[Callable, list[datetime.date]]]:
    """Every locale's function for every length, and the days that it writes.

    They are drawn without repetition until each day of the century is drawn, then anew.
    """
    writers = list(_writers())
    turns = np.arange(len(writers) * PAIRS_EACH)
    days = permute(turns % NUM_DAYS, NUM_DAYS, epoch_state(0, 0, 0)[1])
    for (write, _), numbers in zip(writers, days.reshape(-1, PAIRS_EACH).tolist(), strict=True):
        yield write, [FIRST_DAY + datetime.timedelta(days=number) for number in numbers]


def _writers() -> Iterator[tuple[Callable, str]]:
    """(function from a date to its text, its name) of every locale and length."""
    from babel import Locale
    from babel.dates import get_date_format

    for name in LOCALES:
        locale = Locale.parse(name)
        for length in LENGTHS:
            pattern = get_date_format(length, locale)
            yield functools.partial(pattern.apply, locale=locale), f'{name} {length}'


def _readings() -> dict[str, set[Reading]]:
    """What the numbers of a text can be, by the text without them."""
    readings: dict[str, set[Reading]] = {}
    for write, _ in _writers():
        sample = write(datetime.date(2047, 11, 25))
        fields = ''.join(
            {2047: 'y', 47: 'y', 11: 'm', 25: 'd'}[value] for value in _split(sample)[1]
        )
        for month in range(1, 13):
            for day in range(1, 8):  # every weekday
                words, _ = _split(write(datetime.date(2047, month, day)))
                readings.setdefault(words, set()).add((fields, None if 'm' in fields else month))
    return readings


def _meanings(text: str, readings: dict[str, set[Reading]]) -> set[datetime.date]:
    """The days of the century that some locale may read in a text.

    Zeros before a number and invisible marks make no difference to a reader, and a year may have
    two digits or four in any locale.
    """
    words, numbers = _split(text)
    days = set()
    for fields, named_month in readings[words]:
        value = {'m': named_month} | dict(zip(fields, numbers, strict=True))
        year = value['y']
        if year < 100:
            year += 2000 if year < 50 else 1900
        try:
            day = datetime.date(year, value['m'], value['d'])
        except ValueError:
            continue
        if 0 <= (day - FIRST_DAY).days < NUM_DAYS:
            days.add(day)
    return days


def _split(text: str) -> tuple[str, list[int]]:
    """A text with '#' for each number and without what is not seen, and the numbers."""
    seen = UNSEEN.sub('', text)
    numbers = [int(digits) for digits in NUMBER.findall(seen)]
    return ' '.join(NUMBER.sub('#', seen).split()), numbers
