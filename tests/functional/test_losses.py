"""Losses: values and gradients in closed form, and tokens that do not count."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.functional.losses import correct_predictions, cross_entropy, weighted_sum

V = 7
per_token = jax.jit(cross_entropy, static_argnames=('label_smoothing', 'z_loss'))


@jax.jit
def value_and_gradient(logits, targets, weights, label_smoothing=0.0, z_loss=0.0):
    """Of the weighted sum; the rates are traced: one program for all of them."""

    def total(logits):
        losses = cross_entropy(logits, targets, label_smoothing=label_smoothing, z_loss=z_loss)
        return weighted_sum(losses, weights)[0]

    return jax.value_and_grad(total)(logits)


def batch(seed=0, scale=3.0):
    rng = np.random.default_rng(seed)
    logits = (scale * rng.standard_normal((3, 5, V))).astype(np.float32)
    weights = rng.uniform(size=(3, 5)).astype(np.float32)
    return logits, rng.integers(0, V, (3, 5)), weights


def log_softmax64(logits):
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def expected_losses(logits, targets, smoothing, z_loss):
    """Cross entropy with the smoothed distribution, plus the z-loss."""
    wanted = (1 - smoothing) * np.eye(V)[targets] + smoothing / V
    log_z = np.log(np.exp(np.asarray(logits, np.float64)).sum(-1))
    return -(wanted * log_softmax64(logits)).sum(-1) + z_loss * log_z**2


def expected_gradient(logits, targets, weights, smoothing, z_loss):
    wanted = (1 - smoothing) * np.eye(V)[targets] + smoothing / V
    log_z = np.log(np.exp(np.asarray(logits, np.float64)).sum(-1, keepdims=True))
    probabilities = np.exp(log_softmax64(logits))
    return weights[..., None] * (probabilities * (1 + 2 * z_loss * log_z) - wanted)


@pytest.mark.parametrize(('smoothing', 'z_loss'), [(0.0, 0.0), (0.1, 0.0), (0.0, 0.02), (1, 0.3)])
def test_losses_and_gradients_equal_the_closed_form(smoothing, z_loss):
    logits, targets, weights = batch()
    losses = per_token(logits, targets, label_smoothing=smoothing, z_loss=z_loss)
    assert losses.dtype == jnp.float32
    expected = expected_losses(logits, targets, smoothing, z_loss)
    np.testing.assert_allclose(losses, expected, rtol=1e-6, atol=1e-6)
    total, gradient = value_and_gradient(logits, targets, weights, smoothing, z_loss)
    np.testing.assert_allclose(total, (weights * expected).sum(), rtol=1e-6)
    expected = expected_gradient(logits, targets, weights, smoothing, z_loss)
    np.testing.assert_allclose(gradient, expected, atol=1e-6)
    with jax.enable_x64(True):
        total, gradient = value_and_gradient(
            logits.astype(np.float64), targets, weights, smoothing, z_loss
        )
        assert total.dtype == gradient.dtype == jnp.float64
        np.testing.assert_allclose(gradient, expected, atol=1e-12)


def test_smoothing_and_weights_have_the_values_of_torch():
    logits = jnp.array([[2.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]])
    targets, weights = jnp.array([0, 1, 3]), jnp.array([1, 1, 0])
    for smoothing, mean in (0.0, 0.542211), (0.1, 0.654711):
        losses = per_token(logits, targets, label_smoothing=smoothing)
        total, weight = weighted_sum(losses, weights)
        assert weight == 2
        assert total / weight == pytest.approx(mean, abs=1e-6)


def test_rates_have_gradients_and_may_differ_by_trial():
    logits, targets, _ = batch()

    def total(smoothing, z_loss):
        return cross_entropy(logits, targets, label_smoothing=smoothing, z_loss=z_loss).sum()

    rates = np.array([0.0, 0.1, 0.3], np.float32), np.array([0.0, 0.01, 0.1], np.float32)
    totals = jax.jit(jax.vmap(total))(*rates)
    for i, (smoothing, z_loss) in enumerate(zip(*rates, strict=True)):
        expected = expected_losses(logits, targets, smoothing, z_loss).sum()
        np.testing.assert_allclose(totals[i], expected, rtol=1e-6)
    slope = jax.jit(jax.grad(total))(0.1, 0.0)
    of_targets = np.take_along_axis(log_softmax64(logits), targets[..., None], -1)
    expected = (of_targets[..., 0] - log_softmax64(logits).mean(-1)).sum()
    np.testing.assert_allclose(slope, expected, rtol=1e-5)


def test_python_zeros_cost_nothing():
    logits, targets, _ = batch()

    def equations(**rates):
        return len(jax.make_jaxpr(lambda x: cross_entropy(x, targets, **rates))(logits).eqns)

    assert equations(label_smoothing=0, z_loss=0.0) == equations()
    assert equations(label_smoothing=0.1) > equations()
    assert equations(z_loss=0.1) > equations()


@pytest.mark.parametrize('bad', [-1, -100, V, 2**31 - 1])
def test_an_id_outside_the_vocabulary_is_nan_and_counts_for_nothing_at_weight_zero(bad):
    logits, targets, weights = batch()
    targets[1, 2] = bad
    losses = per_token(logits, targets)
    np.testing.assert_array_equal(np.argwhere(np.isnan(losses)), [[1, 2]])
    assert np.isnan(value_and_gradient(logits, targets, weights)[0])
    weights[1, 2] = 0
    total, gradient = value_and_gradient(logits, targets, weights)
    kept = weights > 0
    expected = expected_losses(logits[kept], targets[kept], 0, 0)
    np.testing.assert_allclose(total, (weights[kept] * expected).sum(), rtol=1e-6)
    np.testing.assert_array_equal(gradient[1, 2], 0)
    expected = expected_gradient(logits[kept], targets[kept], weights[kept], 0, 0)
    np.testing.assert_allclose(gradient[kept], expected, atol=1e-6)


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('smoothing', [0.0, 0.1])
def test_logits_that_are_not_finite_count_for_nothing_at_weight_zero(bad, smoothing):
    logits, targets, weights = batch()
    weights[0, 3] = 0
    expected = value_and_gradient(logits, targets, weights, smoothing, 0.01)
    logits[0, 3] = bad
    total, gradient = value_and_gradient(logits, targets, weights, smoothing, 0.01)
    np.testing.assert_array_equal(total, expected[0])
    np.testing.assert_array_equal(gradient, expected[1])
    np.testing.assert_array_equal(gradient[0, 3], 0)


@pytest.mark.parametrize('dtype', [jnp.bfloat16, jnp.float16])
def test_low_precision_logits_are_summed_in_float32(dtype):
    logits, targets, weights = batch()
    logits = logits.astype(dtype)
    total, gradient = value_and_gradient(logits, targets, weights, 0.1, 0.01)
    wide_total, wide_gradient = value_and_gradient(
        logits.astype(np.float32), targets, weights, 0.1, 0.01
    )
    assert total.dtype == jnp.float32
    assert total == wide_total
    assert gradient.dtype == dtype
    np.testing.assert_array_equal(gradient, wide_gradient.astype(dtype))


def test_large_logits_neither_overflow_nor_lose_digits():
    logits = np.array([[1e4, -1e4, 0], [-1e30, -1e30, -1e30], [5e4, 5e4 + 1, 5e4 + 2]], np.float32)
    targets = np.array([1, 0, 1])
    losses = [2e4, np.log(3), np.log(1 + np.e + 1 / np.e)]
    np.testing.assert_allclose(per_token(logits, targets), losses, rtol=1e-6)
    _, gradient = value_and_gradient(logits, targets, np.ones(3, np.float32))
    last = np.exp([-1, 0, 1]) / np.exp([-1, 0, 1]).sum() - [0, 1, 0]
    expected = [[1, -1, 0], [-2 / 3, 1 / 3, 1 / 3], last]
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


def test_the_mean_over_devices_is_that_of_the_sums():
    parts = [(np.full(100, 2.0), np.ones(100)), (np.full(20, 4.0), np.arange(20) < 10)]
    sums = [weighted_sum(losses.astype(np.float32), weights) for losses, weights in parts]
    assert sum(total for total, _ in sums) == 240
    assert sum(weight for _, weight in sums) == 110


def test_weights_may_be_booleans_or_fractions():
    losses = np.array([1.0, 2.0, np.inf, 4.0], np.float32)
    assert weighted_sum(losses, np.array([True, True, False, False])) == (3, 2)
    assert weighted_sum(losses, np.array([0.5, 0, 0, 0.25], np.float32)) == (1.5, 0.75)
    total, weight = weighted_sum(losses, np.zeros(4, int))
    assert (total, weight) == (0, 0)
    assert total.dtype == weight.dtype == jnp.float32


def test_shapes_that_do_not_match_are_refused():
    with pytest.raises(ValueError, match=r'logits \[3, 5, 7\] .* targets \[5\]'):
        cross_entropy(jnp.zeros((3, 5, 7)), jnp.zeros(5, int))
    with pytest.raises(ValueError, match=r'weights \[5\] .* losses \[3, 5\]'):
        weighted_sum(jnp.zeros((3, 5)), jnp.ones(5))


def test_correct_predictions():
    logits = jnp.array([[[1.0, 3, 2], [5, 0, 0]], [[0, 0, 1], [0, 2, 1]]])
    correct = correct_predictions(logits, jnp.array([[1, 1], [2, -100]]))
    assert correct.dtype == bool
    np.testing.assert_array_equal(correct, [[True, False], [True, False]])


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_correct_predictions_are_those_of_argmax_with_equal_logits(dtype):
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.integers(0, 3, (500, V)), dtype)  # most rows have equal largest ones
    targets = rng.integers(-2, V + 2, 500)
    correct = correct_predictions(logits, jnp.asarray(targets))
    expected = np.argmax(np.asarray(logits, np.float32), -1) == targets
    assert 50 < expected.sum() < 200
    np.testing.assert_array_equal(correct, expected)


def test_a_row_with_nan_is_not_correct():
    logits = jnp.array([[1.0, jnp.nan, 0.0], [1.0, jnp.nan, 0.0]])
    assert not correct_predictions(logits, jnp.array([0, 1])).any()


def test_the_backward_pass_stores_no_second_array_of_logits():
    rows, width, vocab = 64, 8, 4096

    def total(features, table, targets):
        return cross_entropy(features @ table, targets, label_smoothing=0.1).sum()

    arguments = jnp.zeros((rows, width)), jnp.zeros((width, vocab)), jnp.zeros(rows, int)
    compiled = jax.jit(jax.value_and_grad(total, (0, 1))).lower(*arguments).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 1.5 * rows * vocab * 4
