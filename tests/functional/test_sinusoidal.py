"""Sinusoidal positions: the formula of the paper, and what shifts leave alone."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.functional.positions import sinusoidal

LAYOUTS = ['half', 'interleaved']
encode = jax.jit(sinusoidal, static_argnames=('dim', 'layout'))


@pytest.mark.parametrize('layout', LAYOUTS)
def test_sinusoidal_is_the_papers_formula(layout):
    positions = np.array([[0, 1, 2, 511], [7, 300, 4096, 5000]])
    table = encode(positions, 6, layout=layout)
    assert table.shape == (2, 4, 6)
    assert table.dtype == jnp.float32
    angles = positions[..., None] / 10000 ** (np.array([0, 2, 4]) / 6)
    sines, cosines = np.sin(angles), np.cos(angles)
    expected = np.concatenate([sines, cosines], -1)
    if layout == 'interleaved':
        expected = expected[..., [0, 3, 1, 4, 2, 5]]
    np.testing.assert_allclose(table, expected, atol=5e-4)  # an angle of 5000 in float32


def test_sinusoidal_starts_with_zeros_and_ones():
    np.testing.assert_array_equal(encode(np.array([0]), 4)[0], [0, 1, 0, 1])
    np.testing.assert_array_equal(encode(np.array([0]), 4, layout='half')[0], [0, 0, 1, 1])


def test_sinusoidal_products_depend_on_the_distance_only():
    table = np.asarray(encode(jnp.arange(40), 8))
    products = table @ table.T
    for distance in range(40):
        diagonal = np.diagonal(products, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], atol=2e-5)


def test_sinusoidal_reduces_large_angles_exactly():
    positions = np.array([65_537, 1_000_003])
    angles = positions.astype(np.float32)[:, None] * (10000 ** -np.array([0, 0.5])).astype('f')
    expected = np.sin(angles.astype(np.float64))
    np.testing.assert_allclose(encode(positions, 4)[:, ::2], expected, atol=1e-6)


def test_sinusoidal_keeps_float64():
    with jax.enable_x64(True):
        table = encode(np.array([1857.0]), 32)
        assert table.dtype == jnp.float64
        np.testing.assert_allclose(table[0, 3], math.cos(1857 * 10000 ** (-2 / 32)), atol=1e-12)


def test_sinusoidal_refuses_odd_widths_and_unknown_layouts():
    with pytest.raises(ValueError, match='dim must be even and positive, not 5'):
        sinusoidal([0], 5)
    with pytest.raises(ValueError, match="'half' or 'interleaved', not 'halves'"):
        sinusoidal([0], 4, layout='halves')
