"""Learning rates as pure functions of the step, so that every number in them can be traced."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

Hyperparameters = Mapping[str, Any]


def constant(step: jax.Array, hparams: Hyperparameters) -> jax.Array:
    """1 at every step."""
    return jnp.ones_like(step, jnp.float32)


def cosine(step: jax.Array, hparams: Hyperparameters) -> jax.Array:
    """Half a cosine from 1 to end_factor (Loshchilov and Hutter 2017)."""
    end = hparams['end_factor']
    return end + (1 - end) * 0.5 * (1 + jnp.cos(jnp.pi * _progress(step, hparams)))


def linear(step: jax.Array, hparams: Hyperparameters) -> jax.Array:
    """A straight line from 1 to end_factor."""
    return 1 + (hparams['end_factor'] - 1) * _progress(step, hparams)


def rsqrt(step: jax.Array, hparams: Hyperparameters) -> jax.Array:
    """sqrt(warmup_steps / (step + 1)) after the warmup (Vaswani et al. 2017, equation 3).

    The paper's learning rate is the peak (embed_dim * warmup_steps)^-0.5.
    """
    warmup = jnp.maximum(hparams['warmup_steps'], 1)
    return jnp.sqrt(warmup / jnp.maximum(step + 1, warmup))


SCHEDULES = {'constant': constant, 'cosine': cosine, 'linear': linear, 'rsqrt': rsqrt}


def learning_rate(name: str, step: jax.Array, hparams: Hyperparameters) -> jax.Array:
    """The rate of the update number `step`, counted from 0.

    The warmup rises linearly and reaches the peak `learning_rate` with its last update: rate
    (step + 1) / warmup_steps of the peak, so that the first update is not wasted. The decay ends
    at `decay_steps`, warmup included, and stays there.
    """
    step = jnp.asarray(step)
    rise = jnp.minimum(1.0, (step + 1) / jnp.maximum(hparams['warmup_steps'], 1))
    return hparams['learning_rate'] * rise * SCHEDULES[name](step, hparams)


def _progress(step, hparams):
    """Share of the decay that is over, from 0 at the end of the warmup to 1."""
    warmup = hparams['warmup_steps']
    length = jnp.maximum(hparams['decay_steps'] - warmup, 1)
    return jnp.clip((step + 1 - warmup) / length, 0.0, 1.0)
