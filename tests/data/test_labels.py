"""Labelled texts: one a row, beside its class."""

import numpy as np
import pytest
from batches import concatenated

from transformer.data import load_data
from transformer.errors import UserError

T = 16


@pytest.fixture
def texts():
    """Texts of 0 to 30 characters, each of one of three classes."""
    return [((f'{i} text ' * 9)[: i % 31], f'class {i % 3}') for i in range(120)]


@pytest.fixture
def labelled(config, write, texts):
    config.task = 'classification'
    config.data.path = (str(write('a.tsv', ''.join('\t'.join(pair) + '\n' for pair in texts))),)
    config.data.length = T
    return config


def found(data, batch):
    """(text cut to the row, label) of every row that counts."""
    rows = []
    for row in np.flatnonzero(batch['weights'][:, 0]):
        inside = batch['segment_ids'][row] > 0
        assert batch['segment_ids'][row][inside].max() == 1
        np.testing.assert_array_equal(batch['positions'][row][inside], np.arange(inside.sum()))
        assert batch['tokens'][row][0] == data.tokenizer.eos_id
        text = data.tokenizer.decode(batch['tokens'][row][inside])
        rows.append((text, data.labels[batch['targets'][row, 0]]))
    return rows


def test_every_text_once_with_its_label(labelled, texts):
    labelled.data.batch_size = 1
    data = load_data(labelled)
    expected = sorted((text[: T - 1], label) for text, label in texts if text)
    rows = data.train.parts[0].num_rows
    train = concatenated(data.train.batch(n) for n in range(rows))
    validation = concatenated(data.validation.evaluation_batches(7))
    assert sorted(found(data, train) + found(data, validation)) == expected
    assert train['tokens'].shape == (rows, T)
    assert train['targets'].shape == train['weights'].shape == (rows, 1)
    assert (train['targets'].dtype, train['weights'].dtype) == (np.int32, np.float32)
    assert data.labels == ('class 0', 'class 1', 'class 2')
    assert data.train.num_tokens == data.train.num_documents == rows == train['weights'].sum()
    assert validation['row'].tolist()[: data.validation.num_tokens] == list(
        range(data.validation.num_tokens)
    )


def test_description(labelled, texts):
    data = load_data(labelled)
    skipped = data.train.skipped + data.validation.skipped
    cut = sum(len(text) >= T for text, _ in texts)
    assert skipped == {'blank dropped': sum(not text for text, _ in texts), 'overlong cut': cut}
    assert 'vocabulary of 257 tokens, 3 classes\ntrain ' in data.describe()
    assert f'validation {data.validation.num_documents} texts, ' in data.describe()


def test_labels_are_of_the_training_split(labelled, write):
    held_out = write('b.tsv', 'x\tclass 2\ny\tclass 1\n')
    labelled.data.validation_path = (str(held_out),)
    labelled.data.test_path = (str(held_out),)
    data = load_data(labelled)
    batch = next(data.validation.evaluation_batches(2))
    assert batch['targets'].tolist() == [[2], [1]]
    assert data.test.pairs() == data.validation.pairs() == [('x', 'class 2'), ('y', 'class 1')]
    for field in 'test_path', 'validation_path':
        labelled.data[field] = (str(write('c.tsv', 'x\tclass 2\ny\tnew\n')),)
        with pytest.raises(UserError, match=r"to train on has the label 'new' of one to evaluate"):
            load_data(labelled)
        labelled.data[field] = (str(held_out),)


def test_classes_of_a_mixture(labelled, write):
    names = [str(write(f'{name}.tsv', f'{name}\t{name}\n' * 20)) for name in 'zab']
    labelled.data.path = tuple(names)
    labelled.data.validation_path = (names[1],)
    labelled.data.weights = (1.0, 1.0, 1.0)
    data = load_data(labelled)
    assert data.labels == ('a', 'b', 'z')
    for n in range(5):
        assert all(text == label for text, label in found(data, data.train.batch(n)))


def test_labels_need_no_vocabulary(labelled):
    labelled.data.tokenizer = 'chars'
    assert load_data(labelled).tokenizer.unknown_characters('tcl') == ['c', 'l']
