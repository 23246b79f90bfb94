"""Docstrings of the standard library and the packages they are from."""

import collections
import inspect
import logging

from transformer.data import docstrings


def test_pairs():
    pairs = docstrings.pairs()
    texts = [text for text, _ in pairs]
    counts = collections.Counter(package for _, package in pairs)
    assert len(set(texts)) == len(texts) > 3000
    assert 20 <= len(counts) <= 60
    assert min(counts.values()) >= docstrings.LEAST_TEXTS
    assert min(map(len, texts)) >= docstrings.LEAST_CHARACTERS
    assert {'asyncio', 'email', 'logging', 'unittest'} <= counts.keys()


def test_what_is_found_in_a_tree(tmp_path):
    (tmp_path / 'pack' / 'sub').mkdir(parents=True)
    (tmp_path / 'pack' / 'sub' / 'deep.py').write_text(
        'class A:\n    """Of a class.\n\n    Indented.\n    """\n'
        '    async def f(self):\n        "Of a method."\n'
        'def g():\n    x = "no docstring"\n    if x:\n        def h():\n            "Inside."\n'
    )
    (tmp_path / 'alone.py').write_text('"""Of a module: \\d."""\n')
    (tmp_path / 'test').mkdir()
    (tmp_path / 'test' / 'a.py').write_text('"""Of a test."""\n')
    assert next(docstrings._docstrings(tmp_path)) == ('Of a module: \\d.', 'alone')
    assert sorted(docstrings._docstrings(tmp_path))[1:] == [
        ('Of a class.\n\nIndented.', 'pack'),
        ('Of a method.', 'pack'),
        ('Of a module: \\d.', 'alone'),
    ]


def test_which_are_left_out(monkeypatch):
    found = [('the same text of two packages', 'a'), ('the same text of two packages', 'b')]
    found += [('too short', 'a')]
    found += [(f'text number {i} of package a, and twice', 'a') for i in range(50)] * 2
    found += [(f'text number {i} of a small package', 'c') for i in range(49)]
    monkeypatch.setattr(docstrings, '_docstrings', lambda root: iter(found))
    pairs = docstrings.pairs.__wrapped__()
    assert pairs == tuple((f'text number {i} of package a, and twice', 'a') for i in range(50))


def test_docstrings_are_unchanged():
    by_text = dict(docstrings.pairs())
    assert by_text[inspect.getdoc(logging.Logger.setLevel)] == 'logging'
