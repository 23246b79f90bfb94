"""The arrays of a batch."""

import numpy as np

from transformer.data.corpus import Corpus
from transformer.data.rows import ROWS
from transformer.data.tasks import (
    TASKS,
    causal_lm,
    classification,
    masked_lm,
    seq2seq,
    span_corruption,
)

X = -1  # padding


def corpus(tokens, starts, counted=None):
    return Corpus(
        folder=None,
        tokens=np.array(tokens, np.uint16),
        starts=np.array(starts),
        counted=None if counted is None else np.array(counted, np.uint8),
        num_tokens=0,
        num_bytes=0,
    )


# eos = 0, documents [5, 6] and [7].
STREAM = corpus([0, 5, 6, 0, 7, 0], [0, 3])


FIELDS = {'tokens', 'targets', 'weights', 'segment_ids', 'positions'}


def check(batch, fields=FIELDS, **expected):
    assert batch.keys() == fields
    for name, array in batch.items():
        assert array.dtype == (np.float32 if name == 'weights' else np.int32)
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


def test_documents_are_segments():
    check(
        causal_lm(STREAM, np.array([[0, 1, 2, 3, 4, X, X]])),
        tokens=[[0, 5, 6, 0, 7, 0, 0]],
        targets=[[5, 6, 0, 7, 0, 0, 0]],  # the last of a document predicts its end, never the next
        weights=[[1, 1, 1, 1, 1, 0, 0]],  # the end counts although padding has the same value
        segment_ids=[[1, 1, 1, 2, 2, 0, 0]],
        positions=[[0, 1, 2, 0, 1, 0, 0]],
    )


def test_rows_begin_inside_documents():
    check(
        causal_lm(STREAM, np.array([[1, 2, 3], [4, X, X]])),
        tokens=[[5, 6, 0], [7, 0, 0]],
        targets=[[6, 0, 7], [0, 0, 0]],
        weights=[[1, 1, 1], [1, 0, 0]],
        segment_ids=[[1, 1, 2], [1, 0, 0]],
        positions=[[0, 1, 0], [0, 0, 0]],
    )


def test_what_does_not_follow_is_another_segment():
    # The end and the beginning of one document, as where a shifted stream closes its ring.
    batch = causal_lm(corpus([0, 5, 6, 7, 0], [0]), np.array([[2, 3, 0, 1]]))
    np.testing.assert_array_equal(batch['segment_ids'], [[1, 1, 2, 2]])
    np.testing.assert_array_equal(batch['positions'], [[0, 1, 0, 1]])
    np.testing.assert_array_equal(batch['targets'], [[7, 0, 5, 6]])


def test_prompts_have_weight_zero():
    stream = corpus([0, 5, 6, 0, 7, 0], [0, 3], counted=[1, 0, 1, 1, 0, 1])
    batch = causal_lm(stream, np.array([[0, 1, 2, 3, 4, X]]))
    np.testing.assert_array_equal(batch['weights'], [[0, 1, 1, 0, 1, 0]])


def test_separators_inside_a_document_are_no_boundary():
    batch = causal_lm(corpus([0, 5, 0, 6, 0], [0]), np.array([[0, 1, 2, 3]]))
    np.testing.assert_array_equal(batch['segment_ids'], [[1, 1, 1, 1]])


def test_rows_of_padding():
    batch = causal_lm(STREAM, np.array([[X, X]]))
    for array in batch.values():
        np.testing.assert_array_equal(array, [[0, 0]])


def test_every_task_has_rows():
    assert TASKS.keys() == ROWS.keys()
    assert {name for name, task in TASKS.items() if task.pairs} == {'seq2seq', 'classification'}


# Tokens 5 and 6 may be in one word, 7 may only end one, and eos is none.
EDGES = np.isin(np.arange(8), [5, 6]), np.isin(np.arange(8), [5, 6, 7])


def test_masked_lm():
    stream = corpus([0, 5, 6, 7, 5, 0, 6, 5, 0], [0, 5])
    check(
        masked_lm(stream, np.array([[0, 1, 2, 3, 4, 5, 6, 7, X]]), eos_id=0, edges=EDGES),
        FIELDS | {'word_ids'},
        tokens=[[0, 5, 6, 7, 5, 0, 6, 5, 0]],
        targets=[[0, 5, 6, 7, 5, 0, 6, 5, 0]],
        weights=[[0, 1, 1, 1, 1, 0, 1, 1, 0]],
        segment_ids=[[1, 1, 1, 1, 1, 2, 2, 2, 0]],
        positions=[[0, 1, 2, 3, 4, 0, 1, 2, 0]],
        word_ids=[[0, 1, 1, 3, 3, 5, 6, 6, 0]],
    )


def test_words_end_with_their_segment():
    stream = corpus([0, 5, 6, 5, 6, 0], [0])
    batch = masked_lm(stream, np.array([[1, 2, 3], [3, 1, 2]]), eos_id=0, edges=EDGES)
    np.testing.assert_array_equal(batch['word_ids'], [[0, 0, 0], [0, 1, 1]])


def test_prompts_are_not_masked():
    stream = corpus([0, 5, 6, 7, 0], [0], counted=[1, 0, 1, 1, 1])
    batch = masked_lm(stream, np.array([[0, 1, 2, 3]]), eos_id=0, edges=EDGES)
    np.testing.assert_array_equal(batch['weights'], [[0, 0, 1, 1]])


def test_span_corruption():
    check(
        span_corruption(STREAM, np.array([[1, 2, 3, 4], [0, X, X, X]])),
        {'tokens', 'segment_ids', 'weights'},
        tokens=[[5, 6, 0, 7], [0, 0, 0, 0]],
        segment_ids=[[1, 1, 1, 1], [1, 0, 0, 0]],
        weights=[[1, 1, 1, 1], [1, 0, 0, 0]],
    )


def test_seq2seq():
    target = corpus([1, 8, 1, 9, 8, 1], [0, 2])
    check(
        seq2seq(STREAM, target, np.array([[0, 1, 2, 3, 4, X]]), np.array([[0, 1, 2, 3, 4, X]]), 3),
        FIELDS | {'encoder_tokens', 'encoder_segment_ids', 'encoder_positions'},
        encoder_tokens=[[5, 6, 0, 7, 0, 0]],
        encoder_segment_ids=[[1, 1, 1, 2, 2, 0]],
        encoder_positions=[[0, 1, 2, 0, 1, 0]],
        tokens=[[3, 8, 3, 9, 8, 0]],
        targets=[[8, 1, 9, 8, 1, 0]],
        weights=[[1, 1, 1, 1, 1, 0]],
        segment_ids=[[1, 1, 2, 2, 2, 0]],
        positions=[[0, 1, 0, 1, 2, 0]],
    )


def test_classification():
    check(
        classification(STREAM, np.array([[0, 1, 2], [3, 4, X], [X, X, X]]), np.array([3, 0, 2])),
        tokens=[[0, 5, 6], [0, 7, 0], [0, 0, 0]],
        targets=[[3], [0], [0]],
        weights=[[1], [1], [0]],
        segment_ids=[[1, 1, 1], [1, 1, 0], [0, 0, 0]],
        positions=[[0, 1, 2], [0, 1, 0], [0, 0, 0]],
    )
