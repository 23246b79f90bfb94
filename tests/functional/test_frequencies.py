"""Frequencies of rotary embeddings: what each scaling keeps and what it divides."""

import math

import jax
import numpy as np
import pytest

from transformer.functional.frequencies import dynamic_ntk, rope_frequencies
from transformer.functional.positions import apply_rope


def test_unscaled_frequencies_are_geometric():
    frequencies, attention_factor = rope_frequencies(8, base=500.0)
    np.testing.assert_allclose(frequencies, [1, 500**-0.25, 500**-0.5, 500**-0.75], rtol=1e-15)
    assert attention_factor == 1


def test_linear_scaling_divides_every_angle():
    plain, scaled = rope_frequencies(16)[0], rope_frequencies(16, scaling='linear', factor=2.0)[0]
    x = np.random.default_rng(0).standard_normal((1, 5, 2, 16)).astype(np.float32)
    positions = np.array([0, 1, 2, 50, 51])
    np.testing.assert_allclose(
        apply_rope(x, 2 * positions, scaled), apply_rope(x, positions, plain), atol=1e-5
    )


def test_ntk_scaling_keeps_the_fastest_pair_and_divides_the_slowest():
    plain, scaled = rope_frequencies(64)[0], rope_frequencies(64, scaling='ntk', factor=4.0)[0]
    np.testing.assert_allclose(scaled[0], plain[0], rtol=1e-12)
    np.testing.assert_allclose(scaled[-1], plain[-1] / 4, rtol=1e-12)
    ratios = (10_000 * 4 ** (64 / 62)) ** (-1 / 32)
    np.testing.assert_allclose(scaled[1:] / scaled[:-1], ratios, rtol=1e-12)


def test_yarn_keeps_fast_pairs_and_divides_slow_ones():
    dim, base, length, factor = 64, 10_000.0, 2048, 16.0
    scaled, attention_factor = rope_frequencies(
        dim, base=base, scaling='yarn', factor=factor, original_length=length
    )
    # Pair i turns length * base^(-2i/dim) / 2 pi times. Beyond the pair of 32 turns, cut down to a
    # whole number, weight moves to the divided frequency; from the pair of 1 turn, cut up, all.
    turns = [length * base ** (-2 * i / dim) / (2 * math.pi) for i in range(dim // 2)]
    first = max(i for i in range(dim // 2) if turns[i] >= 32)
    last = min(i for i in range(dim // 2) if turns[i] <= 1)
    assert 0 < first < last < dim // 2 - 1
    for i in range(dim // 2):
        ramp = min(max((i - first) / (last - first), 0), 1)
        plain = base ** (-2 * i / dim)
        assert scaled[i] == pytest.approx((1 - ramp) * plain + ramp * plain / factor, rel=1e-12)
    assert attention_factor == pytest.approx(1.2772588722239781, rel=1e-15)  # 0.1 ln 16 + 1


def test_llama3_keeps_short_wavelengths_and_divides_long_ones():
    dim, base, length, factor, low, high = 128, 500_000.0, 8192, 8.0, 1.0, 4.0  # Llama 3.1
    scaled, attention_factor = rope_frequencies(
        dim, base=base, scaling='llama3', factor=factor, original_length=length
    )
    kinds = set()
    for i in range(dim // 2):
        plain = base ** (-2 * i / dim)
        wavelength = 2 * math.pi / plain
        if wavelength < length / high:
            kinds.add('short')
            expected = plain
        elif wavelength > length / low:
            kinds.add('long')
            expected = plain / factor
        else:
            kinds.add('between')
            smooth = (length / wavelength - low) / (high - low)
            expected = (1 - smooth) * plain / factor + smooth * plain
        assert scaled[i] == pytest.approx(expected, rel=1e-12)
    assert kinds == {'short', 'long', 'between'}
    assert attention_factor == 1


@pytest.mark.parametrize('scaling', ['none', 'linear', 'ntk', 'yarn', 'llama3'])
def test_a_factor_of_one_scales_nothing(scaling):
    frequencies, attention_factor = rope_frequencies(32, scaling=scaling, original_length=512)
    np.testing.assert_allclose(frequencies, rope_frequencies(32)[0], rtol=1e-15)
    assert attention_factor == 1


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'dim': 7}, 'dim must be even'),
        ({'scaling': 'dynamic'}, "none, linear, ntk, yarn, llama3; not 'dynamic'"),
        ({'scaling': 'linear', 'factor': 0.5}, 'factor must be at least 1, not 0.5'),
        ({'scaling': 'yarn', 'factor': 2.0}, "'yarn' needs original_length"),
        ({'scaling': 'llama3', 'factor': 2.0}, "'llama3' needs original_length"),
        ({'dim': 2, 'scaling': 'ntk', 'factor': 2.0}, 'dim of at least 4'),
    ],
)
def test_frequencies_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        rope_frequencies(**{'dim': 8} | options)


def test_dynamic_ntk_is_ntk_scaling_for_the_length_of_each_row():
    """The factor of 16 tokens is 3 * 16 / 10 - 2; up to 10 tokens nothing changes."""
    plain, _ = rope_frequencies(16, base=500.0)
    positions = np.stack([np.arange(16), np.arange(16) % 10, np.arange(16)[::-1]])
    positions = np.stack([positions, np.zeros((3, 16), int)])  # [2, 3, T]
    found = jax.jit(dynamic_ntk, static_argnums=(2, 3))(plain, positions, 3.0, 10)  # [2, 3, D/2]
    longer, _ = rope_frequencies(16, base=500.0, scaling='ntk', factor=2.8)
    expected = [[longer, plain, longer], [plain] * 3]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_dynamic_ntk_refuses_what_makes_no_sense():
    with pytest.raises(ValueError, match=r'factor must be at least 1, not 0\.5'):
        dynamic_ntk(np.ones(4), np.arange(3), 0.5, 10)
    with pytest.raises(ValueError, match='at least 2 frequencies'):
        dynamic_ntk(np.ones(1), np.arange(3), 2.0, 10)
