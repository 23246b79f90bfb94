"""Corruption of spans: nothing of a row is lost, and all divisions are equally likely."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from chances import assert_binomial, keys

from transformer.functional.corruption import corrupt_spans, span_lengths
from transformer.functional.dropout import dropout_bits

EOS, SENTINELS = 500, list(range(499, 400, -1))
draw = jax.jit(dropout_bits)


def counts(length, rate, mean_span):
    """How many tokens leave a row, and in how many spans."""
    noise = max(0, min(max(1, round(length * rate)), length - 1))
    return noise, min(max(1, round(noise / mean_span)), noise, length - noise)


@functools.partial(jax.jit, static_argnames=('rate', 'mean_span', 'sentinels'))
def compiled(keys, tokens, weights, rate, mean_span, sentinels):
    return corrupt_spans(
        keys,
        tokens,
        weights,
        rate=rate,
        mean_span=mean_span,
        sentinel_ids=SENTINELS[:sentinels],
        eos_id=EOS,
    )


def corrupt(keys, tokens, weights, rate=0.15, mean_span=3.0, sentinels=99):
    return jax.device_get(compiled(keys, tokens, weights, rate, mean_span, sentinels))


def rows_of_every_length(length, seed=0):
    """Row r has r tokens, none of them 0, and padding."""
    tokens = np.random.default_rng(seed).integers(1, 400, (length + 1, length)).astype(np.int32)
    weights = np.tri(length + 1, length, -1, dtype=np.float32)
    return keys(length + 1, seed), tokens * (weights > 0).astype(np.int32), weights


def as_lists(batch, row):
    """A row's two sides up to eos, both without it."""
    sides = []
    for tokens, segment_ids in (
        ('encoder_tokens', 'encoder_segment_ids'),
        ('targets', 'segment_ids'),
    ):
        side, segments = batch[tokens][row], batch[segment_ids][row]
        size = segments.sum()
        np.testing.assert_array_equal(segments, np.arange(len(segments)) < size)
        np.testing.assert_array_equal(side[size:], 0)
        assert size == 0 or side[size - 1] == EOS
        sides.append(side[: max(size - 1, 0)].tolist())
    return sides


def split_at_sentinels(side):
    """The tokens before each sentinel, and after the last; the sentinels are in their order."""
    parts = [[]]
    for token in side:
        if token in SENTINELS:
            assert token == SENTINELS[len(parts) - 1]
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


SHAPES = [(40, 0.15, 3.0), (40, 0.5, 1.0), (17, 0.85, 2.0), (13, 0.3, 2.0), (2, 0.15, 3.0)]


@pytest.mark.parametrize(('length', 'rate', 'mean_span'), SHAPES)
def test_spans_put_back_in_the_place_of_sentinels_give_the_row(length, rate, mean_span):
    rows = rows_of_every_length(length)
    batch = corrupt(*rows, rate, mean_span)
    encoder_length, target_length = span_lengths(length, rate, mean_span)
    assert batch['encoder_tokens'].shape == (length + 1, encoder_length)
    assert batch['targets'].shape == (length + 1, target_length)
    for size in range(length + 1):
        kept, noise = map(split_at_sentinels, as_lists(batch, size))
        row = rows[1][size, :size].tolist()
        parts = itertools.chain.from_iterable(zip(noise, kept, strict=True))
        assert list(itertools.chain.from_iterable(parts)) == row
        assert noise[0] == []
        assert (sum(map(len, noise)), len(noise) - 1) == counts(size, rate, mean_span)
        if size >= 2:
            assert all(kept[:-1])
            assert all(noise[1:])
            assert kept[-1] == []  # the last token leaves
    assert not batch['segment_ids'][:2].any()  # of no token, and of one
    assert batch['encoder_segment_ids'][:2].sum() == 2  # that one, and eos
    assert batch['encoder_segment_ids'][-1].all()  # no padding but the row's
    assert batch['segment_ids'][-1].all()


def test_the_decoder_reads_the_targets_one_step_late():
    batch = corrupt(*rows_of_every_length(40))
    segment_ids = batch['segment_ids']
    previous = np.pad(batch['targets'][:, :-1], ((0, 0), (1, 0)), constant_values=EOS)
    np.testing.assert_array_equal(batch['tokens'], previous * segment_ids)
    np.testing.assert_array_equal(batch['weights'], segment_ids)
    assert {a.dtype.name for a in batch.values()} == {'int32', 'float32'}


def test_spans_are_what_numpy_makes_of_the_same_bits():
    length, rate, mean_span = 17, 0.4, 2.0
    rows = rows_of_every_length(length, 5)
    batch = corrupt(*rows, rate, mean_span)
    bits = [np.asarray(draw(rows[0][:, None], i, np.arange(length))) for i in range(2)]
    for size in range(2, length + 1):
        noise, spans = counts(size, rate, mean_span)
        lengths = []
        for total, gaps in (size - noise, bits[0][size]), (noise, bits[1][size]):
            cuts = np.sort(np.argsort(gaps[: total - 1])[: spans - 1]) + 1
            lengths.append(np.diff(np.concatenate([[0], cuts, [total]])))
        kept, gone, row = [], [], rows[1][size].tolist()
        for i, (stay, leave) in enumerate(zip(*lengths, strict=True)):
            kept += row[:stay] + [SENTINELS[i]]
            gone += [SENTINELS[i]] + row[stay : stay + leave]
            row = row[stay + leave :]
        assert as_lists(batch, size) == [kept, gone]


def test_all_divisions_into_spans_are_equally_likely():
    tokens = np.broadcast_to(np.arange(1, 13, dtype=np.int32), (20000, 12))
    batch = corrupt(keys(20000), tokens, np.ones_like(tokens, np.float32), 0.5, 2.0)
    # 6 tokens stay and 6 leave, both in 3 parts: 10 divisions each, 100 pairs.
    found, frequencies = np.unique(batch['encoder_tokens'], axis=0, return_counts=True)
    assert len(found) == 100
    for frequency in frequencies:
        assert_binomial(frequency, 20000, 1 / 100)


def test_spans_of_a_row_follow_from_its_key_and_its_tokens_alone():
    rows = rows_of_every_length(40)
    batch = corrupt(*rows)
    for part in np.s_[25:27], np.s_[::-1]:
        of_part = corrupt(*(a[part] for a in rows))
        jax.tree.map(np.testing.assert_array_equal, of_part, {k: a[part] for k, a in batch.items()})
    alone = corrupt(rows[0][25:26], rows[1][25:26, :25], rows[2][25:26, :25])
    for name, array in alone.items():  # padding in the row is padding in what is made of it
        expected = np.zeros_like(batch[name][25])
        expected[: array.shape[1]] = array[0]
        np.testing.assert_array_equal(batch[name][25], expected)


def test_trials_may_have_keys_of_their_own():
    rows = rows_of_every_length(17)
    trials = jnp.stack([rows[0], keys(18, 1)])
    batch = jax.vmap(lambda keys: compiled(keys, *rows[1:], 0.85, 2.0, 99))(trials)
    for i in range(2):
        expected = corrupt(trials[i], *rows[1:], 0.85, 2.0)
        jax.tree.map(np.testing.assert_array_equal, {k: a[i] for k, a in batch.items()}, expected)
    assert (batch['targets'][0] != batch['targets'][1]).any()


def test_a_target_keeps_the_weight_of_its_token():
    rows = keys(8), np.broadcast_to(np.arange(1, 41, dtype=np.int32), (8, 40))
    weights = np.broadcast_to((np.arange(40) % 4 / 2).astype(np.float32), (8, 40))
    batch = corrupt(*rows, weights, 0.5, 2.0)
    targets = batch['targets']
    assert batch['segment_ids'].all()  # a weight of 0 inside the row is no padding
    expected = np.where(targets <= 40, weights[0][np.minimum(targets, 40) - 1], 1)
    np.testing.assert_array_equal(batch['weights'], expected)


def test_lengths_are_those_of_t5():
    assert span_lengths(568, 0.15, 3.0) == (512, 114)
    assert span_lengths(568) == (512, 114)
    assert span_lengths(2) == (3, 3)


def test_as_many_sentinels_as_spans_are_enough():
    rows = rows_of_every_length(13)
    few = corrupt(*rows, 0.3, 2.0, sentinels=2)
    jax.tree.map(np.testing.assert_array_equal, few, corrupt(*rows, 0.3, 2.0))
    with pytest.raises(ValueError, match=r'rows of 13 tokens have 2 spans.* got 1 sentinel_ids'):
        corrupt(*rows, 0.3, 2.0, sentinels=1)
