"""Sums over chunks of tokens: the values and gradients of the whole, and the memory of a part."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.functional import cross_entropy, sum_over_chunks, weighted_sum
from transformer.functional.chunking import CPU_SLICE

N, D, V = 24, 8, 50
RNG = np.random.default_rng(0)
FEATURES, TABLE = jnp.float32(RNG.normal(size=(N, D))), jnp.float32(RNG.normal(size=(V, D)))
PARAMS = {'bias': jnp.float32(RNG.normal(size=V))}
LABELS = jnp.int32(RNG.integers(0, V, N)), jnp.float32(RNG.random(N) > 0.3)
NUMBERS = {'smoothing': jnp.float32(0.1)}


def sums(products, params, labels, numbers):
    targets, weights = labels
    logits = products + params['bias']
    losses = cross_entropy(logits, targets, label_smoothing=numbers['smoothing'])
    total, weight = weighted_sum(losses, weights)
    return total, {'weight': weight, 'largest': logits.max(axis=-1).sum()}


def whole(features, table, params, numbers=NUMBERS):
    return sums(features @ table.T, params, LABELS, numbers)


def chunked(features, table, params, numbers=NUMBERS, size=4):
    return sum_over_chunks(sums, size, features, table, params, LABELS, numbers)


def assert_close(got, expected, **tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), got, expected)


def gradients(function, power=1):
    def objective(*arguments):
        return 3.0 * function(*arguments)[0] ** power

    return jax.jit(jax.grad(objective, argnums=(0, 1, 2)))(FEATURES, TABLE, PARAMS)


@pytest.mark.parametrize('size', [1, 4, N])
def test_values_and_gradients_are_those_of_the_whole(size):
    part = functools.partial(chunked, size=size)
    arguments = FEATURES, TABLE, PARAMS
    assert_close(jax.jit(part)(*arguments), whole(*arguments), rtol=1e-5)
    assert_close(gradients(part, 2), gradients(whole, 2), rtol=2e-5, atol=1e-3)


@pytest.mark.parametrize('entries', [1, 25 * D, 32 * D])  # slices of 1, 25, and 32 and 18 rows
def test_the_table_gradient_by_slices_is_that_of_the_whole(entries, monkeypatch):
    monkeypatch.setattr('transformer.functional.chunking.CPU_SLICE', entries)
    assert_close(gradients(chunked), gradients(whole), rtol=2e-5, atol=1e-5)


def test_further_sums_have_no_gradient():
    grad = jax.grad(lambda x: chunked(x, TABLE, PARAMS)[1]['largest'])(FEATURES)
    assert not grad.any()


def test_second_derivatives_are_those_of_the_whole():
    def curvature(function):
        def slope(x):
            return jax.grad(lambda x: function(x, TABLE, PARAMS)[0])(x).sum()

        return jax.jit(jax.grad(slope))(FEATURES)

    assert_close(curvature(chunked), curvature(whole), rtol=1e-4, atol=1e-5)


def test_trials_side_by_side_have_numbers_of_their_own():
    rates = jnp.array([0.0, 0.3])

    def grad(function, rate):
        numbers = {'smoothing': rate}
        return jax.grad(lambda x: function(x, TABLE, PARAMS, numbers)[0])(FEATURES)

    together = jax.jit(jax.vmap(functools.partial(grad, chunked)))(rates)
    for i, rate in enumerate(rates):
        np.testing.assert_allclose(together[i], grad(whole, rate), rtol=1e-5, atol=1e-6)


def test_narrow_gradients_are_summed_in_float32():
    """Each of 24 rows adds 1 to a gradient of 256: in bfloat16 that would stay 256."""

    def total(products, params, labels, numbers):
        return (params['w'] * products.sum()).astype(jnp.float32), {}

    features = jnp.ones((N, 1), jnp.bfloat16).at[0].set(256)
    one = jnp.ones((1, 1), jnp.bfloat16)

    def objective(table, params):
        return sum_over_chunks(total, 1, features, table, params, (), {})[0]

    grads = jax.grad(objective, argnums=(0, 1))(one, {'w': jnp.bfloat16(1)})
    assert (float(grads[0].item()), float(grads[1]['w'])) == (280, 280)


def test_no_array_has_the_logits_of_all_tokens():
    text = str(jax.make_jaxpr(jax.grad(lambda x: chunked(x, TABLE, PARAMS)[0]))(FEATURES))
    assert f'f32[4,{V}]' in text
    assert f'f32[{N},{V}]' not in text
    assert f'[6,4,{V}]' not in text  # nor those of all chunks together


def test_memory_is_that_of_one_chunk_and_of_a_slice_of_the_table_gradient():
    tokens, vocab, width, size = 256, 2**15, 256, 32
    features = jax.ShapeDtypeStruct((tokens, width), jnp.float32)
    table = jax.ShapeDtypeStruct((vocab, width), jnp.float32)
    targets = jnp.zeros(tokens, jnp.int32)

    def loss(features, table):
        def total(products, params, labels, numbers):
            return cross_entropy(products, labels).sum(), None

        return sum_over_chunks(total, size, features, table, None, targets, None)[0]

    step = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(features, table).compile()
    logits = 4 * size * vocab  # bytes, 4 MiB; the gradient of the table, 32 MiB, is an output
    most = 2 * logits + 1.5 * 4 * CPU_SLICE  # the logits and their gradient, a slice and its factor
    assert step.memory_analysis().temp_size_in_bytes < most


def test_a_chunk_must_divide_the_tokens():
    with pytest.raises(ValueError, match='chunk of 5 does not divide 24 tokens'):
        chunked(FEATURES, TABLE, PARAMS, size=5)
