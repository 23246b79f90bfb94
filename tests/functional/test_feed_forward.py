"""The feed-forward network: position-wise, and equal to its equation."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from transformer.functional.activations import relu
from transformer.functional.feed_forward import feed_forward, gated_feed_forward

D, F = 4, 6
plain = jax.jit(feed_forward, static_argnames='activation')
gated = jax.jit(gated_feed_forward, static_argnames='activation')


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


X = normal(0, 2, 3, D)
W_GATE, W_UP, W_DOWN = normal(1, D, F), normal(2, D, F), normal(3, F, D)
B_GATE, B_UP, B_DOWN = normal(4, F), normal(5, F), normal(6, D)


def erf_gelu(x):
    return x * 0.5 * (1 + np.asarray(jax.lax.erf(x / np.sqrt(2))))


def test_feed_forward_is_its_equation():
    with jax.enable_x64(True):
        expected = erf_gelu(X @ W_UP + B_UP) @ W_DOWN + B_DOWN
        y = plain(X, W_UP, W_DOWN, B_UP, B_DOWN)
        np.testing.assert_allclose(y, expected, atol=1e-12)
        y = plain(X, W_UP, W_DOWN, activation=relu)
        np.testing.assert_allclose(y, np.maximum(X @ W_UP, 0) @ W_DOWN, atol=1e-12)


def test_gated_feed_forward_is_its_equation():
    gate = X @ W_GATE + B_GATE
    expected = (gate / (1 + np.exp(-gate)) * (X @ W_UP + B_UP)) @ W_DOWN + B_DOWN
    with jax.enable_x64(True):
        y = gated(X, W_GATE, W_UP, W_DOWN, B_GATE, B_UP, B_DOWN)
        np.testing.assert_allclose(y, expected, atol=1e-12)
        y = gated(X, W_GATE, W_UP, W_DOWN, activation=relu)
        expected = (np.maximum(X @ W_GATE, 0) * (X @ W_UP)) @ W_DOWN
        np.testing.assert_allclose(y, expected, atol=1e-12)


@pytest.mark.parametrize(
    'network',
    [
        partial(feed_forward, w_up=W_UP, w_down=W_DOWN, b_up=B_UP, b_down=B_DOWN),
        partial(gated_feed_forward, w_gate=W_GATE, w_up=W_UP, w_down=W_DOWN),
    ],
)
def test_a_position_sees_only_itself(network):
    jacobian = jax.jit(jax.jacobian(network))(X[0].astype(np.float32))  # [T, D, T, D]
    for t in range(3):
        for s in range(3):
            assert (np.abs(jacobian[t, :, s]).max() > 0) == (t == s)


def test_gradients_equal_finite_differences():
    with jax.enable_x64(True):
        arguments = (X[0], W_UP, W_DOWN, B_UP, B_DOWN)
        check_grads(plain, arguments, order=1, modes=['rev'], atol=1e-6, rtol=1e-6)
        arguments = (X[0], W_GATE, W_UP, W_DOWN, B_GATE, B_UP, B_DOWN)
        check_grads(gated, arguments, order=1, modes=['rev'], atol=1e-6, rtol=1e-6)


def test_bfloat16_comes_out_as_bfloat16():
    x, w_gate, w_up, w_down = (jnp.asarray(a, jnp.bfloat16) for a in (X, W_GATE, W_UP, W_DOWN))
    for y in plain(x, w_up, w_down), gated(x, w_gate, w_up, w_down):
        assert y.dtype == jnp.bfloat16
        assert y.shape == (2, 3, D)
