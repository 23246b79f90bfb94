"""Sums over chunks of tokens: the values and gradients of the whole, and the memory of a part."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.functional import cross_entropy, sum_over_chunks, weighted_sum

N, D, V = 24, 8, 50
RNG = np.random.default_rng(0)
PARAMS = {'table': jnp.float32(RNG.normal(size=(V, D))), 'bias': jnp.float32(RNG.normal(size=V))}
FEATURES = jnp.float32(RNG.normal(size=(N, D)))
LABELS = jnp.int32(RNG.integers(0, V, N)), jnp.float32(RNG.random(N) > 0.3)
NUMBERS = {'smoothing': jnp.float32(0.1)}


def sums(params, features, labels, numbers):
    targets, weights = labels
    logits = features @ params['table'].T + params['bias']
    losses = cross_entropy(logits, targets, label_smoothing=numbers['smoothing'])
    total, weight = weighted_sum(losses, weights)
    return total, {'weight': weight, 'largest': logits.max(axis=-1).sum()}


def whole(params, features, numbers=NUMBERS):
    return sums(params, features, LABELS, numbers)


def chunked(params, features, numbers=NUMBERS, size=4):
    return sum_over_chunks(sums, size, params, features, LABELS, numbers)


def assert_close(got, expected, **tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), got, expected)


def gradients(function, power=1):
    def objective(params, features):
        return 3.0 * function(params, features)[0] ** power

    return jax.jit(jax.grad(objective, argnums=(0, 1)))(PARAMS, FEATURES)


@pytest.mark.parametrize('size', [1, 4, N])
def test_values_and_gradients_are_those_of_the_whole(size):
    part = functools.partial(chunked, size=size)
    assert_close(jax.jit(part)(PARAMS, FEATURES), whole(PARAMS, FEATURES), rtol=1e-5)
    assert_close(gradients(part, 2), gradients(whole, 2), rtol=2e-5, atol=1e-3)


def test_further_sums_have_no_gradient():
    grad = jax.grad(lambda x: chunked(PARAMS, x)[1]['largest'])(FEATURES)
    assert not grad.any()


def test_second_derivatives_are_those_of_the_whole():
    def curvature(function):
        def slope(x):
            return jax.grad(lambda x: function(PARAMS, x)[0])(x).sum()

        return jax.jit(jax.grad(slope))(FEATURES)

    assert_close(curvature(chunked), curvature(whole), rtol=1e-4, atol=1e-5)


def test_trials_side_by_side_have_numbers_of_their_own():
    rates = jnp.array([0.0, 0.3])

    def grad(function, rate):
        return jax.grad(lambda x: function(PARAMS, x, {'smoothing': rate})[0])(FEATURES)

    together = jax.jit(jax.vmap(functools.partial(grad, chunked)))(rates)
    for i, rate in enumerate(rates):
        np.testing.assert_allclose(together[i], grad(whole, rate), rtol=1e-5, atol=1e-6)


def test_narrow_gradients_are_summed_in_float32():
    """Each of 24 rows adds 1 to a gradient of 256: in bfloat16 that would stay 256."""

    def count(params, features, labels, numbers):
        return (params['w'] * features.sum()).astype(jnp.float32), {}

    features = jnp.ones((N, 1), jnp.bfloat16).at[0].set(256)

    def objective(params):
        return sum_over_chunks(count, 1, params, features, (), {})[0]

    assert float(jax.grad(objective)({'w': jnp.bfloat16(1)})['w']) == 280


def test_no_array_has_the_logits_of_all_tokens():
    text = str(jax.make_jaxpr(jax.grad(lambda x: chunked(PARAMS, x)[0]))(FEATURES))
    assert f'f32[4,{V}]' in text
    assert f'f32[{N},{V}]' not in text
    assert f'[6,4,{V}]' not in text  # nor those of all chunks together


def test_a_chunk_must_divide_the_tokens():
    with pytest.raises(ValueError, match='chunk of 5 does not divide 24 tokens'):
        chunked(PARAMS, FEATURES, size=5)
