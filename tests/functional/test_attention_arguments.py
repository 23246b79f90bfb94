"""Attention: dropout of its weights, what it returns, and the mistakes it names."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import (
    FEATURES,
    KEYS,
    MASK,
    SEGMENTS,
    SLOPES,
    B,
    H,
    K,
    N,
    S,
    T,
    V,
    alibi,
    compiled,
    inputs,
)

from transformer.functional.attention import (
    dot_product_attention,
)

# Dropout.


def test_dropout_is_unbiased():
    query, key, value = inputs()
    keys = jax.random.split(jax.random.key(1), (1000, B))
    outputs = jax.jit(
        jax.vmap(
            lambda keys: dot_product_attention(
                query, key, value, is_causal=True, dropout_rate=0.4, dropout_key=keys
            )
        )
    )(keys)
    error = outputs.std(0) / np.sqrt(1000)
    difference = np.abs(outputs.mean(0) - dot_product_attention(query, key, value, is_causal=True))
    assert np.all(difference < 5 * error)


def test_dropout_drops_weights_at_the_rate_and_scales_the_rest():
    query, key, _ = inputs(t=64, s=64, k=N)
    value = np.broadcast_to(np.eye(64, dtype=np.float32)[:, None], (B, 64, N, 64))
    output, weights = compiled(
        query, key, value, dropout_rate=0.3, dropout_key=KEYS, return_weights=True
    )
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    dropped = np.asarray(output.transpose(0, 2, 1, 3) / weights)  # value is the identity
    keep = dropped > 0
    np.testing.assert_allclose(dropped, keep / 0.7, rtol=1e-5)
    assert abs(keep.mean() - 0.7) < 5 * np.sqrt(0.3 * 0.7 / keep.size)
    masks = keep.reshape(B * N, -1)
    agreement = (masks[:, None] == masks[None]).mean(-1)[np.triu_indices(B * N, 1)]
    assert np.all(np.abs(agreement - 0.58) < 5 * np.sqrt(0.58 * 0.42 / 64**2))


def test_dropout_of_a_row_depends_on_its_own_key_only():
    arguments = {'is_causal': True, 'dropout_rate': 0.5}
    whole = compiled(*inputs(), dropout_key=KEYS, **arguments)
    reversed_rows = compiled(*(x[::-1] for x in inputs()), dropout_key=KEYS[::-1], **arguments)
    np.testing.assert_array_equal(reversed_rows[::-1], whole)
    for b in range(B):
        row = [x[b] for x in inputs()]
        np.testing.assert_allclose(
            compiled(*row, dropout_key=KEYS[b], **arguments), whole[b], atol=1e-6
        )
    # The first queries alone, against the first keys alone.
    part = compiled(*(x[:, :3] for x in inputs()), dropout_key=KEYS, **arguments)
    np.testing.assert_allclose(part, whole[:, :3], atol=1e-6)


def test_one_dropout_key_gives_equal_rows_different_masks():
    arrays = [np.stack([x[0], x[0]]) for x in inputs()]
    output = compiled(*arrays, dropout_rate=0.5, dropout_key=KEYS[0])
    assert not np.allclose(output[0], output[1])


def test_traced_dropout_rates_share_a_program():
    run = jax.jit(
        jax.vmap(lambda rate: dot_product_attention(*inputs(), dropout_rate=rate, dropout_key=KEYS))
    )
    outputs = run(np.array([0.0, 0.5, 1.0], np.float32))
    np.testing.assert_allclose(outputs[0], dot_product_attention(*inputs()), atol=1e-6)
    half = compiled(*inputs(), dropout_rate=0.5, dropout_key=KEYS)
    np.testing.assert_allclose(outputs[1], half, atol=1e-6)
    np.testing.assert_array_equal(outputs[2], 0)


# The interface.


def test_returning_more_changes_nothing():
    arguments = {**FEATURES['all'][0], 'dropout_rate': 0.3, 'dropout_key': KEYS}
    arguments |= {'bias': (alibi, SLOPES)}
    output = compiled(*inputs(), **arguments)
    with_residual = compiled(*inputs(), return_residual=True, **arguments)
    with_weights = compiled(*inputs(), return_weights=True, **arguments)
    everything = compiled(*inputs(), return_residual=True, return_weights=True, **arguments)
    for mine, other in (
        (with_residual[0], output),
        (with_weights[0], output),
        (everything[0], output),
        (everything[1], with_residual[1]),
        (everything[2], with_weights[1]),
    ):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


def test_without_a_batch_axis():
    arguments = {'is_causal': True, 'return_residual': True, 'return_weights': True}
    whole = dot_product_attention(*inputs(), query_segment_ids=SEGMENTS, mask=MASK, **arguments)
    row = [x[1] for x in inputs()]
    alone = dot_product_attention(*row, query_segment_ids=SEGMENTS[1], mask=MASK[1], **arguments)
    for mine, other in zip(alone, whole, strict=True):
        np.testing.assert_allclose(mine, other[1], atol=1e-6)


def test_vmap_equals_the_batch():
    arrays = inputs()

    def row(query, key, value, mask, segment_ids, dropout_key):
        return dot_product_attention(
            query,
            key,
            value,
            mask=mask,
            query_segment_ids=segment_ids,
            dropout_rate=0.2,
            dropout_key=dropout_key,
        )

    together = jax.jit(row)(*arrays, MASK, SEGMENTS, KEYS)
    by_row = jax.jit(jax.vmap(row))(*arrays, MASK, SEGMENTS, KEYS)
    np.testing.assert_allclose(by_row, together, atol=1e-6)


BAD = {
    'query and key widths': (
        {'query': np.zeros((B, T, N, 7), np.float32)},
        r'query \[2, 6, 4, 7\]',
    ),
    'lengths of key and value': ({'value': np.zeros((B, 5, K, V), np.float32)}, r'value \[2, 5, 2'),
    'batches': ({'query': np.zeros((3, T, N, H), np.float32)}, r'query \[3, 6, 4, 8\]'),
    'heads': ({'query': np.zeros((B, T, 3, H), np.float32)}, 'multiple'),
    'ranks': ({'query': np.zeros((T, N, H), np.float32)}, 'must all be BTNH or all TNH'),
    'dtypes': ({'query': jnp.zeros((B, T, N, H), jnp.bfloat16)}, 'query bfloat16, key float32'),
    'integers': ({n: np.zeros((1, 1, 1, 1), int) for n in ('query', 'key', 'value')}, 'floating'),
    'float mask': ({'mask': np.zeros((T, S), np.float32)}, 'pass an additive mask as bias'),
    'integer mask': ({'mask': np.ones((B, 1, 1, S), np.int32)}, 'mask must be boolean'),
    'mask shape': ({'mask': np.ones((B, S), bool)}, r'mask \[2, 6\] does not broadcast'),
    'mask rank': ({'mask': np.ones((1, 1, 1, T, S), bool)}, r'mask \[1, 1, 1, 6, 6\] does not'),
    'boolean bias': ({'bias': np.ones((T, S), bool)}, 'pass a boolean array as mask'),
    'bias shape': ({'bias': np.zeros((T, 5), np.float32)}, r'bias \[6, 5\] does not broadcast'),
    'bias_fn': ({'bias': (lambda *_: jnp.zeros((5, T, S)), None)}, r'bias \[5, 6, 6\] does not'),
    'sinks': ({'sinks': np.zeros(3)}, r'sinks must be one logit a query head, \[4\]'),
    'softcap': ({'softcap': 0.0}, 'softcap must be positive'),
    'window': ({'local_window_size': -1}, 'none negative; not -1'),
    'open window': ({'local_window_size': (3, None)}, r'none negative; not \(3, None\)'),
    'three windows': ({'local_window_size': (1, 2, 3)}, 'local_window_size must be'),
    'keys without queries': ({'key_value_segment_ids': SEGMENTS}, 'needs query_segment_ids'),
    'segment shape': (
        {'query_segment_ids': np.ones((B, 5), int)},
        r'\[6\] or \[1, 6\] or \[2, 6\]',
    ),
    'float positions': ({'query_positions': np.zeros(T)}, 'query_positions must be integers'),
    'lengths': ({'key_value_seq_lengths': np.ones(3, int)}, r'key_value_seq_lengths must .* \[2\]'),
    'no dropout key': ({'dropout_rate': 0.1}, 'needs a key'),
    'dropout rate': ({'dropout_rate': 2.0, 'dropout_key': KEYS}, 'between 0 and 1, not 2.0'),
    'dropout keys': ({'dropout_rate': 0.1, 'dropout_key': KEYS[:1]}, 'one for each of 2 rows'),
    'implementation': (
        {'implementation': 'flash'},
        "must be one of blockwise, cudnn, pallas, xla, or None; not 'flash'",
    ),
}


@pytest.mark.parametrize('name', BAD)
def test_mistakes_are_named(name):
    changes, message = BAD[name]
    arguments = dict(zip(('query', 'key', 'value'), inputs(), strict=True)) | changes
    with pytest.raises(ValueError, match=message):
        dot_product_attention(**arguments)


@pytest.mark.parametrize('name', ['segment_ids', 'positions'])
def test_keys_of_another_length_need_their_own_ids(name):
    with pytest.raises(ValueError, match=f'needs key_value_{name}: there are 6 queries, 7 keys'):
        dot_product_attention(*inputs(s=7), **{f'query_{name}': np.arange(T)})
