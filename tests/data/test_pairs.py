"""Sources of pairs: what is read, what is no pair, and mistakes named with their line."""

import sys
import types

import pytest

from transformer.data import pairs as pairs_module
from transformer.data.pairs import Pair, Side, open_aligned, open_pairs, read_pairs
from transformer.errors import UserError

FIELDS = ('source', 'target')


@pytest.fixture
def aligned(write):
    """aligned(sources, targets) opens two files of these contents."""

    def aligned(sources, targets):
        return open_aligned([str(write('a.en', sources))], [str(write('a.de', targets))])[0]

    return aligned


def test_lines_are_paired_in_order(aligned):
    source = aligned('a b\r\nc\u2028d\x0be\x85\n\nlast', 'A\nB\t\nC\n D')
    assert list(source.read()) == [
        ('a b', 'A'),
        ('c\u2028d\x0be\x85', 'B\t'),
        ('', 'C'),
        ('last', ' D'),
    ]
    assert source.name == 'a.en -> a.de'
    assert source.num_bytes == sum(path.stat().st_size for path in (source.source, source.target))


@pytest.mark.parametrize(('targets', 'count'), [('A\nB\n', 2), ('A\nB\nC\nD', 4), ('', 0)])
def test_unequal_numbers_of_lines(aligned, targets, count):
    source = aligned('a\nb\nc\n', targets)
    with pytest.raises(UserError, match=rf'a\.en has 3 lines and .*a\.de {count}: line i'):
        source.fingerprint  # noqa: B018


def test_unequal_numbers_of_files(write):
    for name in 'a.en', 'b.en', 'a.de':
        write(name, 'text\n')
    folder = write('c.txt', '').parent
    with pytest.raises(UserError, match=r'\*\.en names 2 files and .*\*\.de 1: every file'):
        open_aligned([f'{folder}/*.en'], [f'{folder}/*.de'])


def test_globs_are_paired_by_name(write):
    names = [f'{i:02}' for i in range(20)]
    for name in names:
        write(f'{name}.en', name)
        write(f'{name}.de', name)
    folder = write('c.txt', '').parent
    sources = open_aligned([f'{folder}/*.en'], [f'{folder}/*.de'])
    assert [pair for source in sources for pair in source.read()] == [(n, n) for n in names]


def test_broken_utf8_is_named(aligned):
    source = aligned(b'a\nb\xff\n', 'A\nB\n')
    with pytest.raises(UserError, match=r'a\.en:2 is not UTF-8'):
        list(source.read())


def test_columns(write):
    path = write('a.tsv', 'a b\tA\n"c"\tC\r\n\tD\n')
    assert list(open_pairs(str(path), FIELDS).read()) == [('a b', 'A'), ('"c"', 'C'), ('', 'D')]


@pytest.mark.parametrize(('line', 'count'), [('a', 1), ('a\tb\tc', 3), ('', 1)])
def test_other_numbers_of_columns(write, line, count):
    path = write('a.tsv', f'a\tb\n{line}\nc\td\n')
    with pytest.raises(UserError, match=rf'a\.tsv:2 has {count} columns: .* two'):
        list(open_pairs(str(path), FIELDS).read())


def test_records(write):
    records = [{'source': 'a', 'target': 'A', 'x': 1}, {'target': 'B', 'source': 'b'}]
    path = write('a.jsonl', records)
    assert list(open_pairs(str(path), FIELDS).read()) == [('a', 'A'), ('b', 'B')]
    nested = write('b.jsonl', [{'translation': {'en': 'a', 'de': 'A'}}])
    fields = ('translation.en', 'translation.de')
    assert list(open_pairs(str(nested), fields).read()) == [('a', 'A')]


@pytest.mark.parametrize(
    ('line', 'message'),
    [
        ('{', r'a\.jsonl:2 is not JSON'),
        (
            '{"source": "a"}',
            r"a\.jsonl:2 has no field 'target': set data.target_field to .* source",
        ),
        ('[]', r"a\.jsonl:2 has no field 'source': set data.source_field .* but it has none"),
        ('{"source": 1, "target": "a"}', r'a\.jsonl:2: source is a int, not a string'),
        ('{"source": "a", "target": null}', r'a\.jsonl:2: target is a NoneType, not a string'),
        (r'{"source": "\ud800", "target": "a"}', r'a\.jsonl:2: source has half a surrogate pair'),
    ],
)
def test_bad_records_are_named(write, line, message):
    path = write('a.jsonl', f'{{"source": "a", "target": "b"}}\n{line}\n')
    with pytest.raises(UserError, match=message):
        list(open_pairs(str(path), FIELDS).read())


def test_hugging_face_pairs(monkeypatch):
    class Dataset(list):
        dataset_size = 7
        _fingerprint = 'abc'

    records = Dataset([{'translation': {'en': 'a', 'de': 'A'}}])
    fake = types.SimpleNamespace(load_dataset=lambda *args, **kwargs: records)
    monkeypatch.setitem(sys.modules, 'datasets', fake)
    source = open_pairs('hf:wmt', ('translation.en', 'translation.de'))
    assert list(source.read()) == [('a', 'A')]
    assert (source.name, source.num_bytes) == ('hf:wmt', 7)
    swapped = open_pairs('hf:wmt', ('translation.de', 'translation.en'))
    assert swapped.fingerprint != source.fingerprint
    with pytest.raises(
        UserError, match=r"hf:wmt record 0 has no field 'source': .* translation\.$"
    ):
        list(open_pairs('hf:wmt', FIELDS).read())


def test_what_holds_no_pairs(write):
    for name in 'stdlib', str(write('a.txt', 'text')):
        with pytest.raises(UserError, match=r"holds no pairs: give \.tsv .* 'dates', 'docstrings'"):
            open_pairs(name, FIELDS)


def test_fingerprint_is_the_content_and_the_fields(write):
    path = write('a.jsonl', [{'source': 'a', 'target': 'A'}])
    first = open_pairs(str(path), FIELDS).fingerprint
    assert open_pairs(str(path), FIELDS).fingerprint == first
    assert open_pairs(str(path), FIELDS[::-1]).fingerprint != first
    write('a.jsonl', [{'source': 'a', 'target': 'B'}])
    assert open_pairs(str(path), FIELDS).fingerprint != first


def test_sides_are_aligned_and_without_blank_pairs(aligned):
    source = aligned('a\n\nc\n \u3000\ne\n', 'A\nB\n\t\nD\nE\n')
    sides = [Side(source, name, 0.0) for name in FIELDS]
    texts = [[piece.text for piece in side.pieces('all')] for side in sides]
    assert texts == [['a', 'e'], ['A', 'E']]
    assert all(piece.begins and piece.counted for piece in sides[0].pieces('all'))


def test_splits_share_no_pair_and_lose_none(aligned):
    lines = [f'text {i}' for i in range(60)]
    source = aligned('\n'.join(lines + lines), '\n'.join(line.upper() for line in lines + lines))
    splits = [list(read_pairs([source], split, 0.3)) for split in ('train', 'validation')]
    assert min(map(len, splits)) > 15
    assert not set(splits[0]) & set(splits[1])  # equal pairs stay together
    assert sorted(splits[0] + splits[1]) == sorted(read_pairs([source], 'all', 0.3))


def test_generated_pairs_are_made_when_they_are_read(monkeypatch):
    module = types.SimpleNamespace(version=lambda: 1, pairs=lambda: (('a', 'A'), ('bc', 'B')))
    monkeypatch.setitem(pairs_module.GENERATED, 'made', module)
    source = open_pairs('made', FIELDS)
    assert (list(source.read()), source.num_bytes) == ([Pair('a', 'A'), Pair('bc', 'B')], 5)
    module.pairs = None
    first = open_pairs('made', FIELDS).fingerprint
    module.version = lambda: 2
    assert open_pairs('made', FIELDS).fingerprint != first
