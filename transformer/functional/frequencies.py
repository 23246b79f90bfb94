"""Angles per token of sinusoids and rotary embeddings, and their scalings for long contexts."""

import math

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike


def rope_frequencies(
    dim: int,
    *,
    base: float = 10_000.0,
    scaling: str = 'none',
    factor: float = 1.0,
    original_length: int | None = None,
    low_frequency_factor: float = 1.0,
    high_frequency_factor: float = 4.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
) -> tuple[np.ndarray, float]:
    """The angles per token of rotary embeddings, scaled for a longer context.

    Unscaled, pair i turns by base^(-2i/dim) a token (Su et al. 2021, section 3.2.2). With
    `scaling`, a context `factor` times the trained one is reached by

    - 'linear': every angle divided by factor (Chen et al. 2023);
    - 'ntk': base multiplied by factor^(dim / (dim - 2)), so that the slowest pair is divided by
      factor and the fastest is unchanged;
    - 'yarn': pairs that turn more than beta_fast times in original_length are unchanged, those
      that turn less than beta_slow times are divided by factor, with a ramp between, linear in i
      and cut at whole pairs (Peng et al. 2023, section 3.2). Attention is sharpened as well;
    - 'llama3': the same idea, with a ramp linear in the number of turns, from
      low_frequency_factor to high_frequency_factor (Llama 3.1).

    Args:
        dim: number of rotated dimensions, even.
        base: the slowest pair turns base^(2/dim - 1) radians a token.
        scaling: 'none', 'linear', 'ntk', 'yarn' or 'llama3'.
        factor: of context extension, at least 1.
        original_length: the trained context in tokens; yarn and llama3 need it.
        low_frequency_factor: llama3, in turns.
        high_frequency_factor: llama3, in turns.
        beta_fast: yarn, in turns.
        beta_slow: yarn, in turns.

    Returns:
        Frequencies [dim/2] in radians a token, a float64 NumPy constant that `apply_rope` rounds
        to its own dtype; and the attention factor, which multiplies cosines and sines: for yarn
        0.1 ln(factor) + 1, otherwise 1.

    Raises:
        ValueError: an odd dim, an unknown scaling, a factor below 1, a missing original_length.
    """
    frequencies = geometric(dim, base)
    if factor < 1:
        raise ValueError(f'factor must be at least 1, not {factor}.')
    if scaling in ('yarn', 'llama3') and original_length is None:
        raise ValueError(f'scaling {scaling!r} needs original_length, the trained context.')
    attention_factor = 1.0
    if scaling == 'none':
        return frequencies, attention_factor
    if scaling == 'ntk':
        if dim == 2:
            raise ValueError("scaling 'ntk' needs a dim of at least 4.")
        return geometric(dim, base * factor ** (dim / (dim - 2))), attention_factor

    if scaling == 'linear':
        kept = 0.0
    elif scaling == 'yarn':
        kept = _yarn_ramp(dim, base, original_length, beta_fast, beta_slow)
        attention_factor = 0.1 * math.log(factor) + 1
    elif scaling == 'llama3':
        turns = original_length * frequencies / (2 * math.pi)
        span = high_frequency_factor - low_frequency_factor
        kept = np.clip((turns - low_frequency_factor) / span, 0, 1)
    else:
        raise ValueError(
            f'scaling must be one of none, linear, ntk, yarn, llama3; not {scaling!r}.'
        )
    return frequencies * (kept + (1 - kept) / factor), attention_factor


def dynamic_ntk(
    frequencies: ArrayLike, positions: ArrayLike, factor: float, original_length: int
) -> Array:
    """Frequencies of 'ntk' scaling that grows with each row (emozilla 2023).

    A row of n tokens, n > original_length, has the base multiplied by s^(dim / (dim - 2)),
    s = factor n / original_length - (factor - 1), so that the slowest pair is divided by s. Keys
    that were cached keep the rotation of their time.

    Args:
        frequencies: [dim/2] of `rope_frequencies`, unscaled; two at least.
        positions: [..., T] of the tokens of each row; n is the largest plus 1.
        factor: of context extension, at least 1.
        original_length: the trained context in tokens, up to which nothing changes.

    Returns:
        [..., dim/2] float32 (float64 for float64 frequencies where JAX has it).

    Raises:
        ValueError: a factor below 1, or one frequency alone.
    """
    frequencies = jnp.asarray(frequencies)
    pairs = len(frequencies)
    if factor < 1:
        raise ValueError(f'factor must be at least 1, not {factor}.')
    if pairs < 2:
        raise ValueError('dynamic_ntk needs at least 2 frequencies: a dim of at least 4.')
    length = jnp.maximum(jnp.max(positions, axis=-1, keepdims=True) + 1, original_length)
    stretch = factor * length / original_length - (factor - 1)  # [..., 1]
    return frequencies * stretch ** (-np.arange(pairs) / (pairs - 1))


def geometric(dim: int, base: float) -> np.ndarray:
    """base^(-2i/dim) for each pair i: [dim/2] float64; ValueError for an odd dim."""
    if dim % 2 or dim < 2:
        raise ValueError(f'dim must be even and positive, not {dim}.')
    return float(base) ** (-np.arange(0, dim, 2) / dim)


def _yarn_ramp(
    dim: int, base: float, original_length: int, beta_fast: float, beta_slow: float
) -> np.ndarray:
    """[dim/2], how much of each frequency yarn keeps: 1 for the fast pairs, 0 for the slow."""
    first = _pair_of_turns(beta_fast, dim, base, original_length)
    last = _pair_of_turns(beta_slow, dim, base, original_length)
    first, last = max(math.floor(first), 0), min(math.ceil(last), dim - 1)
    return 1 - np.clip((np.arange(dim // 2) - first) / max(last - first, 1e-3), 0, 1)


def _pair_of_turns(turns: float, dim: int, base: float, length: int) -> float:
    """The (fractional) pair that makes so many turns in `length` tokens."""
    return dim * math.log(length / (2 * math.pi * turns)) / (2 * math.log(base))
