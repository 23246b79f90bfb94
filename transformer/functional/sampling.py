"""Choosing the next token: temperature, top-k, top-p and min-p.

Every option is a Python number, a traced scalar or an array with one value a row, so that one
compiled program serves all settings. Python numbers save the work that they make needless: greedy
and unfiltered choices do not sort. The token drawn is the same whichever form was given.

A filter keeps at least one token of each row and replaces the logits of the others by a number so
low that their probability is zero, half of the dtype's least: sums of it stay finite.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike, DTypeLike


def sample(
    key: Array,
    logits: Array,
    *,
    temperature: ArrayLike = 1.0,
    top_k: ArrayLike = 0,
    top_p: ArrayLike = 1.0,
    min_p: ArrayLike = 0.0,
) -> Array:
    """Draws a token of each row, after temperature, top-k, top-p and min-p in this order.

    Args:
        key: a random key, for all rows together.
        logits: [..., V].
        temperature: as `apply_temperature`; 0 takes the largest logit.
        top_k: as the function of this name; 0: off.
        top_p: as the function of this name; 1: off.
        min_p: as the function of this name; 0: off.

    Returns:
        [...] int32 ids.
    """
    if _is_number(temperature) and temperature == 0:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    logits = apply_temperature(logits, temperature)  # [..., V]
    noise = jax.random.gumbel(key, logits.shape, logits.dtype)  # its argmax is a softmax draw
    if _is_number(top_k) and top_k == 0 and _is_number(top_p) and top_p >= 1:
        return jnp.argmax(_min_p(logits, min_p) + noise, axis=-1).astype(jnp.int32)
    logits, ids = _ranked(logits, top_k)  # [..., K], largest first
    logits = _min_p(_first_p(_first_k(logits, top_k), top_p), min_p)
    noise = jnp.take_along_axis(noise, ids, axis=-1)
    choice = jnp.argmax(logits + noise, axis=-1, keepdims=True)  # [..., 1]
    return jnp.take_along_axis(ids, choice, axis=-1)[..., 0]


def apply_temperature(logits: Array, temperature: ArrayLike) -> Array:
    """Divides logits by a temperature, after moving each row's largest to 0.

    The shift, which no softmax sees, keeps the quotient finite for the smallest temperatures.

    Args:
        logits: [..., V].
        temperature: at least 0, a scalar or [...]; 0 keeps the largest logit alone, and of equal
            ones the first, as argmax.

    Returns:
        [..., V] float32, or float64 for float64 logits.
    """
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    if _is_number(temperature) and temperature == 1:
        return logits
    temperature = _column(temperature)
    largest = jnp.argmax(logits, axis=-1, keepdims=True)
    shifted = logits - jnp.take_along_axis(logits, largest, axis=-1)
    scaled = shifted / jnp.where(temperature > 0, temperature, 1)
    greedy = jnp.where(jnp.arange(logits.shape[-1]) == largest, 0, _lowest(logits.dtype))
    return jnp.where(temperature > 0, jnp.maximum(scaled, _lowest(logits.dtype)), greedy)


def top_k(logits: Array, k: ArrayLike) -> Array:
    """Keeps the k largest logits of each row (Fan et al. 2018); of equal ones the first.

    Args:
        logits: [..., V].
        k: a scalar or [...] integers; 0, or V and more, keeps all.

    Returns:
        [..., V] in the dtype of the logits.
    """
    values, ids = _ranked(logits, k)
    return _restored(_first_k(values, k), ids, logits)


def top_p(logits: Array, p: ArrayLike) -> Array:
    """Keeps the most probable tokens until they hold probability p (Holtzman et al. 2019).

    A token stays when those before it hold less than p: 0 keeps the first alone, 1 keeps all.

    Args:
        logits: [..., V].
        p: a scalar or [...].

    Returns:
        [..., V] in the dtype of the logits.
    """
    values, ids = _ranked(logits, 0)
    return _restored(_first_p(values, p), ids, logits)


def min_p(logits: Array, p: ArrayLike) -> Array:
    """Keeps the tokens with at least p times the largest probability (Nguyen et al. 2024).

    Args:
        logits: [..., V].
        p: a scalar or [...] in [0, 1]; 0 keeps all.

    Returns:
        [..., V] in the dtype of the logits.
    """
    return _min_p(logits, p)


def _ranked(logits: Array, k: ArrayLike) -> tuple[Array, Array]:
    """Logits from the largest down, and their ids: k of them where k is a number, else all."""
    vocab = logits.shape[-1]
    return jax.lax.top_k(logits, min(k, vocab) if _is_number(k) and k > 0 else vocab)


def _first_k(ranked: Array, k: ArrayLike) -> Array:
    k = _column(k)
    return _masked((jnp.arange(ranked.shape[-1]) < k) | (k <= 0), ranked)


def _first_p(ranked: Array, p: ArrayLike) -> Array:
    p = _column(p)
    probabilities = jax.nn.softmax(ranked.astype(jnp.promote_types(ranked.dtype, jnp.float32)))
    before = jnp.cumsum(probabilities, axis=-1) - probabilities
    is_first = jnp.arange(ranked.shape[-1]) == 0
    return _masked((before < p) | is_first | (p >= 1), ranked)


def _min_p(logits: Array, p: ArrayLike) -> Array:
    if _is_number(p) and p == 0:
        return logits
    largest = jnp.max(logits, axis=-1, keepdims=True)
    return _masked(logits >= largest + jnp.log(_column(p)), logits)


def _restored(ranked: Array, ids: Array, logits: Array) -> Array:
    """Puts ranked logits back in the order of the vocabulary; those not there are masked."""
    masked = jnp.full_like(logits, _lowest(logits.dtype))
    return jnp.put_along_axis(masked, ids, ranked, axis=-1, inplace=False)


def _masked(keep: Array, logits: Array) -> Array:
    return jnp.where(keep, logits, _lowest(logits.dtype))


def _lowest(dtype: DTypeLike) -> Array:
    return jnp.finfo(dtype).min / 2


def _column(option: ArrayLike) -> Array:
    """Gives an option of each row, or of all, an axis for the vocabulary."""
    return jnp.asarray(option)[..., None]


def _is_number(option: ArrayLike) -> bool:
    return isinstance(option, int | float)
