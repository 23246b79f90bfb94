"""Counter-based dropout: the mask is a hash of a key and of each element's coordinates.

`jax.random` draws the bits of a whole array at once, so they change with its shape. Here every
element's bits depend on its row's key and its place in the row alone: neither the batch size, nor
the split over devices or micro-batches, nor the block a kernel computes at a time changes them.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike


def dropout(x: ArrayLike, rate: float | ArrayLike, key: ArrayLike | None) -> Array:
    """Zeroes each element with probability `rate` and divides the others by 1 - rate.

    Inverted dropout (Srivastava et al. 2014, section 10).

    Args:
        x: float array of any shape; [B, ...] with one key a row.
        rate: probability in [0, 1]. A Python 0 returns `x` as it is and needs no key; a traced
            array may take any value in [0, 1], and 1 gives zeros.
        key: one JAX key for the whole of `x`, or [B] keys, one for each row of `x`: then the mask
            of a row is a function of its own key only.

    Returns:
        An array like `x`.

    Raises:
        ValueError: `rate` outside [0, 1], no key, or keys that are not one for each row.
    """
    x = jnp.asarray(x)
    if not needs_dropout(rate, key):
        return x
    words = _words(key)
    if words.ndim > 2 or (words.ndim == 2 and words.shape[:1] != x.shape[:1]):
        raise ValueError(
            f'key must be one key or one for each row of x; got keys {list(words.shape[:-1])} '
            f'for x {list(x.shape)}.'
        )
    first = words.ndim - 1  # axes of x that the keys stand for
    words = words.reshape(words.shape[:-1] + (1,) * (x.ndim - first) + words.shape[-1:])
    coordinates = [
        jax.lax.broadcasted_iota(jnp.uint32, _along(x, i), i) for i in range(first, x.ndim)
    ]
    return apply_dropout(x, rate, dropout_bits(words, *coordinates))


def dropout_bits(key: ArrayLike, *coordinates: ArrayLike) -> Array:
    """Uniform random bits, a function of a key and integer coordinates.

    The coordinates are absorbed one after the other into a 64-bit state by a bijection built of
    the multiply and xor-shift steps of MurmurHash3's 32-bit finaliser (Appleby 2011), so distinct
    coordinates under one key lead to unrelated bits. Order the coordinates from the outermost to
    the innermost: only the last is hashed at full size.

    Args:
        key: JAX keys of any shape and implementation, typed or raw uint32 [..., words].
        coordinates: integer arrays which, with the shape of the keys, broadcast to one shape.

    Returns:
        uint32, of the common shape.

    Raises:
        ValueError: `key` is no JAX key.
    """
    words = _words(key)
    low, high = jnp.uint32(0x243F6A88), jnp.uint32(0x85A308D3)  # the first bits of pi
    for word in (*jnp.unstack(words, axis=-1), *coordinates):
        low, high = _absorb(low, high, jnp.asarray(word).astype(jnp.uint32))
    return low


def apply_dropout(x: Array, rate: float | ArrayLike, bits: Array) -> Array:
    """`x` with the elements dropped whose uniform uint32 `bits` fall below `rate`, others scaled.

    Args:
        x: float array.
        rate: probability in [0, 1], Python float or traced; resolved to 2^-24.
        bits: uint32, broadcastable to `x`.
    """
    rate = jnp.asarray(rate, jnp.promote_types(x.dtype, jnp.float32))
    keep = (bits >> 8) >= jnp.round(rate * 2**24).astype(jnp.uint32)
    some_kept = rate < 1
    scale = jnp.where(some_kept, 1 / jnp.where(some_kept, 1 - rate, 1), 0)
    return jnp.where(keep, x * scale, 0).astype(x.dtype)


def needs_dropout(rate: float | ArrayLike, key: ArrayLike | None) -> bool:
    """Whether dropout has to be computed: False for a Python 0.

    Raises:
        ValueError: a Python `rate` outside [0, 1], or no key to drop with.
    """
    if isinstance(rate, int | float):
        if not 0 <= rate <= 1:
            raise ValueError(f'the dropout rate is a probability between 0 and 1, not {rate}.')
        if rate == 0:
            return False
    if key is None:
        raise ValueError('dropout needs a key: give one, or a rate of 0.0.')
    return True


def _words(key: ArrayLike) -> Array:
    """The words uint32 [..., words] of keys, however many their implementation has."""
    key = jnp.asarray(key)
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(key)
    if key.dtype != jnp.uint32 or not key.ndim:
        raise ValueError(f'key must be JAX keys, typed or raw uint32 words, not {key.dtype}.')
    return key


def _absorb(low: Array, high: Array, word: Array) -> tuple[Array, Array]:
    """Mixes one uint32 word into the state; for a given word a bijection of the 64 bits."""
    low = low ^ (word * jnp.uint32(0x9E3779B9))  # 2^32 / golden ratio: spreads small integers
    low = (low ^ (low >> 16)) * jnp.uint32(0x85EBCA6B)
    # The other half enters in the middle: two rows would share a shifted or permuted mask only if
    # all 64 bits agreed.
    low = low + high
    low = (low ^ (low >> 13)) * jnp.uint32(0xC2B2AE35)
    low = low ^ (low >> 16)
    return low, (high ^ low) * jnp.uint32(0x27D4EB2F)


def _along(x: Array, axis: int) -> tuple[int, ...]:
    """The shape of `x` with every axis but one of size 1: broadcast late, hash little."""
    return tuple(size if i == axis else 1 for i, size in enumerate(x.shape))
