"""Learning rates at the steps where they matter."""

import jax
import numpy as np
import pytest

from transformer.training.schedules import SCHEDULES, learning_rate

HPARAMS = {'learning_rate': 1e-3, 'warmup_steps': 10, 'decay_steps': 100, 'end_factor': 0.1}


def rates(name, steps, **changes):
    return [float(learning_rate(name, step, HPARAMS | changes)) for step in steps]


@pytest.mark.parametrize('name', SCHEDULES)
def test_warmup_wastes_no_step_and_ends_at_the_peak(name):
    np.testing.assert_allclose(rates(name, [0, 4, 9]), [1e-4, 5e-4, 1e-3], rtol=1e-6)


def test_decays():
    steps = [9, 54, 99, 200]
    np.testing.assert_allclose(rates('cosine', steps), [1e-3, 5.5e-4, 1e-4, 1e-4], rtol=1e-6)
    np.testing.assert_allclose(rates('linear', steps), [1e-3, 5.5e-4, 1e-4, 1e-4], rtol=1e-6)
    np.testing.assert_allclose(rates('constant', steps), [1e-3] * 4, rtol=1e-6)


def test_rsqrt_is_the_papers_equation_3():
    """d^-0.5 min(s^-0.5, s warmup^-1.5) for s = 1, 2, ..., with the peak (d warmup)^-0.5."""
    width, warmup = 512, 4000
    steps = np.array([0, 100, 3999, 4000, 100_000])
    s = steps + 1.0
    expected = width**-0.5 * np.minimum(s**-0.5, s * warmup**-1.5)
    got = rates('rsqrt', steps, learning_rate=(width * warmup) ** -0.5, warmup_steps=warmup)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize('name', SCHEDULES)
@pytest.mark.parametrize('warmup', [0, 100, 200])
def test_degenerate_lengths_are_finite(name, warmup):
    got = rates(name, [0, 99, 100, 1000], warmup_steps=warmup)
    assert np.isfinite(got).all()
    assert min(got) > 0
    assert max(got) <= 1e-3 * (1 + 1e-6)


@pytest.mark.parametrize('name', SCHEDULES)
def test_numbers_may_be_traced(name):
    stacked = {k: np.array([v, 2 * v]) for k, v in HPARAMS.items()}
    got = jax.vmap(lambda hparams: learning_rate(name, 20, hparams))(stacked)
    assert got[0] == pytest.approx(float(learning_rate(name, 20, HPARAMS)), rel=1e-6)
