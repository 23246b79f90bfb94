"""Rotary embeddings: a rotation, and what shifts leave alone."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.functional.frequencies import rope_frequencies
from transformer.functional.positions import apply_rope

LAYOUTS = ['half', 'interleaved']
SCALED = {
    'none': {},
    'linear': {'factor': 4.0},
    'ntk': {'factor': 4.0},
    'yarn': {'factor': 4.0, 'original_length': 512},
    'llama3': {'factor': 8.0, 'original_length': 512},
}
rotate = jax.jit(apply_rope, static_argnames=('layout', 'attention_factor'))


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def rotated(x, positions, frequencies, layout):
    """Rotation as a product of complex numbers, in float64."""
    turn = np.exp(1j * np.asarray(positions, np.float64)[..., None, None] * frequencies)
    half = len(frequencies)
    parts = [slice(half), slice(half, None)]
    if layout == 'interleaved':
        parts = [slice(0, None, 2), slice(1, None, 2)]
    z = (x[..., parts[0]] + 1j * x[..., parts[1]].astype(np.float64)) * turn
    y = np.zeros(x.shape)
    y[..., parts[0]], y[..., parts[1]] = z.real, z.imag
    return y


@pytest.mark.parametrize('layout', LAYOUTS)
def test_rope_is_a_complex_rotation(layout):
    x = normal(1, 2, 5, 3, 8)
    positions = np.array([[0, 1, 2, 3, 4], [9, 0, 100, 257, 1857]])
    frequencies = rope_frequencies(8)[0]
    expected = rotated(x, positions, frequencies, layout)
    np.testing.assert_allclose(
        rotate(x, positions, frequencies, layout=layout), expected, atol=5e-4
    )
    with jax.enable_x64(True):
        y = rotate(x.astype(np.float64), positions, frequencies, layout=layout)
        assert y.dtype == jnp.float64
        np.testing.assert_allclose(y, expected, atol=1e-12)


@pytest.mark.parametrize('layout', LAYOUTS)
@pytest.mark.parametrize('scaling', SCALED)
def test_rope_products_depend_on_the_distance_only(scaling, layout):
    frequencies, attention_factor = rope_frequencies(16, scaling=scaling, **SCALED[scaling])
    query, key = normal(2, 1, 4, 2, 16), normal(3, 1, 6, 2, 16)
    turn = partial(rotate, frequencies=frequencies, layout=layout)
    turn = partial(turn, attention_factor=attention_factor)

    def products(shift):
        q, k = turn(query, shift + 2 + jnp.arange(4)), turn(key, shift + jnp.arange(6))
        return np.einsum('btnh,bsnh->bnts', q, k)

    np.testing.assert_allclose(products(0), products(100), atol=2e-4)
    assert np.abs(products(0) - np.einsum('btnh,bsnh->bnts', query, key)).max() > 0.1


@pytest.mark.parametrize('layout', LAYOUTS)
def test_rope_leaves_position_zero_and_the_norms_alone(layout):
    x, frequencies = normal(4, 1, 3, 2, 8), rope_frequencies(8)[0]
    y = rotate(x, np.array([0, 5, 70]), frequencies, layout=layout)
    np.testing.assert_array_equal(y[:, 0], x[:, 0])
    np.testing.assert_allclose(np.linalg.norm(y, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-6)
    scaled = rotate(x, np.array([0, 5, 70]), frequencies, layout=layout, attention_factor=1.25)
    np.testing.assert_allclose(scaled, 1.25 * y, rtol=1e-6)


def test_rope_layouts_differ_by_a_permutation_of_features():
    x, frequencies = normal(5, 1, 4, 2, 8), rope_frequencies(8)[0]
    order = np.arange(8).reshape(4, 2).T.ravel()  # (D/2, 2) -> (2, D/2)
    interleaved = rotate(x, np.arange(4), frequencies, layout='interleaved')
    half = rotate(x[..., order], np.arange(4), frequencies, layout='half')
    np.testing.assert_array_equal(interleaved[..., order], half)
    assert np.abs(rotate(x, np.arange(4), frequencies) - interleaved)[:, 1:].max() > 0.1


@pytest.mark.parametrize('layout', LAYOUTS)
def test_partial_rope_passes_the_other_features(layout):
    x, frequencies = normal(6, 2, 4, 2, 12), rope_frequencies(8)[0]
    y = rotate(x, np.arange(4), frequencies, layout=layout)
    np.testing.assert_array_equal(y[..., 8:], x[..., 8:])
    alone = rotate(x[..., :8], np.arange(4), frequencies, layout=layout)
    np.testing.assert_array_equal(y[..., :8], alone)


def test_rope_of_a_row_depends_on_its_own_positions():
    x, frequencies = normal(7, 2, 5, 2, 8), rope_frequencies(8)[0]
    positions = np.array([[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]])  # the first is padded on the left
    together = rotate(x, positions, frequencies)
    for row in 0, 1:
        alone = rotate(x[row : row + 1], positions[row], frequencies)
        np.testing.assert_array_equal(together[row], alone[0])


def test_bfloat16_rope_has_float32_phases():
    frequencies = rope_frequencies(32)[0]
    x = np.zeros((1, 3, 1, 32), np.float32)
    x[..., :16] = 1  # so that the features are the cosines and sines
    positions = np.array([256, 257, 1857])
    y = rotate(x.astype(jnp.bfloat16), positions, frequencies)
    assert y.dtype == jnp.bfloat16
    assert np.abs(y.astype(np.float32)[0, 0] - y.astype(np.float32)[0, 1]).max() > 0.5
    np.testing.assert_allclose(
        y.astype(np.float32), rotated(x, positions, frequencies, 'half'), atol=2**-8
    )
    assert rotate(x, positions, frequencies)[0, 2, 0, 1] == pytest.approx(0.306693, abs=1e-4)


@pytest.mark.parametrize('layout', LAYOUTS)
def test_the_gradient_of_a_rotation_is_the_opposite_rotation(layout):
    x, cotangent = normal(8, 1, 4, 2, 12), normal(9, 1, 4, 2, 12)
    turn = partial(rotate, frequencies=rope_frequencies(8)[0], layout=layout)
    _, pullback = jax.vjp(lambda x: turn(x, np.arange(4)), x)
    np.testing.assert_allclose(pullback(cotangent)[0], turn(cotangent, -np.arange(4)), atol=1e-6)


@pytest.mark.parametrize('layout', LAYOUTS)
def test_cosines_are_not_computed_again_for_every_head(layout):
    frequencies = rope_frequencies(16)[0]
    turn = partial(apply_rope, frequencies=frequencies, layout=layout)
    compiled = jax.jit(turn).lower(jnp.zeros((2, 8, 5, 16)), jnp.zeros((2, 8), int)).compile()
    fused = [text for text in compiled.as_text().split('\n\n') if ' cosine(' in text]
    assert fused
    assert not any('[2,8,5,' in text for text in fused)


def test_rope_refuses_more_frequencies_than_features_and_unknown_layouts():
    x = jnp.zeros((1, 2, 1, 4))
    with pytest.raises(ValueError, match='4 frequencies do not fit a head of 4'):
        apply_rope(x, jnp.arange(2), np.ones(4))
    with pytest.raises(ValueError, match="not 'neox'"):
        apply_rope(x, jnp.arange(2), np.ones(2), layout='neox')
