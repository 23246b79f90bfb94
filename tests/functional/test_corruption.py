"""Masking of tokens: what is chosen, how often, and what becomes of it."""

import functools

import jax
import numpy as np
import pytest
from chances import assert_binomial, keys

from transformer.functional.corruption import corrupt_spans, mask_tokens
from transformer.functional.dropout import dropout_bits

V, MASK_ID, ORIGINAL = 16, 17, 18  # no random id is the mask or a token of `ids`
EOS, SENTINELS = 500, list(range(499, 400, -1))
draw = jax.jit(dropout_bits)
mask = jax.jit(functools.partial(mask_tokens, mask_id=MASK_ID, vocab_size=V))


def ids(*shape):
    return np.full(shape, ORIGINAL, np.int32)


def words(batch, length, seed=0):
    """Word ids of words of 1 to 4 tokens."""
    begins = np.random.default_rng(seed).random((batch, length)) < 0.5
    begins[:, ::4] = True
    return np.maximum.accumulate(np.where(begins, np.arange(length), 0), axis=1)


def tokenwise(batch, length):
    return np.broadcast_to(np.arange(length), (batch, length))


@pytest.mark.parametrize('rate', [0.15, 0.4])
def test_tokens_are_chosen_at_the_rate_along_both_axes(rate):
    shape = 256, 512
    _, weights = mask(
        keys(256), ids(*shape), np.ones(shape, np.float32), tokenwise(*shape), rate=rate
    )
    chosen = np.asarray(weights) > 0
    assert_binomial(chosen.sum(), chosen.size, rate)
    for axis in 0, 1:
        for part in np.moveaxis(chosen, axis, 0):
            assert_binomial(part.sum(), part.size, rate)
        both = np.take(chosen, range(1, shape[axis]), axis) & np.take(
            chosen, range(shape[axis] - 1), axis
        )
        assert_binomial(both.sum(), both.size, rate**2)


def test_chosen_tokens_become_the_mask_or_uniform_ids_or_stay():
    shape = 256, 512
    tokens, weights = mask(
        keys(256), ids(*shape), np.ones(shape, np.float32), tokenwise(*shape), rate=0.15
    )
    chosen = np.asarray(weights) > 0
    fates = np.asarray(tokens)[chosen]
    np.testing.assert_array_equal(np.asarray(tokens)[~chosen], ORIGINAL)
    assert_binomial((fates == MASK_ID).sum(), fates.size, 0.8)
    assert_binomial((fates == ORIGINAL).sum(), fates.size, 0.1)
    assert ((fates >= 0) & (fates < V) | (fates == MASK_ID) | (fates == ORIGINAL)).all()
    for token in range(V):
        assert_binomial((fates == token).sum(), fates.size, 0.1 / V)


def test_words_are_chosen_whole_and_their_tokens_meet_fates_of_their_own():
    shape = 256, 512
    word_ids = words(*shape)
    tokens, weights = mask(keys(256), ids(*shape), np.ones(shape, np.float32), word_ids, rate=0.3)
    chosen, tokens = np.asarray(weights) > 0, np.asarray(tokens)
    np.testing.assert_array_equal(chosen, np.take_along_axis(chosen, word_ids, axis=1))
    first = word_ids == np.arange(shape[1])
    assert_binomial(chosen[first].sum(), first.sum(), 0.3)
    second = ~first & (word_ids == np.arange(shape[1]) - 1) & chosen
    masked = tokens == MASK_ID
    pairs = masked[second] & np.roll(masked, 1, axis=1)[second]
    assert_binomial(pairs.sum(), pairs.size, 0.8**2)


def test_a_token_of_weight_zero_is_never_chosen():
    rng = np.random.default_rng(0)
    weights = (rng.integers(0, 3, (8, 64)) / 2).astype(np.float32)
    assert (weights[:, 1:] != weights[:, :-1]).any()
    tokens, after = mask(keys(8), ids(8, 64), weights, words(8, 64), rate=1.0)
    np.testing.assert_array_equal(after, weights)  # words that it is part of are
    np.testing.assert_array_equal(np.asarray(tokens)[weights == 0], ORIGINAL)
    tokens, after = mask(keys(8), ids(8, 64), 0 * weights, words(8, 64), rate=1.0)
    np.testing.assert_array_equal(after, 0)
    np.testing.assert_array_equal(tokens, ORIGINAL)


def test_a_masked_row_follows_from_its_key_and_its_tokens_alone():
    rng = np.random.default_rng(1)
    rows = keys(8), rng.integers(0, V, (8, 64)), np.ones((8, 64), np.float32), words(8, 64)
    tokens, weights = mask(*rows, rate=0.5)
    for part in np.s_[5:6], np.s_[::-1], np.s_[2:]:
        of_part = mask(*(a[part] for a in rows), rate=0.5)
        np.testing.assert_array_equal(of_part[0], tokens[part])
        np.testing.assert_array_equal(of_part[1], weights[part])
    shorter = mask(rows[0], *(a[:, :40] for a in rows[1:]), rate=0.5)  # without padding
    np.testing.assert_array_equal(shorter[0], tokens[:, :40])
    np.testing.assert_array_equal(shorter[1], weights[:, :40])
    assert len({row.tobytes() for row in np.asarray(weights)}) == 8


def test_probabilities_may_be_traced_and_differ_by_trial():
    rows = keys(8), ids(8, 64), np.ones((8, 64), np.float32), words(8, 64)
    trials = [(0.0, 0.8, 0.1), (0.15, 0.8, 0.1), (1.0, 1.0, 0.0), (1.0, 0.0, 1.0), (1.0, 0.0, 0.0)]

    def trial(rate, replace, random):
        return mask(*rows, rate=rate, replace=replace, random=random)

    tokens, weights = jax.jit(jax.vmap(trial))(*np.array(trials, np.float32).T)
    for i, (rate, replace, random) in enumerate(trials):
        expected = mask(*rows, rate=rate, replace=replace, random=random)
        np.testing.assert_array_equal(tokens[i], expected[0])
        np.testing.assert_array_equal(weights[i], expected[1])
    np.testing.assert_array_equal(weights[0], 0)
    np.testing.assert_array_equal(weights[2:], 1)
    np.testing.assert_array_equal(tokens[2], MASK_ID)
    assert (tokens[3] < V).all()
    np.testing.assert_array_equal(tokens[4], ORIGINAL)


def test_masking_is_what_numpy_makes_of_the_same_bits():
    rows, word_ids = keys(3), words(3, 20)
    weights = np.ones((3, 20), np.float32)
    tokens, after = mask(rows, ids(3, 20), weights, word_ids, rate=0.6, replace=0.5, random=0.3)
    drawn = [draw(rows[:, None], i, tokenwise(3, 20)) for i in range(3)]
    word, fate, new = (np.asarray(bits).astype(np.int64) for bits in drawn)
    chosen = np.take_along_axis(word, word_ids, axis=1) < 0.6 * 2**32
    shares = [chosen & (fate < 0.5 * 2**32), chosen & (fate < 0.8 * 2**32)]
    np.testing.assert_array_equal(after, chosen)
    np.testing.assert_array_equal(tokens, np.select(shares, [MASK_ID, new % V], ORIGINAL))
    assert all(share.any() for share in shares)


def test_keys_may_be_raw_or_of_another_implementation():
    rows = ids(4, 32), np.ones((4, 32), np.float32), words(4, 32)
    expected = mask(keys(4), *rows, rate=0.5)
    raw = mask(jax.random.key_data(keys(4)), *rows, rate=0.5)
    jax.tree.map(np.testing.assert_array_equal, raw, expected)
    data = np.arange(16, dtype=np.uint32).reshape(4, 4)
    _, weights = mask(jax.random.wrap_key_data(data, impl='rbg'), *rows, rate=0.5)
    assert len({row.tobytes() for row in np.asarray(weights)}) == 4


MISTAKES = [
    ({'tokens': np.zeros((4, 8), np.float32)}, r'tokens must be integers \[B, T\]; got float32'),
    ({'tokens': np.zeros(8, np.int32)}, r'tokens must be integers \[B, T\]; got int32 \[8\]'),
    ({'weights': np.ones((4, 8), bool)}, r'weights must be a float .* \[4, 8\]; got bool'),
    ({'weights': np.ones((4, 7), np.float32)}, r'weights must be .* got float32 \[4, 7\]'),
    ({'keys': keys(3)}, r'one for each row of tokens \[4, 8\]; got keys \[3\]'),
    ({'keys': jax.random.key(0)}, r'one for each row of tokens \[4, 8\]; got keys \[\]'),
]
OF_MASKING = [
    ({'word_ids': np.zeros((4, 7), np.int32)}, r'word_ids must be an integer .* int32 \[4, 7\]'),
    ({'word_ids': np.zeros((4, 8), np.float32)}, r'word_ids must be an integer .* float32'),
    ({'rate': 1.5}, 'rate is a probability between 0 and 1, not 1.5'),
    ({'random': -0.1}, 'random is a probability between 0 and 1, not -0.1'),
    ({'replace': 0.8, 'random': 0.3}, r'replace 0\.8 and random 0\.3 .* at most 1'),
]
OF_SPANS = [
    ({'tokens': np.zeros((4, 1), np.int32), 'weights': np.ones((4, 1), np.float32)}, 'rows need 2'),
    ({'rate': 0.0}, 'rate must be above 0 and below 1, not 0.0'),
    ({'rate': 1}, 'rate must be above 0 and below 1, not 1'),
    ({'mean_span': 0.5}, 'mean_span must be at least 1 token, not 0.5'),
    ({'mean_span': float('nan')}, 'mean_span must be at least 1 token, not nan'),
]


@pytest.mark.parametrize(
    ('function', 'mistake', 'message'),
    [(mask_tokens, *case) for case in MISTAKES + OF_MASKING]
    + [(corrupt_spans, *case) for case in MISTAKES + OF_SPANS],
)
def test_mistakes_are_named_in_one_line(function, mistake, message):
    right = {'keys': keys(4), 'tokens': ids(4, 8), 'weights': np.ones((4, 8), np.float32)}
    if function is mask_tokens:
        right |= {'word_ids': tokenwise(4, 8), 'rate': 0.15, 'mask_id': MASK_ID, 'vocab_size': V}
    else:
        right |= {'sentinel_ids': SENTINELS, 'eos_id': EOS}
    jax.eval_shape(functools.partial(function, **right))
    with pytest.raises(ValueError, match=message) as caught:
        function(**right | mistake)
    assert '\n' not in str(caught.value)
