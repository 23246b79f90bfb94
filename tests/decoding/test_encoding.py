"""Rows read whole: masks filled, classes and vectors, each as by the plain model on one row."""

import jax
import numpy as np
import pytest
from decoding_models import make

from transformer.decoding import check_filling, classify, embed, fill_masks
from transformer.decoding.encoding import _classes
from transformer.decoding.filling import _candidates
from transformer.decoding.padding import batches
from transformer.errors import UserError
from transformer.modules import Transformer

MASK = 0  # what padding looks like
ENCODER = {'topology': 'encoder', 'position': 'learned', 'head': 'masked_lm'}
CLASSIFIER = {
    'topology': 'encoder',
    'head': 'classifier',
    'num_classes': 5,
    'pooling': 'mean',
    'num_layers': 1,
}
ROWS = [[6, MASK, 9, 11, MASK], [MASK], [6, *range(1, 18), MASK], [6, 3, MASK, 4]]


def alone(name, row, method, **changes):
    """What the method makes of the features of one row without padding; or None, the model."""
    model, params = make(name, **changes)

    @jax.jit
    def run(params):
        bound = Transformer(model.config).bind({'params': params})
        batch = {'tokens': np.array([row])}
        return getattr(bound, method)(bound.features(batch)[0]) if method else bound(batch)

    return np.asarray(run(params), np.float64)[0]


def softmax(x):
    exps = np.exp(x - x.max(-1, keepdims=True))
    return exps / exps.sum(-1, keepdims=True)


def test_candidates_are_the_likeliest_at_each_mask():
    results = fill_masks(*make('encoder', **ENCODER), ROWS, MASK, 3, vocab_limit=30)
    for row, masks in zip(ROWS, results, strict=True):
        logits = alone('encoder', row, 'logits', **ENCODER)[:, :30]
        logits[:, MASK] = -np.inf
        places = [i for i, id in enumerate(row) if id == MASK]
        assert len(masks) == len(places)
        for place, candidates in zip(places, masks, strict=True):
            expected = softmax(logits[place])
            best = np.argsort(-expected)[:3]
            assert [id for id, _ in candidates] == best.tolist()
            np.testing.assert_allclose([p for _, p in candidates], expected[best], rtol=1e-4)


def test_all_candidates_have_probability_one_together():
    [[one]] = fill_masks(*make('encoder', **ENCODER), [ROWS[1]], MASK, 39)
    assert sorted(id for id, _ in one) == list(range(1, 40))
    np.testing.assert_allclose(sum(p for _, p in one), 1, rtol=1e-5)


def test_class_probabilities_are_those_of_each_row_alone():
    probabilities = classify(*make('classifier', **CLASSIFIER), ROWS)
    assert probabilities.shape == (4, 5)
    assert probabilities.dtype == np.float32
    expected = [softmax(alone('classifier', row, None, **CLASSIFIER)) for row in ROWS]
    np.testing.assert_allclose(probabilities, expected, rtol=1e-4)


@pytest.mark.parametrize('changes', [CLASSIFIER, ENCODER | {'pooler': True}])
def test_vectors_are_pooled_outputs_of_length_one(changes):
    vectors = embed(*make('embedder', **changes), ROWS)
    pooled = np.array([alone('embedder', row, 'pooled', **changes) for row in ROWS])
    expected = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors, expected, rtol=1e-4, atol=1e-6)


def test_batches_change_no_value_and_few_programs_serve_them():
    model, params = make('classifier', **CLASSIFIER)
    rows = [[1 + i % 30] * (1 + 5 * i % 20) for i in range(11)]
    whole = classify(model, params, rows)
    programs = _classes._cache_size()
    np.testing.assert_allclose(classify(model, params, rows[::-1])[::-1], whole, rtol=1e-5)
    assert _classes._cache_size() == programs
    np.testing.assert_allclose(classify(model, params, rows, batch_size=2), whole, rtol=1e-5)


def test_a_bucket_of_masks_shares_one_program():
    model, params = make('encoder', **ENCODER)
    fill_masks(model, params, ROWS[:2], MASK, 3)
    programs = _candidates._cache_size()
    fill_masks(model, params, [[MASK] * 7, [1, MASK]], MASK, 3)
    assert _candidates._cache_size() == programs


def test_batches_hold_every_row_once_and_pad_little():
    rows = [[1] * (1 + 7 * i % 40) for i in range(23)]
    seen = []
    for indices, tokens, lengths in batches(rows, limit=40, batch_size=8):
        seen += indices
        assert len(tokens) == len(lengths) in (1, 2, 4, 8)
        assert tokens.shape[1] in (16, 32, 40)
        assert lengths.max() * 2 > tokens.shape[1] or tokens.shape[1] == 16
        for index, row, length in zip(indices, tokens, lengths, strict=False):
            assert row[:length].tolist() == rows[index]
            assert not row[length:].any()
    assert sorted(seen) == list(range(23))


@pytest.mark.parametrize(
    ('rows', 'top_k', 'words'),
    [
        ([[1, MASK], [1, 2]], 1, ['Row 2', 'no mask', 'token 0']),
        ([[1, MASK]], 0, ['top_k', '1 to 39', '0']),
        ([[1, MASK]], 40, ['top_k', '1 to 39', '40']),
        ([[MASK] * 33], 1, ['Row 1', '33 tokens', 'model.max_length 32']),
        ([[MASK, 40]], 1, ['Row 1', 'token 40', 'vocabulary of 40']),
        ([[MASK], []], 1, ['Row 2', 'no token']),
        ([], 1, ['no row']),
    ],
)
def test_mistakes_are_refused_in_one_line_before_any_work(rows, top_k, words):
    model, _ = make('encoder', **ENCODER)
    with pytest.raises(UserError) as caught:
        fill_masks(model, None, rows, MASK, top_k)
    assert '\n' not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_models_of_another_kind_are_refused():
    encoder, params = make('encoder', **ENCODER)
    decoder, _ = make('decoder')
    with pytest.raises(UserError, match="head 'classifier', not 'encoder' with 'masked_lm'"):
        classify(encoder, params, ROWS)
    with pytest.raises(UserError, match="'encoder', not 'decoder'"):
        embed(decoder, params, ROWS)
    with pytest.raises(UserError, match="'masked_lm' or 'lm', not 'decoder' with 'lm'"):
        check_filling(decoder.config, ROWS, MASK, 1, 40)
