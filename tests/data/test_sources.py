"""Sources: which documents there are, in which split, and what is wrong with a file."""

import itertools
import sys
import types

import pytest

from transformer.data import text as text_module
from transformer.data.sources import open_source
from transformer.data.text import cut_text
from transformer.data.tokenizers import train_tokenizer
from transformer.errors import UserError


def documents(source, split):
    """The documents of a split, each a list of (text, counted)."""
    found = []
    for piece in source.pieces(split):
        if piece.begins:
            found.append([])
        found[-1].append((piece.text, piece.counted))
    return found


def joined(source, split):
    return [''.join(text for text, _ in document) for document in documents(source, split)]


@pytest.fixture(scope='module')
def stdlib():
    return open_source('stdlib', 'text', 0.1)


def test_stdlib_holds_sources_without_tests(stdlib):
    parts = [path.split('/') for path in stdlib.paths]
    assert 'argparse.py' in stdlib.paths
    assert 'json/decoder.py' in stdlib.paths
    assert 300 < len(parts) < 3000
    assert all(path.endswith('.py') for path in stdlib.paths)
    unwanted = {'test', 'tests', 'idle_test', 'site-packages', 'dist-packages', '__pycache__'}
    assert not any(unwanted & set(path) for path in parts)


def test_stdlib_splits_into_about_a_tenth(stdlib):
    sizes = {split: sum(map(len, joined(stdlib, split))) for split in ('train', 'validation')}
    assert 0.05 < sizes['validation'] / sum(sizes.values()) < 0.2
    assert sum(sizes.values()) == sum(map(len, joined(stdlib, 'all')))


def test_split_depends_on_the_path_below_the_root_alone(write, tmp_path):
    names = [f'{folder}/{i}.txt' for folder in 'ab' for i in range(30)]
    for copy in 'first', 'second':
        for name in names:
            write(f'{copy}/{name}', name)
    pattern = str(tmp_path / 'texts')
    first, second = (
        open_source(f'{pattern}/{c}/**/*.txt', 'text', 0.3) for c in ('first', 'second')
    )
    validation = joined(first, 'validation')
    assert validation == joined(second, 'validation')
    assert sorted(validation + joined(first, 'train')) == sorted(names)
    assert 5 < len(validation) < 35
    write('first/c/new.txt', 'new')
    more = open_source(f'{pattern}/first/**/*.txt', 'text', 0.3)
    assert [name for name in joined(more, 'validation') if name != 'new'] == validation


def test_documents_come_sorted_and_empty_ones_are_skipped(write, tmp_path):
    for name in 'b', 'a', 'c':
        write(f'{name}.txt', name)
    write('empty.txt', '')
    source = open_source(str(tmp_path / 'texts' / '*.txt'), 'text', 0.1)
    assert joined(source, 'all') == ['a', 'b', 'c']


def test_lone_text_is_cut_at_a_character(write):
    text = 'aé\U0001f600' * 100
    path = write('lone.txt', text)
    for fraction in 0.1, 0.123, 0.4567, 0.9:
        source = open_source(str(path), 'text', fraction)
        [train], [validation] = joined(source, 'train'), joined(source, 'validation')
        assert train + validation == text
        assert len(validation.encode()) == pytest.approx(fraction * len(text.encode()), abs=4)
        assert joined(source, 'all') == [text]


def test_records(write):
    path = write(
        'records.jsonl',
        [
            {'text': 'one'},
            {'prompt': 'two ', 'completion': 'three', 'text': 'unused'},
            {'text': ''},
            {'prompt': '', 'completion': 'four'},
        ],
    )
    source = open_source(str(path), 'text', 0.5)
    expected = [[('one', True)], [('two ', False), ('three', True)], [('four', True)]]
    assert documents(source, 'all') == expected
    split = documents(source, 'train') + documents(source, 'validation')
    assert sorted(split) == sorted(expected)


def test_records_split_by_content(write):
    records = [{'text': f'record {i}'} for i in range(50)]
    forward = open_source(str(write('a.jsonl', records)), 'text', 0.3)
    backward = open_source(str(write('b.jsonl', records[::-1])), 'text', 0.3)
    validation = joined(forward, 'validation')
    assert validation == joined(backward, 'validation')[::-1]
    assert 5 < len(validation) < 30


def test_text_field(write):
    source = open_source(str(write('a.jsonl', [{'body': 'b'}])), 'body', 0.3)
    assert joined(source, 'all') == ['b']


@pytest.mark.parametrize('unit', ['x = 1\n    y\n', 'no line ends at all ', 'é\U0001f600\n'])
def test_long_texts_are_cut_without_a_trace(write, monkeypatch, unit):
    monkeypatch.setattr(text_module, 'BLOCK', 1001)  # bytes: cuts characters in two
    text = unit * (100_000 // len(unit))
    source = open_source(str(write('long.txt', text)), 'text', 0.1)
    pieces = list(source.pieces('all'))
    assert ''.join(piece.text for piece in pieces) == text
    assert [piece.begins for piece in pieces] == [True] + [False] * (len(pieces) - 1)
    assert len(pieces) > 2
    assert all(len(piece.text) <= 2 * text_module.PIECE for piece in pieces)


def test_cuts_leave_the_tokens_as_they_are(stdlib):
    text = ''.join(joined(stdlib, 'validation'))[:200_000]
    tokenizer = train_tokenizer('bpe', [text], 600)
    ids = tokenizer.encode_batch(list(cut_text([text])))
    assert len(ids) > 5
    assert list(itertools.chain(*ids)) == tokenizer.encode(text)


def test_fingerprint_is_of_the_content(write, tmp_path):
    name = str(tmp_path / 'texts' / '*.txt')
    write('a.txt', 'one')
    path = write('b.txt', 'two')
    before = open_source(name, 'text', 0.1).fingerprint
    path.touch()
    assert open_source(name, 'text', 0.1).fingerprint == before
    path.write_text('owt')
    assert open_source(name, 'text', 0.1).fingerprint != before


@pytest.mark.parametrize(
    ('line', 'message'),
    [
        ('{"text": "a"', r'a.jsonl:3 is not JSON: '),
        ('[' * 100_000, r'a.jsonl:3 is not JSON: '),
        ('{}', r'set data.text_field to one of its fields, but it has none'),
        ('[1]', r'a.jsonl:3 is a list, not an object'),
        ('{"body": "b", "id": 1}', r"a.jsonl:3 has no field 'text', .* one of body, id"),
        ('{"text": 5}', r'a.jsonl:3: text is a int, not a string'),
        ('{"prompt": "a", "completion": null}', r'a.jsonl:3: completion is a NoneType'),
        ('{"text": "\\ud800"}', r'a.jsonl:3: text has half a surrogate pair'),
        (b'{"text": "\xff"}', r'a.jsonl:3 is not JSON: .*0xff'),
    ],
)
def test_bad_records_are_named(write, line, message):
    line = line if isinstance(line, bytes) else line.encode()
    path = write('a.jsonl', b'{"text": "good"}\n\n' + line + b'\n')
    with pytest.raises(UserError, match=message):
        list(open_source(str(path), 'text', 0.1).pieces('train'))


@pytest.mark.parametrize('size', [0, 5000])
def test_bytes_that_are_no_text_are_named(write, monkeypatch, size):
    monkeypatch.setattr(text_module, 'BLOCK', 1001)
    path = write('bad.txt', 'é'.encode() * size + b'\xc3(')
    with pytest.raises(UserError, match=rf'bad.txt is not UTF-8 at byte {2 * size} '):
        list(open_source(str(path), 'text', 0.1).pieces('all'))
    path = write('cut.txt', b'abc\xe2\x82')
    with pytest.raises(UserError, match=r'cut.txt is not UTF-8 at byte 3 .*unexpected end'):
        list(open_source(str(path), 'text', 0.1).pieces('all'))


def test_missing_files(write, tmp_path):
    with pytest.raises(UserError, match=r"stdlb does not exist: .*'stdlib', a file, a glob"):
        open_source('stdlb', 'text', 0.1)
    with pytest.raises(UserError, match=r'No file matches .*\*\.md'):
        open_source(str(tmp_path / '*.md'), 'text', 0.1)
    with pytest.raises(UserError, match=r"is a folder: give a glob, such as '.*/\*\*/\*\.txt'"):
        open_source(str(tmp_path), 'text', 0.1)
    with pytest.raises(UserError, match=r'empty.txt is empty'):
        open_source(str(write('empty.txt', '')), 'text', 0.1)


def test_hugging_face_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, 'datasets', None)
    with pytest.raises(UserError, match=r'hf:wikitext needs .*pip install .datasets'):
        open_source('hf:wikitext', 'text', 0.1)


def test_hugging_face_records(monkeypatch):
    class Dataset(list):
        dataset_size = 10
        _fingerprint = 'abc'

    def load_dataset(name, config, split):
        if name == 'gone':
            raise FileNotFoundError("Dataset 'gone' does not exist\nand more")
        return Dataset([{'text': f'{name} {config} {split}'}, {'prompt': 'p', 'completion': 'c'}])

    fake = types.SimpleNamespace(load_dataset=load_dataset)
    monkeypatch.setitem(sys.modules, 'datasets', fake)
    source = open_source('hf:owner/name', 'text', 0.5)
    expected = [[('owner/name None train', True)], [('p', False), ('c', True)]]
    assert documents(source, 'all') == expected
    split = documents(source, 'train') + documents(source, 'validation')
    assert sorted(split) == sorted(expected)
    assert (source.num_bytes, source.fingerprint) == (10, 'abc')
    other = open_source('hf:name:config:test', 'text', 0.5)
    assert joined(other, 'all')[0] == 'name config test'
    with pytest.raises(
        UserError, match=r"hf:gone cannot be loaded: Dataset 'gone' does not exist$"
    ):
        list(open_source('hf:gone', 'text', 0.5).pieces('all'))
