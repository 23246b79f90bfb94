"""Keys of many draws, and how often something may happen in them."""

import jax
import numpy as np


def keys(count, seed=3):
    return jax.random.split(jax.random.key(seed), count)


def assert_binomial(successes, trials, p):
    """Within 5 standard deviations: a false alarm in two million."""
    assert abs(successes - trials * p) <= 5 * np.sqrt(trials * p * (1 - p))
