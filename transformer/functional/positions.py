"""Position encodings: sinusoidal, rotary (RoPE), ALiBi and T5's relative buckets.

Each function takes explicit positions, so that packed rows, left padding and cached decoding need
nothing special. Phases are computed in float32 or better: bfloat16 cannot tell 256 from 257.
"""

import functools
import math

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from transformer.functional.frequencies import geometric


def sinusoidal(
    positions: ArrayLike, dim: int, *, layout: str = 'interleaved', base: float = 10_000.0
) -> Array:
    """Sines and cosines of the positions (Vaswani et al. 2017, section 3.5).

    PE(p, 2i) = sin(p / base^(2i/dim)),  PE(p, 2i+1) = cos(p / base^(2i/dim))

    Args:
        positions: [...], in tokens.
        dim: width of the encoding, even.
        layout: 'interleaved' alternates sine and cosine as above; 'half' puts all sines before
            all cosines (Marian).
        base: the longest wavelength is 2 pi base^(1 - 2/dim) tokens.

    Returns:
        [..., dim] float32 (float64 for float64 positions).

    Raises:
        ValueError: an odd dim or an unknown layout.
    """
    _check_layout(layout)
    positions = jnp.asarray(positions)
    angles = _angles(positions, geometric(dim, base), positions.dtype)  # [..., dim/2]
    return _join(jnp.sin(angles), jnp.cos(angles), layout)


def apply_rope(
    x: Array,
    positions: ArrayLike,
    frequencies: ArrayLike,
    *,
    layout: str = 'half',
    attention_factor: float = 1.0,
) -> Array:
    """Rotates pairs of features by position times frequency (Su et al. 2021, equation 34).

    (a, b) -> (a cos - b sin, b cos + a sin), so that the product of a query and a key depends on
    their distance only.

    Args:
        x: [B, T, N, H] queries or keys.
        positions: [B, T] or [T], in tokens.
        frequencies: [D/2] radians a token. The first D features of x are rotated; the other
            H - D pass unchanged.
        layout: 'half' pairs feature i with i + D/2 (GPT-NeoX, LLaMA in `transformers`);
            'interleaved' pairs 2i with 2i + 1 (the paper, GPT-J).
        attention_factor: multiplies the rotated features; see `rope_frequencies`.

    Returns:
        [B, T, N, H] in the dtype of x. Angles and products are float32, or float64 for float64.

    Raises:
        ValueError: an unknown layout, or more frequencies than pairs of features.
    """
    _check_layout(layout)
    rotated = 2 * len(frequencies)
    if rotated > x.shape[-1]:
        raise ValueError(f'{len(frequencies)} frequencies do not fit a head of {x.shape[-1]}.')
    angles = _angles(positions, frequencies, x.dtype)  # [(B), T, D/2]
    # Spreading pairs over features by a small product with a matrix of ones makes XLA store the
    # cosines and sines; fused with what follows, they would be computed again for every head.
    pairs = attention_factor * jnp.eye(rotated // 2, dtype=angles.dtype)
    spread = functools.partial(jnp.matmul, precision='highest')
    cos = spread(jnp.cos(angles), _join(pairs, pairs, layout))[..., None, :]  # [(B), T, 1, D]
    sin = spread(jnp.sin(angles), _join(-pairs, pairs, layout))[..., None, :]
    turned = x[..., :rotated]  # [B, T, N, D]
    if layout == 'half':
        partner = jnp.roll(turned, rotated // 2, axis=-1)
    else:
        partner = turned.reshape(*turned.shape[:-1], -1, 2)[..., ::-1].reshape(turned.shape)
    turned = (turned * cos + partner * sin).astype(x.dtype)
    if rotated == x.shape[-1]:
        return turned
    return jnp.concatenate([turned, x[..., rotated:]], axis=-1)


def alibi_slopes(num_heads: int) -> Array:
    """The slopes of attention with linear biases (Press et al. 2022, section 3).

    For n heads, a power of two, 2^(-8/n), 2^(-16/n), ..., 2^-8. For another number, those of the
    power of two below, then every second one of twice that power (as BLOOM).

    Returns:
        [num_heads] float32.
    """
    power = 2 ** int(math.log2(num_heads))
    exponents = np.arange(1, power + 1) * 8 / power
    between = np.arange(1, 2 * (num_heads - power), 2) * 4 / power
    return jnp.asarray(2.0 ** -np.concatenate([exponents, between]), jnp.float32)


def alibi_bias(slopes: ArrayLike, query_positions: ArrayLike, key_positions: ArrayLike) -> Array:
    """The bias -slope * |query position - key position| (Press et al. 2022).

    Under a causal mask it differs from BLOOM's slope * key position by a constant for each query,
    which the softmax does not see.

    Args:
        slopes: [N].
        query_positions: [T] or [B, T], in tokens.
        key_positions: [S] or [B, S].

    Returns:
        [N, T, S] or [B, N, T, S], in the dtype of the slopes.
    """
    slopes = jnp.asarray(slopes)[:, None, None]
    distances = jnp.abs(_relative(query_positions, key_positions))[..., None, :, :]
    return -slopes * distances.astype(slopes.dtype)


def relative_buckets(
    relative_position: ArrayLike,
    *,
    num_buckets: int = 32,
    max_distance: int = 128,
    bidirectional: bool = True,
) -> Array:
    """T5's buckets of relative positions (Raffel et al. 2020, section 2.1).

    Of the n buckets of a direction, the first n/2 hold one distance each; the others grow
    logarithmically up to max_distance, and the last holds all that is further.

    Args:
        relative_position: [...] integers, key position minus query position.
        num_buckets: of both directions together.
        max_distance: in tokens, where the last bucket begins at the latest.
        bidirectional: True gives half of the buckets, the upper, to keys after the query; False
            puts all of those in bucket 0.

    Returns:
        [...] int32 in [0, num_buckets).

    Raises:
        ValueError: too few buckets, or a max_distance that leaves the logarithm no room.
    """
    relative_position = jnp.asarray(relative_position)
    count = num_buckets // 2 if bidirectional else num_buckets  # of one direction
    exact = count // 2
    if exact < 1 or max_distance <= exact:
        raise ValueError(
            f'num_buckets {num_buckets} and max_distance {max_distance} leave no logarithmic '
            f'buckets: max_distance must exceed {exact}, which must be at least 1.'
        )
    if bidirectional:
        offset, distance = count * (relative_position > 0), jnp.abs(relative_position)
    else:
        offset, distance = 0, jnp.maximum(-relative_position, 0)
    # Integer bounds, because a device's float32 logarithm may fall on either side of a bound.
    log_step = math.log(max_distance / exact) / (count - exact)
    bounds = [math.ceil(exact * math.exp(k * log_step) - 1e-6) for k in range(1, count - exact)]
    bucket = jnp.minimum(distance, exact)
    for bound in bounds:
        bucket += distance >= bound
    return (offset + bucket).astype(jnp.int32)


def relative_bias(
    table: ArrayLike,
    query_positions: ArrayLike,
    key_positions: ArrayLike,
    *,
    max_distance: int = 128,
    bidirectional: bool = True,
) -> Array:
    """T5's learned bias of each head for each bucket of relative positions.

    Args:
        table: [num_buckets, N].
        query_positions: [T] or [B, T], in tokens.
        key_positions: [S] or [B, S].
        max_distance: see `relative_buckets`.
        bidirectional: see `relative_buckets`.

    Returns:
        [N, T, S] or [B, N, T, S], in the dtype of the table.

    Raises:
        ValueError: as `relative_buckets`.
    """
    buckets = relative_buckets(
        _relative(query_positions, key_positions),
        num_buckets=len(table),
        max_distance=max_distance,
        bidirectional=bidirectional,
    )  # [(B), T, S]
    return jnp.moveaxis(jnp.asarray(table)[buckets], -1, -3)


def _angles(positions: ArrayLike, frequencies: ArrayLike, dtype: DTypeLike) -> Array:
    dtype = jnp.promote_types(dtype, jnp.float32)
    return jnp.asarray(positions, dtype)[..., None] * jnp.asarray(frequencies, dtype)


def _join(first: Array, second: Array, layout: str) -> Array:
    if layout == 'half':
        return jnp.concatenate([first, second], axis=-1)
    return jnp.stack([first, second], axis=-1).reshape(*first.shape[:-1], -1)


def _relative(query_positions: ArrayLike, key_positions: ArrayLike) -> Array:
    """Key minus query position: [(B), T, S]."""
    query_positions, key_positions = jnp.asarray(query_positions), jnp.asarray(key_positions)
    return key_positions[..., None, :] - query_positions[..., :, None]


def _check_layout(layout: str) -> None:
    if layout not in ('half', 'interleaved'):
        raise ValueError(f"layout must be 'half' or 'interleaved', not {layout!r}.")


def _check_even(name: str, value: int) -> None:
    if value % 2 or value < 2:
        raise ValueError(f'{name} must be even and positive, not {value}.')
