"""Attention: properties, then values against float64 numpy and jax.nn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from transformer.functional.attention import (
    MASKED,
    dot_product_attention,
    merge_heads,
    multi_head_attention,
    split_heads,
)

B, T, S, N, K, H, V = 2, 6, 6, 4, 2, 8, 5
KEYS = jax.random.split(jax.random.key(5), B)


def inputs(t=T, s=S, k=K, v=V, dtype=np.float32, seed=0):
    random = np.random.default_rng(seed)
    shapes = (B, t, N, H), (B, s, k, H), (B, s, k, v)
    return [random.normal(size=shape).astype(dtype) for shape in shapes]


def gradients(query, key, value, **arguments):
    def loss(*qkv):
        return (dot_product_attention(*qkv, **arguments) ** 2).sum()

    return jax.grad(loss, (0, 1, 2))(*map(jnp.asarray, (query, key, value)))


def jacobian(query, key, value, **arguments):
    """|d output[t]|/d(key[s], value[s]) of the first row, summed over the rest: [T, S]."""

    def output(key, value):
        return dot_product_attention(query[:1], key[None], value[None], **arguments)[0].sum((1, 2))

    by_key, by_value = jax.jacrev(output, (0, 1))(key[0], value[0])
    return np.abs(by_key).sum((2, 3)) + np.abs(by_value).sum((2, 3))


def reference(query, key, value, mask=True, bias=0.0, scale=None, softcap=None, sinks=None):
    """Equation 1 with every extension, one query and head at a time, in float64."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    shape = (*query.shape[:3:2], query.shape[1], key.shape[1])  # [B, N, T, S]
    mask, bias = np.broadcast_to(mask, shape), np.broadcast_to(np.asarray(bias, np.float64), shape)
    output = np.zeros((*query.shape[:3], value.shape[3]))
    weights, residual = np.zeros(shape), np.full(query.shape[:3], MASKED)
    for b, n, t in np.ndindex(shape[:3]):
        group = n // (query.shape[2] // key.shape[2])
        logits = key[b, :, group] @ query[b, t, n] * (scale or query.shape[3] ** -0.5)
        logits = softcap * np.tanh(logits / softcap) if softcap else logits
        exponentials = np.exp(logits + bias[b, n, t])[mask[b, n, t]]
        total = exponentials.sum() + (np.exp(sinks[n]) if sinks is not None else 0)
        if total > 0:
            weights[b, n, t, mask[b, n, t]] = exponentials / total
            residual[b, t, n] = np.log(total)
        output[b, t, n] = weights[b, n, t] @ value[b, :, group]
    return output, residual, weights


def alibi(slopes, queries, keys):
    """A structured bias, from positions [..., T] and [..., S] to [..., N, T, S]."""
    distance = queries[..., None, :, None] - keys[..., None, None, :]
    return -slopes[:, None, None] * jnp.abs(distance)


def buckets(table, queries, keys):
    """A structured bias that reads a table [distances, N] with one row for each distance."""
    distance = jnp.clip(queries[..., :, None] - keys[..., None, :], -3, 3) + 3
    return jnp.moveaxis(table[distance], -1, -3)


SLOPES = np.array([0.5, 0.25, 0.125, 0.0625], np.float32)
SEGMENTS = np.array([[1, 1, 1, 2, 2, 0], [1, 2, 2, 2, 2, 2]], np.int32)
SAME = (SEGMENTS[:, None, :, None] == SEGMENTS[:, None, None]) & (SEGMENTS > 0)[:, None, None]
DISTANCE = np.arange(T)[:, None] - np.arange(S)
MASK = np.random.default_rng(1).random((B, N, T, S)) < 0.6
BIAS = np.random.default_rng(2).normal(size=(N, T, S))
SINKS = np.array([-1.0, 0.0, 1.0, 3.0])

# name: (arguments of dot_product_attention, arguments of the reference)
FEATURES = {
    'plain': ({}, {}),
    'scale': ({'scale': 0.7}, {'scale': 0.7}),
    'mask': ({'mask': MASK}, {'mask': MASK}),
    'mask of all heads': ({'mask': MASK[:, :1]}, {'mask': MASK[:, :1]}),
    'bias': ({'bias': BIAS}, {'bias': BIAS}),
    'causal': ({'is_causal': True}, {'mask': DISTANCE >= 0}),
    'window': ({'local_window_size': 1}, {'mask': np.abs(DISTANCE) <= 1}),
    'left window': ({'local_window_size': (2, 0)}, {'mask': (DISTANCE >= 0) & (DISTANCE <= 2)}),
    'segments': ({'query_segment_ids': SEGMENTS}, {'mask': SAME}),
    'softcap': ({'softcap': 0.8}, {'softcap': 0.8}),
    'sinks': ({'sinks': SINKS}, {'sinks': SINKS}),
    'alibi': (
        {'bias': (alibi, SLOPES), 'is_causal': True},
        {'bias': -SLOPES[:, None, None] * np.abs(DISTANCE), 'mask': DISTANCE >= 0},
    ),
    'all': (
        {
            'bias': BIAS,
            'mask': MASK,
            'is_causal': True,
            'softcap': 0.8,
            'sinks': SINKS,
            'query_segment_ids': SEGMENTS,
        },
        {
            'bias': BIAS,
            'mask': MASK & SAME & (DISTANCE >= 0),
            'softcap': 0.8,
            'sinks': SINKS,
        },
    ),
}


# Properties.


@pytest.mark.parametrize(
    'arguments',
    [
        {'is_causal': True},
        {'is_causal': True, 'query_segment_ids': np.array([1, 1, 1, 1, 1, 0])},
        {'is_causal': True, 'key_value_seq_lengths': np.array([5])},
        {'is_causal': True, 'mask': np.ones((1, 1, 1, S), bool)},
        {'is_causal': True, 'bias': (alibi, SLOPES)},
        {'is_causal': True, 'query_positions': np.arange(T) + 3},
        {'local_window_size': (2, 0)},
    ],
    ids=lambda arguments: '+'.join(arguments),
)
def test_no_gradient_from_the_future(arguments):
    effect = jacobian(*inputs(), **arguments)
    assert np.all(effect[np.triu_indices(T, 1)] == 0)
    assert np.all(effect[:5, 0][:3] > 0)
    assert np.all(np.diag(effect)[:5] > 0)


def test_window_is_the_band_it_says():
    effect = jacobian(*inputs(), local_window_size=(2, 1))
    np.testing.assert_array_equal(effect > 0, (DISTANCE <= 2) & (DISTANCE >= -1))


def test_permutation_equivariance_without_positions():
    query, key, value = inputs()
    order = np.random.default_rng(3).permutation(T)
    output = dot_product_attention(query, key, value)
    shuffled_queries = dot_product_attention(query[:, order], key, value)
    np.testing.assert_allclose(shuffled_queries, output[:, order], atol=1e-6)
    np.testing.assert_allclose(
        dot_product_attention(query, key[:, order], value[:, order]), output, atol=1e-6
    )


def test_order_of_positions_not_of_slots_decides_causality_window_and_bias():
    query, key, value = inputs()
    order = np.random.default_rng(4).permutation(T)
    arguments = {'is_causal': True, 'local_window_size': (3, 0), 'bias': (alibi, SLOPES)}
    shuffled = dot_product_attention(
        query[:, order], key[:, order], value[:, order], query_positions=order, **arguments
    )
    np.testing.assert_allclose(
        shuffled, dot_product_attention(query, key, value, **arguments)[:, order], atol=1e-6
    )


def test_packed_equals_separate():
    query, key, value = inputs()
    cuts = [slice(0, 2), slice(2, 6)]
    arguments = {'is_causal': True, 'bias': (alibi, SLOPES)}
    segment_ids, positions = np.array([1, 1, 2, 2, 2, 2]), np.array([0, 1, 0, 1, 2, 3])
    packed = {'query_segment_ids': segment_ids, 'query_positions': positions, **arguments}
    outputs = [
        dot_product_attention(query[:, c], key[:, c], value[:, c], **arguments) for c in cuts
    ]
    np.testing.assert_allclose(
        dot_product_attention(query, key, value, **packed), np.concatenate(outputs, 1), atol=1e-6
    )
    separate = [gradients(query[:, c], key[:, c], value[:, c], **arguments) for c in cuts]
    together = gradients(query, key, value, **packed)
    for i in range(3):
        expected = np.concatenate([part[i] for part in separate], 1)
        np.testing.assert_allclose(together[i], expected, atol=1e-5)


def test_padded_batch_equals_rows_alone():
    query, key, value = inputs()
    lengths = np.array([3, 5])
    by_lengths = dot_product_attention(
        query, key, value, query_seq_lengths=lengths, key_value_seq_lengths=lengths, is_causal=True
    )
    ids = (np.arange(T) < lengths[:, None]).astype(np.int32)
    by_segments = dot_product_attention(query, key, value, query_segment_ids=ids, is_causal=True)
    np.testing.assert_array_equal(by_lengths, by_segments)
    for b, length in enumerate(lengths):
        row = [x[b, :length] for x in (query, key, value)]
        np.testing.assert_allclose(
            by_lengths[b, :length], dot_product_attention(*row, is_causal=True), atol=1e-6
        )
        np.testing.assert_array_equal(by_lengths[b, length:], 0)


def test_lengths_cut_the_segments_of_a_packed_row():
    ids, lengths = np.array([1, 1, 2, 2, 2, 2]), np.array([4, 6])
    cut = np.where(np.arange(T) < lengths[:, None], ids, 0)
    arguments = {'query_seq_lengths': lengths, 'key_value_seq_lengths': lengths}
    np.testing.assert_array_equal(
        dot_product_attention(*inputs(), query_segment_ids=ids, **arguments),
        dot_product_attention(*inputs(), query_segment_ids=cut),
    )


@pytest.mark.parametrize('chunk', [1, 3])
def test_a_cache_gives_what_the_whole_sequence_gives(chunk):
    query, key, value = inputs()
    arguments = {'is_causal': True, 'local_window_size': (3, 0), 'bias': (alibi, SLOPES)}
    whole = dot_product_attention(query, key, value, **arguments)
    step = jax.jit(
        lambda query, key, value, query_positions, key_ids: dot_product_attention(
            query,
            key,
            value,
            query_segment_ids=jnp.ones((B, chunk), jnp.int32),
            key_value_segment_ids=key_ids,
            query_positions=query_positions,
            key_value_positions=jnp.arange(8) * key_ids,
            **arguments,
        )
    )
    cache = [np.full((B, 8, *x.shape[2:]), 1e4, np.float32) for x in (key, value)]
    for start in range(0, T, chunk):
        now = slice(start, start + chunk)
        cache[0][:, now], cache[1][:, now] = key[:, now], value[:, now]
        key_ids = np.broadcast_to(np.arange(8) < start + chunk, (B, 8)).astype(np.int32)
        positions = np.broadcast_to(np.arange(T)[now], (B, chunk))
        output = step(query[:, now], *cache, positions, key_ids)
        np.testing.assert_allclose(output, whole[:, now], atol=1e-6)


def test_grouped_heads_equal_repeated_keys():
    query, key, value = inputs()
    repeated = [np.repeat(x, N // K, axis=2) for x in (key, value)]
    np.testing.assert_allclose(
        dot_product_attention(query, key, value, mask=MASK),
        dot_product_attention(query, *repeated, mask=MASK),
        atol=1e-6,
    )
    grouped, plain = gradients(query, key, value), gradients(query, *repeated)
    for mine, other in zip(grouped[1:], plain[1:], strict=True):
        summed = other.reshape(B, S, K, N // K, -1).sum(3)
        np.testing.assert_allclose(mine, summed, atol=1e-5)


def test_adding_a_constant_to_a_row_of_logits_changes_nothing():
    shift = np.random.default_rng(3).normal(size=(B, N, T, 1)).astype(np.float32) * 10
    np.testing.assert_allclose(
        dot_product_attention(*inputs(), bias=shift), dot_product_attention(*inputs()), atol=1e-5
    )


def test_huge_logits_do_not_overflow():
    query, key, value = inputs()
    output = dot_product_attention(query * 1e10, key * 1e10, value)
    best = np.einsum('btkgh,bskh->btkgs', query.reshape(B, T, K, N // K, H), key).argmax(-1)
    expected = np.take_along_axis(value[:, None, :, :, :], best.transpose(0, 1, 3, 2)[..., None], 2)
    np.testing.assert_allclose(
        output.reshape(B, T, K, N // K, V), expected.transpose(0, 1, 3, 2, 4), atol=1e-6
    )


# Queries that may attend to nothing.

BAND = (np.abs(DISTANCE) <= 1) & (np.arange(S) < 3)  # rows 4 and 5 have no key
EMPTY = {
    'mask': {'mask': BAND},
    'bias of -inf': {'bias': np.where(BAND, 0, -np.inf).astype(np.float32)},
    'bias of finfo.min': {'bias': np.where(BAND, 0, np.finfo(np.float32).min)},
    'bias of bfloat16 finfo.min': {'bias': jnp.where(BAND, 0, jnp.finfo(jnp.bfloat16).min)},
    'lengths': {'local_window_size': 1, 'key_value_seq_lengths': np.array([3, 3])},
    'segments': {
        'local_window_size': 1,
        'query_segment_ids': np.ones(T, np.int32),
        'key_value_segment_ids': np.array([1, 1, 1, 0, 0, 0]),
    },
}


@pytest.mark.parametrize('name', EMPTY)
def test_queries_without_keys_are_zero_and_as_if_absent(name):
    query, key, value = inputs()
    output, residual, weights = dot_product_attention(
        query, key, value, return_residual=True, return_weights=True, **EMPTY[name]
    )
    expected = reference(query, key, value, mask=BAND)
    np.testing.assert_array_equal(output[:, 4:], 0)
    np.testing.assert_array_equal(weights[:, :, 4:], 0)
    np.testing.assert_array_equal(residual[:, 4:], np.float32(MASKED))
    for mine, other in zip((output, residual, weights), expected, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)

    with_empty = gradients(query, key, value, **EMPTY[name])
    without = gradients(query[:, :4], key, value, mask=BAND[:4])
    np.testing.assert_array_equal(with_empty[0][:, 4:], 0)
    np.testing.assert_allclose(with_empty[0][:, :4], without[0], atol=1e-6)
    for mine, other in zip(with_empty[1:], without[1:], strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-6)


def test_queries_without_keys_leave_the_bias_parameters_alone():
    query, key, value = inputs()

    def gradient(lengths):
        def loss(slopes):
            return dot_product_attention(
                query, key, value, bias=(alibi, slopes), key_value_seq_lengths=lengths
            ).sum()

        return jax.grad(loss)(SLOPES)

    np.testing.assert_array_equal(gradient(np.array([0, 0])), 0)
    assert np.all(np.isfinite(gradient(np.array([0, 4]))))


def test_no_keys_at_all():
    output = dot_product_attention(*inputs(s=0))
    np.testing.assert_array_equal(output, np.zeros((B, T, N, V)))


def test_a_head_masked_out_whole_is_zero_with_and_without_weights_returned():
    mask = np.ones((B, N, T, S), bool)
    mask[:, 0] = False
    output, weights = dot_product_attention(*inputs(), mask=mask, return_weights=True)
    np.testing.assert_array_equal(output, dot_product_attention(*inputs(), mask=mask))
    np.testing.assert_array_equal(output[:, :, 0], 0)
    np.testing.assert_array_equal(weights[:, 0], 0)
    np.testing.assert_allclose(weights[:, 1:].sum(-1), 1, rtol=1e-6)


def test_finite_contents_of_masked_slots_have_no_influence():
    query, key, value = inputs()
    lengths = np.array([4, 4])
    for x in key, value:
        x[:, 4:] = 1e10
    by_huge = gradients(query, key, value, key_value_seq_lengths=lengths)
    for x in key, value:
        x[:, 4:] = 0
    for mine, other in zip(
        by_huge, gradients(query, key, value, key_value_seq_lengths=lengths), strict=True
    ):
        np.testing.assert_array_equal(mine, other)


# Sinks, softcap, structured bias.


def test_a_sink_is_a_key_without_a_value():
    query, key, value = inputs(k=N)
    extra = np.zeros((B, 1, N, H), np.float32), np.zeros((B, 1, N, V), np.float32)
    wider = [np.concatenate([x, y], 1) for x, y in zip((key, value), extra, strict=True)]
    bias = np.zeros((1, N, 1, S + 1), np.float32)
    bias[0, :, 0, S] = SINKS
    with_sink = dot_product_attention(
        query, key, value, sinks=SINKS, return_residual=True, return_weights=True
    )
    with_key = dot_product_attention(
        query, *wider, bias=bias, return_residual=True, return_weights=True
    )
    for mine, other in zip(with_sink, (*with_key[:2], with_key[2][..., :S]), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


def test_a_query_with_a_sink_and_no_key_is_zero_with_zero_gradients():
    query, key, value = inputs()
    mask = np.zeros((1, 1, T, S), bool)

    def loss(query, key, value, sinks):
        output = dot_product_attention(query, key, value, mask=mask, sinks=sinks)
        return (output + 1).sum()

    output, residual = dot_product_attention(
        query, key, value, mask=mask, sinks=SINKS, return_residual=True
    )
    np.testing.assert_array_equal(output, 0)
    np.testing.assert_allclose(residual, np.broadcast_to(SINKS, residual.shape), atol=1e-6)
    for gradient in jax.grad(loss, (0, 1, 2, 3))(query, key, value, SINKS):
        np.testing.assert_array_equal(gradient, 0)


@pytest.mark.parametrize(
    ('bias_fn', 'params'), [(alibi, SLOPES), (buckets, BIAS[0, :, :4].repeat(2, 0)[:7])]
)
@pytest.mark.parametrize('positions', [None, np.arange(T) * 2, np.array([[1], [5]]) + np.arange(T)])
def test_structured_bias_equals_dense_bias(bias_fn, params, positions):
    query, key, value = inputs()
    params = params.astype(np.float32)
    indices = np.arange(T) if positions is None else positions

    def structured(params):
        bias = bias_fn, params
        return dot_product_attention(query, key, value, bias=bias, query_positions=positions)

    def dense(params):
        return dot_product_attention(query, key, value, bias=bias_fn(params, indices, indices))

    def run(function):
        loss = jax.value_and_grad(lambda params: (function(params) ** 2).sum())
        return function(params), *loss(params)

    results = run(structured), run(dense)
    for mine, other in zip(*results, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)
    assert np.abs(results[0][2]).min() > 0 or bias_fn is buckets
    assert np.abs(results[0][0] - dot_product_attention(query, key, value)).max() > 1e-2


def test_alibi_depends_on_relative_positions_only():
    arguments = {'bias': (alibi, SLOPES), 'is_causal': True}
    shifted = dot_product_attention(*inputs(), query_positions=np.arange(T) + 1000, **arguments)
    np.testing.assert_allclose(shifted, dot_product_attention(*inputs(), **arguments), atol=1e-6)


# Values.


@pytest.mark.parametrize('name', FEATURES)
def test_equals_the_equations_in_float64(name):
    arguments, of_reference = FEATURES[name]
    query, key, value = inputs(dtype=np.float64)
    with jax.enable_x64(True):
        results = dot_product_attention(
            query, key, value, return_residual=True, return_weights=True, **arguments
        )
        assert {x.dtype for x in results} == {np.dtype('float64')}
        results = [np.asarray(x) for x in results]
    for mine, other in zip(results, reference(query, key, value, **of_reference), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-12, atol=1e-14)


def test_gradients_equal_finite_differences_with_every_feature():
    arguments = {**FEATURES['all'][0], 'dropout_rate': 0.3, 'dropout_key': KEYS}
    del arguments['bias'], arguments['sinks']

    def function(query, key, value, slopes, sinks):
        return dot_product_attention(
            query, key, value, bias=(alibi, slopes), sinks=sinks, **arguments
        )

    with jax.enable_x64(True):
        operands = (*inputs(dtype=np.float64), SLOPES.astype(np.float64), SINKS)
        check_grads(jax.jit(function), operands, order=1, eps=1e-4)


def test_gradient_of_a_dense_bias_equals_finite_differences():
    with jax.enable_x64(True):
        query, key, value = inputs(dtype=np.float64)
        function = jax.jit(
            lambda bias: dot_product_attention(query, key, value, bias=bias, mask=MASK)
        )
        check_grads(function, (BIAS,), order=1, eps=1e-4)


LENGTHS = {'query_seq_lengths': np.array([4, 6]), 'key_value_seq_lengths': np.array([3, 7])}


@pytest.mark.parametrize(
    ('arguments', 'sizes'),
    [
        ({}, {}),
        ({'is_causal': True}, {}),
        ({'is_causal': True}, {'s': 9}),
        ({'is_causal': True}, {'t': 8, 's': 3}),
        ({'local_window_size': 2}, {}),
        ({'local_window_size': (3, 1), 'is_causal': True}, {'s': 7}),
        ({'scale': 0.3, 'bias': BIAS[None].astype(np.float32)}, {'k': 1}),
        ({'mask': MASK | np.eye(T, dtype=bool)}, {'k': N}),
        (LENGTHS, {'s': 7}),
        ({'implementation': 'xla'}, {}),
    ],
    ids=str,
)
def test_equals_jax_nn(arguments, sizes):
    arrays = inputs(**{'v': H, **sizes})
    arguments = {
        name: x if np.ndim(x) == 0 or isinstance(x, tuple) else jnp.asarray(x)
        for name, x in arguments.items()
    }
    results = []
    for function in dot_product_attention, jax.nn.dot_product_attention:

        def loss(*qkv, function=function):
            output, residual = function(*qkv, return_residual=True, **arguments)
            return (output**2).sum(), (output, residual)

        value_and_grad = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)
        (_, (output, residual)), gradient = jax.jit(value_and_grad)(*arrays)
        residual = jnp.where(residual < -1e30, 0, residual)  # queries with nothing to attend to
        results.append((output, residual, *gradient))
    for mine, other in zip(*results, strict=True):
        assert mine.shape == other.shape
        assert mine.dtype == other.dtype
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-5)


# Precision.


@pytest.mark.parametrize('dtype', [jnp.bfloat16, jnp.float16])
def test_low_precision_rounds_only_what_it_stores(dtype):
    query, key, value = (jnp.asarray(x, dtype) for x in inputs())
    output, residual, weights = dot_product_attention(
        query, key, value, is_causal=True, return_residual=True, return_weights=True
    )
    assert (output.dtype, residual.dtype, weights.dtype) == (dtype, jnp.float32, jnp.float32)
    expected = reference(query, key, value, mask=DISTANCE >= 0)
    unit = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(np.asarray(output, np.float64), expected[0], rtol=unit, atol=unit)
    np.testing.assert_allclose(residual, expected[1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(weights, expected[2], rtol=1e-5, atol=1e-6)


def test_bfloat16_gradients_are_close_to_float32_and_keep_their_dtype():
    arrays = [jnp.asarray(x, jnp.bfloat16) for x in inputs()]
    low = gradients(*arrays, mask=BAND)
    high = gradients(*(x.astype(jnp.float32) for x in arrays), mask=BAND)
    for mine, other in zip(low, high, strict=True):
        assert mine.dtype == jnp.bfloat16
        np.testing.assert_allclose(mine.astype(np.float32), other, atol=0.02, rtol=0.02)


# Dropout.


def test_dropout_is_unbiased():
    query, key, value = inputs()
    keys = jax.random.split(jax.random.key(1), (4000, B))
    outputs = jax.jit(
        jax.vmap(
            lambda keys: dot_product_attention(
                query, key, value, is_causal=True, dropout_rate=0.4, dropout_key=keys
            )
        )
    )(keys)
    error = outputs.std(0) / np.sqrt(4000)
    difference = np.abs(outputs.mean(0) - dot_product_attention(query, key, value, is_causal=True))
    assert np.all(difference < 5 * error)


def test_dropout_drops_weights_at_the_rate_and_scales_the_rest():
    query, key, _ = inputs(t=64, s=64, k=N)
    value = np.broadcast_to(np.eye(64, dtype=np.float32)[:, None], (B, 64, N, 64))
    output, weights = dot_product_attention(
        query, key, value, dropout_rate=0.3, dropout_key=KEYS, return_weights=True
    )
    dropped = output.transpose(0, 2, 1, 3) / weights  # value is the identity
    keep = np.asarray(dropped > 0)
    np.testing.assert_allclose(dropped, keep / 0.7, rtol=1e-5)
    np.testing.assert_allclose(
        weights, dot_product_attention(query, key, value, return_weights=True)[1]
    )
    assert abs(keep.mean() - 0.7) < 5 * np.sqrt(0.3 * 0.7 / keep.size)
    masks = keep.reshape(B * N, -1)
    agreement = (masks[:, None] == masks[None]).mean(-1)[np.triu_indices(B * N, 1)]
    assert np.all(np.abs(agreement - 0.58) < 5 * np.sqrt(0.58 * 0.42 / 64**2))


def test_dropout_of_a_row_depends_on_its_own_key_only():
    arguments = {'is_causal': True, 'dropout_rate': 0.5}
    whole = dot_product_attention(*inputs(), dropout_key=KEYS, **arguments)
    reversed_rows = dot_product_attention(
        *(x[::-1] for x in inputs()), dropout_key=KEYS[::-1], **arguments
    )
    np.testing.assert_array_equal(reversed_rows[::-1], whole)
    for b in range(B):
        row = [x[b] for x in inputs()]
        np.testing.assert_allclose(
            dot_product_attention(*row, dropout_key=KEYS[b], **arguments), whole[b], atol=1e-6
        )
    # The first queries alone, against the first keys alone.
    part = dot_product_attention(*(x[:, :3] for x in inputs()), dropout_key=KEYS, **arguments)
    np.testing.assert_allclose(part, whole[:, :3], atol=1e-6)


def test_one_dropout_key_gives_equal_rows_different_masks():
    arrays = [np.stack([x[0], x[0]]) for x in inputs()]
    output = dot_product_attention(*arrays, dropout_rate=0.5, dropout_key=KEYS[0])
    assert not np.allclose(output[0], output[1])


def test_traced_dropout_rates_share_a_program():
    run = jax.jit(
        jax.vmap(lambda rate: dot_product_attention(*inputs(), dropout_rate=rate, dropout_key=KEYS))
    )
    outputs = run(np.array([0.0, 0.5, 1.0], np.float32))
    np.testing.assert_allclose(outputs[0], dot_product_attention(*inputs()), atol=1e-6)
    half = dot_product_attention(*inputs(), dropout_rate=0.5, dropout_key=KEYS)
    np.testing.assert_allclose(outputs[1], half, atol=1e-6)
    np.testing.assert_array_equal(outputs[2], 0)


# The interface.


def test_returning_more_changes_nothing():
    arguments = {**FEATURES['all'][0], 'dropout_rate': 0.3, 'dropout_key': KEYS}
    arguments |= {'bias': (alibi, SLOPES)}
    output = dot_product_attention(*inputs(), **arguments)
    with_residual, residual = dot_product_attention(*inputs(), return_residual=True, **arguments)
    with_weights, weights = dot_product_attention(*inputs(), return_weights=True, **arguments)
    everything = dot_product_attention(
        *inputs(), return_residual=True, return_weights=True, **arguments
    )
    for mine in with_residual, with_weights, everything[0]:
        np.testing.assert_array_equal(mine, output)
    np.testing.assert_array_equal(everything[1], residual)
    np.testing.assert_array_equal(everything[2], weights)


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

    together = row(*arrays, MASK, SEGMENTS, KEYS)
    np.testing.assert_allclose(jax.vmap(row)(*arrays, MASK, SEGMENTS, KEYS), together, atol=1e-6)


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
    'implementation': ({'implementation': 'flash'}, "must be one of xla, or None; not 'flash'"),
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


# Multi-head attention.


@pytest.mark.parametrize('cross', [False, True])
@pytest.mark.parametrize('biased', [False, True])
def test_multi_head_attention_is_the_concatenation_of_heads(cross, biased):
    D = 10
    random = np.random.default_rng(0)
    x, memory = random.normal(size=(B, T, D)), random.normal(size=(B, 7, D))
    shapes = (D, N, H), (D, K, H), (D, K, V), (N, V, D)
    weights = [random.normal(size=shape) for shape in shapes]
    biases = [random.normal(size=shape) * biased for shape in (*(s[1:] for s in shapes[:3]), (D,))]
    names = 'b_query', 'b_key', 'b_value', 'b_out'
    source = memory if cross else x
    heads = []
    for n in range(N):
        k = n // (N // K)
        query = x @ weights[0][:, n] + biases[0][n]
        key = source @ weights[1][:, k] + biases[1][k]
        value = source @ weights[2][:, k] + biases[2][k]
        exponentials = np.exp(query @ key.swapaxes(1, 2) / np.sqrt(H))
        heads.append(exponentials / exponentials.sum(-1, keepdims=True) @ value)
    expected = np.concatenate(heads, -1) @ weights[3].reshape(N * V, D) + biases[3]
    with jax.enable_x64(True):
        output = multi_head_attention(
            x,
            memory if cross else None,
            *weights,
            **(dict(zip(names, biases, strict=True)) if biased else {}),
        )
    np.testing.assert_allclose(output, expected, rtol=1e-11, atol=1e-12)


def test_multi_head_attention_hands_arguments_and_results_on():
    random = np.random.default_rng(0)
    x = random.normal(size=(T, 10)).astype(np.float32)
    weights = [random.normal(size=(10, N, H)).astype(np.float32) for _ in range(3)]
    w_out = random.normal(size=(N, H, 10)).astype(np.float32)
    output, probabilities = multi_head_attention(
        x, None, *weights, w_out, is_causal=True, return_weights=True
    )
    assert output.shape == (T, 10)
    np.testing.assert_array_equal(np.triu(probabilities, 1), 0)
    alone = multi_head_attention(x[:3], None, *weights, w_out, is_causal=True)
    np.testing.assert_allclose(alone, output[:3], rtol=1e-4, atol=1e-5)


def test_split_and_merge_name_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match=r'x \[2, 6, 9\] and w \[10, 4, 8\]'):
        split_heads(np.zeros((B, T, 9)), np.zeros((10, N, H)))
    with pytest.raises(ValueError, match=r'x \[2, 6, 4, 7\] and w \[4, 8, 10\]'):
        merge_heads(np.zeros((B, T, N, 7)), np.zeros((N, H, 10)))
