"""`load_data`: batches as a function of their number, mixtures, mistakes named."""

import math

import numpy as np
import pytest
from batches import assert_equal, concatenated, epoch, take

from transformer.data import check_data, load_data
from transformer.data.tokenizers import train_tokenizer
from transformer.errors import UserError

FIELDS = {'tokens', 'targets', 'weights', 'segment_ids', 'positions'}


def test_batch_is_a_function_of_its_number(packed):
    data, again = load_data(packed), load_data(packed)
    first = take(data.train.batches(0), 40)  # several epochs
    for n in reversed(range(40)):
        assert_equal(again.train.batch(n), first[n])
    assert_equal(next(again.train.batches(37)), first[37])
    assert_equal(take(again.train.batches(33), 7)[-1], first[39])
    for batch in first:
        assert batch.keys() == FIELDS
        assert {array.shape for array in batch.values()} == {(4, 16)}


def test_far_batches(packed):
    data = load_data(packed)
    assert_equal(data.train.batch(10**9), next(data.train.batches(10**9)))


def test_epoch_has_every_token_once(packed):
    packed.data.batch_size = 1
    data = load_data(packed)
    rows = data.train.parts[0].num_rows
    corpus = data.train.parts[0].corpus
    batches = take(data.train.batches(0), 3 * rows)
    epochs = [concatenated(batches[i : i + rows]) for i in (0, rows, 2 * rows)]
    for batch in epochs:
        assert batch['weights'].sum() == data.train.num_tokens == corpus.num_inputs
        inputs = np.sort(batch['tokens'][batch['segment_ids'] > 0])
        np.testing.assert_array_equal(inputs, np.sort(corpus.tokens[:-1]))
    assert not np.array_equal(epochs[0]['tokens'], epochs[1]['tokens'])


def test_stream_cuts_and_order_change_with_the_epoch(config, texts):
    config.data.batch_size = 1
    data = load_data(config)
    rows = data.train.parts[0].num_rows
    batches = take(data.train.batches(0), 4 * rows)
    epochs = [batches[i * rows : (i + 1) * rows] for i in range(4)]
    cuts = {frozenset(batch['tokens'].tobytes() for batch in epoch) for epoch in epochs}
    assert len(cuts) > 2


def test_seed_changes_the_order(packed):
    first = load_data(packed).train.batch(0)
    packed.data.seed = 1
    assert not np.array_equal(load_data(packed).train.batch(0)['tokens'], first['tokens'])


def test_processes_share_a_batch(packed):
    data = load_data(packed)
    for n in range(6):
        parts = [data.train.batch(n, index, 4) for index in range(4)]
        assert_equal(concatenated(parts), data.train.batch(n))
    parts = [next(data.train.batches(5, index, 2)) for index in range(2)]
    assert_equal(concatenated(parts), data.train.batch(5))
    with pytest.raises(UserError, match=r'data.batch_size 4 is not a multiple of the 3 processes'):
        data.train.batches(0, 0, 3)


def test_mixture_keeps_its_weights(config, write):
    config.data.path = tuple(str(write(f'{name}.txt', name * 3000)) for name in 'xy')
    config.data.weights = (3.0, 1.0)
    data = load_data(config)
    batches = take(data.train.batches(0), 200)
    is_x = (concatenated(batches)['targets'] == ord('x')).any(axis=1)
    assert is_x.sum() == 600
    for start in range(0, 800, 8):  # evenly, not in runs
        assert is_x[start : start + 8].sum() == 6
    for n in 0, 71, 199:
        assert_equal(load_data(config).train.batch(n), batches[n])
    # The smaller share has epochs of its own: its first rows are all of its tokens.
    smaller = data.train.parts[1]
    assert smaller.num_rows < 200
    counted = concatenated(batches)['weights'][~is_x][: smaller.num_rows]
    assert counted.sum() == smaller.corpus.num_tokens


def test_without_weights_corpora_are_one(config, write):
    paths = [write('x.txt', 'x' * 300), write('y.txt', 'y' * 3000)]
    config.data.path = tuple(map(str, paths))
    config.data.batch_size = 1
    data = load_data(config)
    targets = concatenated(epoch(data))['targets']
    assert (targets == ord('x')).sum() == 210
    assert (targets == ord('y')).sum() == 2100


def test_completions_only(config, write):
    records = [{'prompt': f'{i}?' * 3, 'completion': f'{i}' * (i + 1)} for i in range(20)]
    config.data.path = (str(write('a.jsonl', records)),)
    data = load_data(config)
    batches = concatenated(data.validation.evaluation_batches(4))
    counted = batches['targets'][batches['weights'] > 0]
    text = data.tokenizer.decode(counted)
    assert '?' not in text
    assert len(text) == data.validation.num_bytes
    assert len(counted) == data.validation.num_tokens > 0
    assert len(counted) - len(text) == data.validation.num_documents  # the ends
    assert '?' in data.tokenizer.decode(batches['tokens'].ravel())


def test_text_shorter_than_a_row(config, write):
    config.data.path = (str(write('a.txt', 'abcd')),)
    data = load_data(config)
    batch = data.train.batch(0)
    assert batch['weights'].sum(axis=1).tolist() == [3.0] * 4  # four epochs
    assert data.tokenizer.decode(data.train.parts[0].corpus.tokens) == 'ab'


@pytest.mark.parametrize(
    ('task', 'packing'),
    [('masked_lm', 'stream'), ('masked_lm', 'examples'), ('span_corruption', 'stream')],
)
def test_other_tasks_read_the_same_rows(config, texts, task, packing):
    config.data.packing = packing
    config.data.batch_size = 1
    expected, own = load_data(config), train_tokenizer('bytes', []).to_json()
    config.task = task
    data = load_data(config)
    assert data.tokenizer.to_json() != own == expected.tokenizer.to_json()
    rows = data.train.parts[0].num_rows
    assert rows == expected.train.parts[0].num_rows
    total = 0
    for n in range(rows):
        batch, plain = data.train.batch(n), expected.train.batch(n)
        np.testing.assert_array_equal(batch['tokens'], plain['tokens'])
        np.testing.assert_array_equal(batch['segment_ids'] > 0, plain['segment_ids'] > 0)
        total += batch['weights'].sum()
        if task == 'masked_lm':
            assert not batch['weights'][batch['tokens'] == data.tokenizer.eos_id].any()
            assert (batch['word_ids'] <= np.arange(16)).all()
    assert total == data.train.num_tokens
    assert all(array.shape == (1, 16) for array in batch.values())
    assert data.validation.pairs() == []


def test_stdlib(config):
    config.data.path = ('stdlib',)
    data = load_data(config)
    sizes = data.train.num_bytes, data.validation.num_bytes
    assert min(sizes) > 100_000
    assert data.train.num_tokens == sizes[0] + data.train.num_documents
    first = data.validation.evaluation_batches(4, 1)
    assert next(first)['weights'].sum() == 4 * 16
    assert data.describe() == (
        'data: stdlib; vocabulary of 257 tokens\n'
        f'train {data.train.num_documents:,} documents, {data.train.num_tokens:,} tokens, '
        f'{sizes[0]:,} bytes; validation {data.validation.num_documents:,} documents, '
        f'{data.validation.num_tokens:,} tokens, {sizes[1]:,} bytes'
    )


@pytest.mark.parametrize(
    ('field', 'value', 'message'),
    [
        ('packing', 'streams', r"data.packing must be one of examples, stream; .* mean 'stream'"),
        ('length', 0, r'data.length must be at least 1, not 0'),
        ('batch_size', -4, r'data.batch_size must be at least 1, not -4'),
        ('seed', -1, r'data.seed must be at least 0, not -1'),
        ('validation_fraction', 0.0, r'fraction must be between 0 and 1, .* data.validation_path'),
        ('validation_fraction', 1.0, r'fraction must be between 0 and 1, .* data.validation_path'),
        ('path', (), r'data.path is empty: give'),
        ('weights', (1.0, 2.0), r'data.weights has 2 entries and data.path 1'),
        ('weights', (0.0,), r'data.weights must be positive numbers, not 0.0'),
        ('weights', ('a',), r"data.weights must be positive numbers, not 'a'"),
        ('weights', (math.nan,), r'data.weights must be positive numbers, not nan'),
        ('batch_size', 10**12, r'data.batch_size must be at most 2,147,483,647'),
        ('path', (3,), r'names of corpora, not 3'),
        ('path', ('~nobody-here/a.txt',), r'~nobody-here/a.txt does not exist'),
        ('tokenizer', '~nobody-here/t.json', r'no tokenizer ~nobody-here/t.json'),
        ('tokenizer', 'bpee', r'no tokenizer bpee: give bytes, chars, bpe'),
        ('path', ('nowhere.txt',), r'nowhere.txt does not exist'),
        ('validation_path', ('nowhere.txt',), r'nowhere.txt does not exist'),
    ],
)
def test_mistakes_are_found_before_anything_is_read(config, texts, tmp_path, field, value, message):
    config.data[field] = value
    for find in check_data, load_data:
        with pytest.raises(UserError, match=message):
            find(config)
    assert not (tmp_path / 'cache').exists()


def test_a_task_of_another_name(config, texts):
    check_data(config)
    config.task = 'causal_llm'
    with pytest.raises(UserError, match=r"task must be one of causal_lm, class.* mean 'causal_lm'"):
        check_data(config)
