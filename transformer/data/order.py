"""The order of training rows: an epoch's permutation in constant memory, as array arithmetic.

Grain's `shuffle` seeds epoch e with seed + e, so that epoch 1 of seed 0 is epoch 0 of seed 1, and
takes 60 microseconds a row; both matter when trials of a sweep differ by their data seed.
"""

import functools
import math

import numpy as np

ROUNDS = 6

_ODD = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)  # multipliers, from SplitMix64
_HALF = np.uint64(32)


@functools.lru_cache(maxsize=64)
def epoch_state(seed: int, corpus: int, epoch: int) -> tuple[int, np.ndarray]:
    """Random numbers of one epoch of one corpus of a mixture.

    Returns:
        A 64-bit number, and the keys [ROUNDS] uint64 for `permute`.
    """
    state = np.random.SeedSequence([seed, corpus, epoch]).generate_state(1 + ROUNDS, np.uint64)
    return int(state[0]), state[1:]


def permute(index: np.ndarray, size: int, keys: np.ndarray) -> np.ndarray:
    """A pseudo-random permutation of range(size), at some of its indices.

    An index is a pair of digits in [0, a) and [0, b), a b >= size, and each round adds a hash of
    one digit to the other. What falls outside [0, size) is permuted again until it is inside (a
    generalised Feistel cipher with cycle walking; Black and Rogaway 2002).

    Args:
        index: [B] integers in [0, size), size < 2^62.
        keys: [ROUNDS] uint64, which choose the permutation.

    Returns:
        [B] int64 in [0, size).
    """
    b = np.uint64(math.isqrt(size - 1) + 1)
    a = np.uint64(-(-size // int(b)))

    def cipher(x: np.ndarray) -> np.ndarray:
        left, right = np.divmod(x, b)
        for even, odd in zip(keys[::2], keys[1::2], strict=True):
            left = (left + _hash(right + even)) % a
            right = (right + _hash(left + odd)) % b
        return left * b + right

    x = cipher(np.asarray(index, np.uint64))
    while (outside := x >= size).any():
        x[outside] = cipher(x[outside])
    return x.astype(np.int64)


def _hash(x: np.ndarray) -> np.ndarray:
    """32 bits that depend on all bits of `x` [B] uint64, by multiplications modulo 2^64."""
    x = x * _ODD[0]
    x ^= x >> _HALF
    x *= _ODD[1]
    return x >> _HALF
