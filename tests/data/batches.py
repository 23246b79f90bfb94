"""Batches taken, joined and compared."""

import itertools

import numpy as np


def assert_equal(batch, expected):
    assert batch.keys() == expected.keys()
    for name in batch:
        np.testing.assert_array_equal(batch[name], expected[name], err_msg=name)


def take(batches, count):
    return list(itertools.islice(batches, count))


def concatenated(batches):
    batches = list(batches)
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def epoch(data):
    """The batches of the first epoch of the only corpus; its rows must fill whole batches."""
    rows = data.train.parts[0].num_rows
    assert rows % data.train.batch_size == 0
    return take(data.train.batches(0), rows // data.train.batch_size)
