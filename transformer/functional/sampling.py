"""Choosing the next token: temperature, top-k, top-p and min-p.

Every option is a Python number, a traced scalar or an array with one value a row, so that one
compiled program serves all settings. Python numbers save the work that they make needless: a
greedy choice is an argmax. The token drawn is the same whichever form was given.

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
        return greedy(logits)
    logits = filtered(logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    return jax.random.categorical(key, logits).astype(jnp.int32)


def filtered(
    logits: Array,
    *,
    temperature: ArrayLike = 1.0,
    top_k: ArrayLike = 0,
    top_p: ArrayLike = 1.0,
    min_p: ArrayLike = 0.0,
) -> Array:
    """The logits [..., V] whose softmax `sample` draws from; arguments as there."""
    logits = apply_temperature(logits, temperature)
    return _min_p(_top_p(_top_k(logits, top_k), top_p), min_p)


def greedy(logits: Array) -> Array:
    """[...] int32: the index of the largest of logits [..., V], of equal ones the first."""
    # As argmax, in two passes of comparisons, which CPUs do several at a time.
    index = jnp.arange(logits.shape[-1], dtype=jnp.int32)
    is_largest = logits == jnp.max(logits, axis=-1, keepdims=True)
    return jnp.min(jnp.where(is_largest, index, logits.shape[-1] - 1), axis=-1)


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
    logits = logits.astype(_wide(logits))
    if _is_number(temperature) and temperature == 1:
        return logits
    temperature = _column(temperature)
    shifted = logits - jnp.max(logits, axis=-1, keepdims=True)
    scaled = shifted / jnp.where(temperature > 0, temperature, 1)
    is_first = jnp.arange(logits.shape[-1]) == greedy(logits)[..., None]
    scaled = jnp.where(temperature > 0, scaled, jnp.where(is_first, 0, -jnp.inf))
    return jnp.maximum(scaled, _lowest(logits.dtype))


def top_k(logits: Array, k: ArrayLike) -> Array:
    """Keeps the k largest logits of each row (Fan et al. 2018); of equal ones the first.

    Args:
        logits: [..., V].
        k: integers, a scalar or [...]; 0, or V and more, keeps all.

    Returns:
        [..., V] in the dtype of the logits.
    """
    if _is_number(k) and k == 0:
        return logits
    k = _column(k)
    wide = logits.astype(_wide(logits))
    return _masked(_largest(wide, jnp.ones_like(wide), jnp.where(k > 0, k, jnp.inf)), logits)


def top_p(logits: Array, p: ArrayLike) -> Array:
    """Keeps the most probable tokens until they hold probability p (Holtzman et al. 2019).

    A token stays when those before it hold less than p: 0 keeps the first alone, 1 keeps all.

    Args:
        logits: [..., V].
        p: a scalar or [...].

    Returns:
        [..., V] in the dtype of the logits.
    """
    if _is_number(p) and p >= 1:
        return logits
    p = _column(p)
    wide = logits.astype(_wide(logits))
    target = jnp.where(p < 1, jnp.maximum(p, jnp.finfo(wide.dtype).tiny), jnp.inf)
    return _masked(_largest(wide, jax.nn.softmax(wide), target), logits)


def min_p(logits: Array, p: ArrayLike) -> Array:
    """Keeps the tokens with at least p times the largest probability (Nguyen et al. 2024).

    Args:
        logits: [..., V].
        p: a scalar or [...] in [0, 1]; 0 keeps all.

    Returns:
        [..., V] in the dtype of the logits.
    """
    if _is_number(p) and p == 0:
        return logits
    largest = jnp.max(logits, axis=-1, keepdims=True)
    return _masked(logits >= largest + jnp.log(_column(p)), logits)


_top_k, _top_p, _min_p = top_k, top_p, min_p  # for `sample`, whose arguments have these names


def _largest(logits: Array, weights: Array, target: Array) -> Array:
    """True for the largest logits, the fewest whose weights [..., V] sum to target [..., 1].

    A sort of the vocabulary takes far longer than this search, which finds the last logit to keep
    bit by bit: the bits of floats, with a little care for the sign, are ordered as the numbers.
    """
    bits = jnp.finfo(logits.dtype).bits
    order = jax.lax.bitcast_convert_type(jnp.where(logits == 0, 0, logits), f'uint{bits}')
    sign = order.dtype.type(1 << (bits - 1))
    order = jnp.where(order >= sign, ~order, order | sign)

    def weight(chosen):
        return jnp.sum(jnp.where(chosen, weights, 0), axis=-1, keepdims=True)

    def add_bit(i, last):
        candidate = last | (sign >> i.astype(sign.dtype))
        return jnp.where(weight(order >= candidate) >= target, candidate, last)

    last = jax.lax.fori_loop(0, bits, add_bit, jnp.zeros_like(order[..., :1]))
    tied = order == last  # of which the first are kept
    before = weight(order > last) + jnp.cumsum(jnp.where(tied, weights, 0), axis=-1) - weights
    return (order > last) | (tied & (before < target))


def _masked(keep: Array, logits: Array) -> Array:
    return jnp.where(keep, logits, _lowest(logits.dtype))


def _lowest(dtype: DTypeLike) -> float:
    return float(jnp.finfo(dtype).min) / 2


def _wide(logits: Array) -> DTypeLike:
    return jnp.promote_types(logits.dtype, jnp.float32)


def _column(option: ArrayLike) -> Array:
    """Gives an option of each row, or of all, an axis for the vocabulary."""
    return jnp.asarray(option)[..., None]


def _is_number(option: ArrayLike) -> bool:
    return isinstance(option, int | float)
