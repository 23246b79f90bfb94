"""Dates: many languages, every length, and never two days for one text."""

import contextlib
import datetime
import itertools
import random
import re
import unicodedata

import pytest

from transformer.data import dates


@pytest.fixture(scope='module')
def texts():
    return dict(dates.pairs())


@pytest.fixture(scope='module')
def writers():
    return {name: write for write, name in dates._writers()}


def test_targets_are_days_of_one_century(texts):
    days = {datetime.date.fromisoformat(day) for day in texts.values()}
    assert {day.year for day in days} == set(range(1950, 2050))
    assert min(days).isoformat() == '1950-01-01'
    assert max(days).isoformat() == '2049-12-31'
    assert all(re.fullmatch(r'\d{4}-\d{2}-\d{2}', day) for day in texts.values())
    assert 80_000 < len(texts) < 120_000
    assert len(texts) == len(dates.pairs())  # no text twice
    assert len(days) > 0.9 * dates.NUM_DAYS


def test_every_locale_in_every_length(texts, writers):
    assert len({name.split()[0] for name in writers}) == len(dates.LOCALES) >= 50
    assert len(writers) == 4 * len(dates.LOCALES)
    for name, (write, days) in zip(writers, dates._assignments(), strict=True):
        found = sum(texts.get(write(day)) == day.isoformat() for day in days[::7])
        assert found > len(days) / 7 / 5, name


def test_scripts(texts):
    letters = {char for text in texts for char in text if char.isalpha()}
    scripts = {unicodedata.name(letter).split()[0] for letter in letters}
    expected = 'LATIN CYRILLIC GREEK ARABIC HEBREW DEVANAGARI THAI HANGUL CJK GEORGIAN ARMENIAN'
    assert set(expected.split()) <= scripts
    assert len(scripts) > 20


def test_italian(writers):
    day = datetime.date(1987, 3, 3)
    assert writers['it full'](day) == 'martedì 3 marzo 1987'
    assert writers['it long'](day) == '3 marzo 1987'
    assert writers['it short'](day) == '03/03/87'


def test_italian_is_among_the_pairs(texts):
    assert any(re.fullmatch(r'martedì \d+ marzo \d{4}', text) for text in texts)
    for text, day in texts.items():
        if match := re.fullmatch(r'martedì (\d+) marzo (\d{4})', text):
            assert day == f'{match[2]}-03-{int(match[1]):02}'


def test_no_locale_writes_another_day_so(texts, writers):
    """All orders of a text's numbers, and all months by name, written by every locale."""
    numeric = [text for text in texts if re.fullmatch(r'[\d\W]+', text)]
    for text in (text for group in (sorted(texts), numeric) for text in sample(group, 8)):
        day = datetime.date.fromisoformat(texts[text])
        others = set(confusable(text, day))
        written = {seen(write(other)) for other in others for write in writers.values()}
        assert seen(text) not in written, text


def sample(texts, count):
    return random.Random(0).sample(texts, count)


def seen(text):
    """The text as a reader takes it: numbers without zeros before them, years of two digits."""
    text = ''.join(char for char in text if unicodedata.category(char) != 'Cf')
    text = re.sub(r'(19|20)(\d\d)(?!\d)', r'\2', text)
    return re.sub(r'\b0+(?=\d)', '', ' '.join(text.split()))


def confusable(text, day):
    """Other days of the century that have the numbers of `text` in them."""
    numbers = [int(digits) for digits in re.findall('[0-9]+', text)]
    for named in range(1, 13) if len(numbers) == 2 else [None]:
        fields = [*numbers, *([named] if named else [])]
        for year, month, number in itertools.permutations(fields):
            for full in {year, year + 1900, year + 2000}:
                with contextlib.suppress(ValueError):
                    other = datetime.date(full, month, number)
                    if 1950 <= full < 2050 and other != day:
                        yield other


def test_numbers_alone_are_told_apart(texts):
    for text in '3/4/87', '03/04/87', '3/4/1987', '87/3/4':
        assert text not in texts
    matches = [re.fullmatch(r'(\d\d?)/(\d\d?)/(\d\d)', text) for text in texts]
    fields = [(int(match[1]), int(match[2])) for match in matches if match]
    assert len(fields) > 1000
    # A year 00 is no day and no month.
    assert not any(a != b and 1 <= a <= 12 and 1 <= b <= 12 for a, b in fields)


def test_meanings():
    readings = {'#/#/#': {('dmy', None), ('mdy', None)}, '#. x #': {('dy', 10), ('dy', 11)}}

    def days(text):
        return {day.isoformat() for day in dates._meanings(text, readings)}

    assert days('3/4/87') == {'1987-04-03', '1987-03-04'}
    assert days('03/\u200f14/1987') == {'1987-03-14'}
    assert days('3/3/49') == {'2049-03-03'}
    assert days('31/2/50') == set()
    assert days('3. x\u202f1999') == {'1999-10-03', '1999-11-03'}
    assert days('31. x 1999') == {'1999-10-31'}  # November has 30


def test_version_is_of_the_locale_data(monkeypatch):
    before = dates.version()
    monkeypatch.setattr('babel.__version__', '0')
    assert dates.version() != before
