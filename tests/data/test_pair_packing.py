"""Packed pairs are the separate pairs: each once, whole, and beside its own source."""

import collections

import numpy as np
import pytest
from batches import concatenated

from transformer.data import load_data
from transformer.data.packing import best_fit_pairs
from transformer.errors import UserError

S, T = 16, 24


@pytest.fixture
def texts():
    """Pairs of 0 to 30 characters a side; some are blank and some too long."""
    rng = np.random.default_rng(0)
    pairs = []
    for i in range(300):
        sizes = rng.integers(0, [20, 30])
        pairs.append(
            tuple((f'{i}{mark}' * 30)[:size] for mark, size in zip('sT', sizes, strict=True))
        )
    return pairs


@pytest.fixture
def seq2seq(config, write, texts):
    """An experiment on `texts` in which a byte is a token."""
    config.task = 'seq2seq'
    config.data.path = (str(write('a.tsv', ''.join('\t'.join(pair) + '\n' for pair in texts))),)
    config.data.length = T
    config.data.source_length = S
    return config


def epoch(data, number=0):
    """All rows of an epoch; the batch has one row."""
    rows = data.train.parts[0].num_rows
    return concatenated(data.train.batch(n) for n in range(number * rows, (number + 1) * rows))


def separate(batch):
    """(source ids, inputs, targets) of every segment of every row."""
    found = []
    for row, segments in enumerate(batch['segment_ids']):
        sources = batch['encoder_segment_ids'][row]
        np.testing.assert_array_equal(
            np.unique(sources[sources > 0]), np.unique(segments[segments > 0])
        )
        for segment in range(1, segments.max() + 1):
            source, target = sources == segment, segments == segment
            for side, inside in ('encoder_positions', source), ('positions', target):
                np.testing.assert_array_equal(batch[side][row][inside], np.arange(inside.sum()))
            assert batch['weights'][row][target].all()
            names = ('encoder_tokens', source), ('tokens', target), ('targets', target)
            found.append(tuple(tuple(batch[name][row][inside].tolist()) for name, inside in names))
    return found


def whole(pair, eos):
    source, target = (list(text.encode()) for text in pair)
    return (*source, eos), (eos, *target), (*target, eos)


def test_every_pair_once_and_beside_its_source(seq2seq, texts):
    seq2seq.data.batch_size = 1
    data = load_data(seq2seq)
    eos = data.tokenizer.eos_id
    expected = collections.Counter(
        whole(pair, eos) for pair in texts if all(pair) and len(pair[0]) < S and len(pair[1]) < T
    )
    validation = concatenated(data.validation.evaluation_batches(7))
    held_out = collections.Counter(separate(validation))
    for number in range(2):
        packed = epoch(data, number)
        assert collections.Counter(separate(packed)) + held_out == expected
        assert packed['weights'].sum() == data.train.num_tokens
        text = data.tokenizer.decode(packed['targets'][packed['weights'] > 0])
        assert len(text.encode()) == data.train.num_bytes
        assert packed['encoder_tokens'].shape == (data.train.parts[0].num_rows, S)
    assert data.train.num_documents + data.validation.num_documents == expected.total()
    assert not np.array_equal(epoch(data, 0)['tokens'], epoch(data, 1)['tokens'])
    for name, array in packed.items():
        assert array.dtype == (np.float32 if name == 'weights' else np.int32)


def test_padding_is_zero_and_last(seq2seq):
    batch = load_data(seq2seq).train.batch(0)
    for prefix in '', 'encoder_':
        padding = batch[f'{prefix}segment_ids'] == 0
        assert (np.diff(padding, axis=1).sum(axis=1) <= 1).all()
        assert not padding[:, 0].any()
        for name in ('tokens', 'positions'):
            assert not batch[f'{prefix}{name}'][padding].any()
    assert not batch['targets'][batch['weights'] == 0].any()


def test_dropped_pairs_are_counted(seq2seq, texts):
    data = load_data(seq2seq)
    skipped = data.train.skipped + data.validation.skipped
    blank = sum(not all(pair) for pair in texts)
    overlong = sum(all(pair) and (len(pair[0]) >= S or len(pair[1]) >= T) for pair in texts)
    assert min(blank, overlong) > 10
    assert skipped == {'blank dropped': blank, 'overlong dropped': overlong}
    train = data.train.skipped
    assert (
        f'train {data.train.num_documents} pairs, {data.train.num_tokens:,} tokens, '
        f'{data.train.num_bytes:,} bytes ({train["blank dropped"]} blank dropped, '
        f'{train["overlong dropped"]} overlong dropped); validation'
    ) in data.describe()


def test_cut_pairs_keep_their_beginning(seq2seq, texts):
    seq2seq.data.batch_size = 1
    seq2seq.data.overlong = 'cut'
    data = load_data(seq2seq)
    eos = data.tokenizer.eos_id
    expected = collections.Counter()
    for pair in filter(all, texts):
        source, inputs, targets = whole(pair, eos)
        expected[source[:S], inputs[:T], targets[:T]] += 1
    held_out = concatenated(data.validation.evaluation_batches(7))
    found = collections.Counter(separate(epoch(data)) + separate(held_out))
    assert found == expected
    assert 'overlong cut' in data.train.skipped
    assert 0.9 < data.train.num_bytes / (data.train.num_tokens - data.train.num_documents) < 1.1


def test_no_pair_is_left(seq2seq):
    seq2seq.data.source_length = 1
    with pytest.raises(UserError, match=r"pairs has more than 1 tokens of source or 24 .*='cut'"):
        load_data(seq2seq)


def test_processes_share_a_batch(seq2seq):
    data = load_data(seq2seq)
    for n in 0, 5, 10**6:
        parts = [data.train.batch(n, index, 2) for index in range(2)]
        for name, array in data.train.batch(n).items():
            np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), array)


def test_rows_are_found_once(seq2seq, monkeypatch):
    first = load_data(seq2seq).train.batch(3)
    monkeypatch.setattr('transformer.data.pair_packing.best_fit_pairs', None)
    again = load_data(seq2seq).train.batch(3)
    for name, array in first.items():
        np.testing.assert_array_equal(again[name], array)


def test_texts_to_decode(seq2seq, texts):
    data = load_data(seq2seq)
    pairs = data.validation.pairs()
    assert data.validation.num_documents < len(pairs)  # overlong ones are there
    assert set(pairs) < set(texts)
    assert all(map(all, pairs))
    assert [(pair.source, pair.target) for pair in pairs] == [
        pair for pair in texts if pair in pairs
    ]


def test_a_tokenizer_for_the_sources_alone(seq2seq):
    seq2seq.data.tokenizer = 'chars'
    joint = load_data(seq2seq)
    assert joint.source_tokenizer is None
    assert joint.tokenizer.unknown_characters('sT') == []
    seq2seq.data.source_tokenizer = 'bpe'
    seq2seq.data.source_vocab_size = 270
    data = load_data(seq2seq)
    assert data.tokenizer.unknown_characters('sT') == ['s']
    assert data.source_tokenizer.vocab_size == 270
    assert ', of 270 tokens of the sources' in data.describe()
    batch = next(data.validation.evaluation_batches(4))
    first = batch['encoder_segment_ids'][0] == 1
    text = data.source_tokenizer.decode(batch['encoder_tokens'][0][first])
    target = data.tokenizer.decode(batch['targets'][0][batch['segment_ids'][0] == 1])
    assert (text, target) in data.validation.pairs()
    given = load_data(seq2seq, data.tokenizer, data.source_tokenizer)
    assert given.source_tokenizer is data.source_tokenizer


def test_aligned_files_and_a_test_split(seq2seq, write):
    data = seq2seq.data
    data.path = ()
    for split in '', 'validation_', 'test_':
        for side in 'source', 'target':
            names = [f'{split}{side}{i}.txt' for i in range(2)]
            paths = tuple(str(write(name, f'{name} a\n{name} b\n')) for name in names)
            data[f'{split}{side}_path'] = paths
    data.overlong = 'cut'
    loaded = load_data(seq2seq)
    assert loaded.names == ('source0.txt -> target0.txt', 'source1.txt -> target1.txt')
    expected = [
        (f'test_source{i}.txt {line}', f'test_target{i}.txt {line}')
        for i in range(2)
        for line in 'ab'
    ]
    assert loaded.test.pairs() == expected
    assert loaded.validation.pairs()[0] == ('validation_source0.txt a', 'validation_target0.txt a')
    sizes = [split.num_documents for split in (loaded.train, loaded.validation, loaded.test)]
    assert sizes == [4, 4, 4]
    assert 'test 4 pairs' in loaded.describe()
    data.test_source_path = data.test_target_path = ()
    assert load_data(seq2seq).test is None


def test_mixtures_of_pairs(seq2seq, write):
    paths = [write(f'{name}.tsv', f'{name}\t{name * 9}\n' * 100) for name in 'xy']
    seq2seq.data.path = tuple(map(str, paths))
    seq2seq.data.validation_path = (str(paths[0]),)
    seq2seq.data.weights = (3.0, 1.0)
    data = load_data(seq2seq)
    targets = np.concatenate([data.train.batch(n)['targets'] for n in range(50)])
    assert (targets == ord('x')).any(axis=1).sum() == 150
    assert data.train.num_documents == 200


@pytest.mark.parametrize('lengths', [(64, 64), (20, 90), (90, 20)])
def test_best_fit_leaves_little_space(lengths):
    rng = np.random.default_rng(0)
    base = rng.uniform(0.02, 0.9, 2000)
    noise = rng.uniform(0.8, 1.1, (2000, 2))
    sizes = np.maximum((base[:, None] * noise * lengths).astype(int), 1)
    rows = best_fit_pairs(sizes, lengths)
    used = np.stack([np.bincount(rows, size) for size in sizes.T], axis=1)
    assert (used <= lengths).all()
    np.testing.assert_array_equal(np.unique(rows), np.arange(len(used)))
    assert (sizes.sum(axis=0) / used.shape[0] / lengths).max() > 0.94


def test_best_fit_counts_both_parts():
    # The first two fill row 0 on one side each; the third fits neither side of it.
    assert best_fit_pairs(np.array([[8, 1], [1, 8], [2, 2]]), (9, 9)).tolist() == [0, 0, 1]
    # Rows with (2, 5) and (4, 4) left: the last pair leaves 1 + 3 in the one, 3 + 2 in the other.
    sizes = np.array([[8, 5], [6, 6], [1, 2]])
    assert best_fit_pairs(sizes, (10, 10)).tolist() == [0, 1, 0]
