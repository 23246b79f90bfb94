"""Splits of `load_data`: read whole, once, and apart from each other."""

import numpy as np
import pytest
from batches import assert_equal, concatenated, epoch

from transformer.data import load_data


def documents(batch, eos):
    """Targets of each segment, of documents that are whole in one row."""
    found = []
    for row in range(len(batch['tokens'])):
        for segment in range(1, batch['segment_ids'][row].max() + 1):
            inside = batch['segment_ids'][row] == segment
            if batch['tokens'][row][inside][0] == eos:
                found.append(
                    bytes(id for id in batch['targets'][row][inside] if id != eos).decode()
                )
    return found


@pytest.mark.parametrize('batch_size', [1, 3, 7, 100])
def test_validation_counts_every_target_once(packed, batch_size):
    data = load_data(packed)
    batches = list(data.validation.evaluation_batches(batch_size))
    assert {batch['tokens'].shape for batch in batches} == {(batch_size, 16)}
    whole = concatenated(batches)
    corpus = data.validation.rows.corpus
    assert whole['weights'].sum() == data.validation.num_tokens == corpus.num_inputs
    inputs = whole['segment_ids'] > 0
    np.testing.assert_array_equal(inputs, whole['weights'] > 0)
    targets = np.sort(whole['targets'][inputs])
    np.testing.assert_array_equal(targets, np.sort(corpus.tokens[1:]))


def test_validation_rows_do_not_depend_on_the_batch_size(packed):
    validation = load_data(packed).validation
    rows = validation.rows.num_rows
    expected = concatenated(validation.evaluation_batches(1))
    for batch_size in 3, 7:
        got = concatenated(validation.evaluation_batches(batch_size))
        assert_equal({name: array[:rows] for name, array in got.items()}, expected)
        assert not any(array[rows:].any() for array in got.values())


def test_part_of_a_validation(packed):
    validation = load_data(packed).validation
    whole = concatenated(validation.evaluation_batches(1))
    assert validation.rows.num_rows > 4
    part = concatenated(validation.evaluation_batches(2, num_batches=2))
    chosen = np.arange(4) * validation.rows.num_rows // 4  # spread over the split
    assert_equal(part, {name: array[chosen] for name, array in whole.items()})
    enough = concatenated(validation.evaluation_batches(1, num_batches=1000))
    assert_equal(enough, whole)


def test_processes_share_a_validation(packed):
    validation = load_data(packed).validation
    whole = list(validation.evaluation_batches(6))
    parts = [list(validation.evaluation_batches(6, 0, index, 2)) for index in range(2)]
    for expected, *share in zip(whole, *parts, strict=True):
        assert_equal(concatenated(share), expected)


def test_splits_share_no_document_and_lose_none(config, texts):
    config.data.packing = 'examples'
    config.data.length = 128
    config.data.batch_size = 1
    data = load_data(config)
    eos = data.tokenizer.eos_id
    train = documents(concatenated(epoch(data)), eos)
    validation = documents(concatenated(data.validation.evaluation_batches(4)), eos)
    assert sorted(train + validation) == sorted(texts.values())
    assert len(validation) > 1
    sizes = [sum(len(text.encode()) for text in split) for split in (train, validation)]
    assert sizes == [data.train.num_bytes, data.validation.num_bytes]
    numbers = [data.train.num_documents, data.validation.num_documents]
    assert numbers == [len(train), len(validation)]


def test_validation_path(config, write):
    train, held_out = write('a.txt', 'abc'), write('b.txt', 'de')
    config.data.path = (str(train),)
    config.data.validation_path = (str(held_out),)
    config.data.validation_fraction = 0.0  # unused
    data = load_data(config)
    assert data.tokenizer.decode(data.train.parts[0].corpus.tokens) == 'abc'
    assert data.tokenizer.decode(data.validation.rows.corpus.tokens) == 'de'
    assert (data.train.num_bytes, data.validation.num_bytes) == (3, 2)


def test_a_test_split(config, texts, write):
    assert load_data(config).test is None
    config.data.test_path = (str(write('test/a.txt', 'é')),)
    config.data.tokenizer = 'chars'
    data = load_data(config)
    assert data.test.num_bytes == 2
    assert data.tokenizer.unknown_characters('é') == []
    assert data.describe().endswith('; test 1 documents, 2 tokens, 2 bytes')


def test_rows_of_a_validation_are_numbered(packed):
    validation = load_data(packed).validation
    rows = validation.rows.num_rows
    whole = concatenated(validation.evaluation_batches(7))
    assert whole['row'].dtype == np.int32
    assert whole['row'].tolist() == [*range(rows), *[0] * (-rows % 7)]
    part = concatenated(validation.evaluation_batches(2, num_batches=2))
    for number, row in enumerate(part['row']):
        np.testing.assert_array_equal(part['tokens'][number], whole['tokens'][row])
