"""Tokenised corpora: the layout of the stream, and a cache that is read only when it is whole."""

import shutil
import threading

import numpy as np
import pytest

from transformer.data import corpus as corpus_module
from transformer.data.cache import MANIFEST, build_once, cache_folder
from transformer.data.corpus import load_corpus
from transformer.data.sources import in_split, open_source
from transformer.data.tokenizers import train_tokenizer
from transformer.errors import UserError

BYTES = train_tokenizer('bytes', [])
EOS = BYTES.eos_id


@pytest.fixture
def load(tmp_path):
    """load(*names, split='all', tokenizer=BYTES) of corpora in tmp_path/texts."""

    def load(*names, split='all', tokenizer=BYTES):
        paths = [str(tmp_path / 'texts' / name) for name in names]
        sources = [open_source(path, 'text', 0.3) for path in paths]
        return load_corpus(tmp_path / 'cache', sources, split, tokenizer)

    return load


def test_every_document_begins_with_the_separator_and_the_last_one_ends_the_stream(write, load):
    write('a.txt', 'ab')
    write('b.txt', 'é')
    write('c.txt', '')
    corpus = load('*.txt')
    assert corpus.tokens.tolist() == [EOS, *b'ab', EOS, *'é'.encode(), EOS]
    assert corpus.starts.tolist() == [0, 3]
    assert corpus.sizes.tolist() == [3, 3]
    assert corpus.counted is None
    assert (corpus.num_documents, corpus.num_inputs, corpus.num_tokens) == (2, 6, 6)
    assert corpus.num_bytes == 4
    assert corpus.tokens.dtype == np.uint16


def test_prompts_do_not_count(write, load):
    write('a.jsonl', [{'prompt': 'ab', 'completion': 'é'}, {'text': 'x'}])
    corpus = load('a.jsonl')
    assert corpus.tokens.tolist() == [EOS, *b'ab', *'é'.encode(), EOS, *b'x', EOS]
    assert corpus.counted.tolist() == [1, 0, 0, 1, 1, 1, 1, 1]
    assert corpus.num_tokens == corpus.counted[1:].sum() == 5
    assert corpus.num_bytes == 3  # of the completion and the text


def test_corpora_follow_one_another(write, load):
    write('a.txt', 'a')
    write('b.txt', 'b')
    assert load('b.txt', 'a.txt').tokens.tolist() == [EOS, *b'b', EOS, *b'a', EOS]


def test_chunks_leave_no_trace(write, load, monkeypatch, tmp_path):
    records = [{'prompt': f'{i} ' * i, 'completion': f'{i}' * 3} for i in range(50)]
    write('a.jsonl', records)
    whole = load('a.jsonl')
    shutil.rmtree(tmp_path / 'cache')
    monkeypatch.setattr(corpus_module, 'CHUNK', 100)
    chunked = load('a.jsonl')
    for name in 'tokens', 'starts', 'counted', 'num_tokens', 'num_bytes':
        np.testing.assert_array_equal(getattr(chunked, name), getattr(whole, name))


def test_large_vocabularies_take_four_bytes(write, load):
    letters = ''.join(map(chr, range(0x4E00, 0x9000))) + ''.join(map(chr, range(0x20000, 0x2C000)))
    tokenizer = train_tokenizer('chars', [letters])
    assert tokenizer.vocab_size > 1 << 16
    write('a.txt', letters[-5:])
    corpus = load('a.txt', tokenizer=tokenizer)
    assert corpus.tokens.dtype == np.uint32
    assert tokenizer.decode(corpus.tokens) == letters[-5:]


def test_second_load_reads_the_cache(write, load, monkeypatch):
    write('a.txt', 'text')
    first = load('a.txt')
    monkeypatch.setattr(corpus_module, '_encode', None)
    again = load('a.txt')
    assert again.folder == first.folder
    np.testing.assert_array_equal(again.tokens, first.tokens)
    assert not again.tokens.flags.writeable
    assert not again.tokens.flags.owndata  # mapped, not read


def test_key_is_the_content_the_split_and_the_tokenizer(write, load):
    path = write('a.txt', 'text' * 10)
    folders = [load('a.txt').folder, load('a.txt', split='train').folder]
    folders.append(load('a.txt', split='validation').folder)
    folders.append(load('a.txt', tokenizer=train_tokenizer('bpe', [], 300)).folder)
    path.write_text('test' * 10)  # of the same size
    changed = load('a.txt')
    assert changed.tokens[1:5].tolist() == list(b'test')
    assert len({*folders, changed.folder}) == 5
    framed = train_tokenizer('bytes', []).for_pairs(None)
    framed.prefix = [7]
    assert load('a.txt', tokenizer=framed).tokens[:3].tolist() == [EOS, 7, *b't']


@pytest.mark.parametrize('damage', ['truncate', 'remove', 'manifest', 'garbage'])
def test_damaged_cache_is_made_anew(write, load, damage):
    write('a.txt', 'text')
    expected = load('a.txt')
    tokens = expected.folder / 'tokens'
    if damage == 'truncate':
        tokens.write_bytes(tokens.read_bytes()[:-1])
    elif damage == 'remove':
        tokens.unlink()
    elif damage == 'manifest':
        (expected.folder / MANIFEST).unlink()
    else:
        (expected.folder / MANIFEST).write_text('{"tok')
    assert load('a.txt').tokens.tolist() == [EOS, *b'text', EOS]


def test_interrupted_write_leaves_nothing(write, load, monkeypatch, tmp_path):
    write('a.txt', 'text')

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(corpus_module, '_encode', interrupted)
        with pytest.raises(KeyboardInterrupt):
            load('a.txt')
    assert list((tmp_path / 'cache' / 'corpora').iterdir()) == []
    assert load('a.txt').tokens.tolist() == [EOS, *b'text', EOS]


def test_concurrent_builds_end_with_one_whole_folder(tmp_path):
    barrier = threading.Barrier(4, timeout=20)

    def build(folder):
        barrier.wait()  # all four are inside before any is renamed
        (folder / 'file').write_text('content')

    target = tmp_path / 'new' / 'target'
    threads = [threading.Thread(target=build_once, args=(target, build)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.name for path in target.parent.iterdir()] == ['target']
    assert (target / 'file').read_text() == 'content'
    build_once(target, None)  # whole: nothing is built


def test_unwritable_cache(tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(UserError, match=r'cache .* cannot be written .*: set data.cache_dir'):
        build_once(tmp_path / 'file' / 'target', lambda folder: None)


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv('HOME', str(tmp_path))
    monkeypatch.delenv('XDG_CACHE_HOME', raising=False)
    assert cache_folder(None) == tmp_path / '.cache' / 'transformer'
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'xdg'))
    assert cache_folder(None) == tmp_path / 'xdg' / 'transformer'
    assert cache_folder('~/mine') == tmp_path / 'mine'


@pytest.mark.parametrize(
    ('empty', 'message'),
    [
        ('train', r'a.jsonl is left to train on: lower data.validation_fraction, set data.valid'),
        ('validation', r'a.jsonl is left to validate on: raise data.validation_fraction, set data'),
    ],
)
def test_empty_split(write, load, empty, message):
    text = next(text for text in 'abcdefghijklmnop' if not in_split(text, empty, 0.3))
    write('a.jsonl', [{'text': text}])
    with pytest.raises(UserError, match=message):
        load('a.jsonl', split=empty)


def test_records_without_text(write, load):
    write('a.jsonl', [{'text': ''}])
    with pytest.raises(UserError, match=r'a.jsonl has no text'):
        load('a.jsonl')
