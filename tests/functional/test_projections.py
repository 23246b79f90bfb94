"""Projections: equal to a plain product in value and in every kind of derivative."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from transformer.functional import affine, merge_heads, split_heads, unembed

B, T, N, H = 2, 3, 4, 5
SHAPES = [(4, 7), (7, 4), (5, 5)]  # narrow to wide, wide to narrow, square


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def plain(x, w, b):
    return jnp.einsum('...D,DF->...F', x, w) + b


@pytest.mark.parametrize(('D', 'F'), SHAPES)
def test_affine_is_its_equation_in_every_derivative(D, F):
    arguments = normal(0, B, T, D), normal(1, D, F), normal(2, F)
    with jax.enable_x64(True):
        np.testing.assert_allclose(affine(*arguments), plain(*arguments), atol=1e-12)
        check_grads(jax.jit(affine), arguments, order=2, modes=['fwd', 'rev'])

        def curvature(function):  # forward over reverse, of a map that bends in both factors
            def loss(x, w):
                return jnp.sum(jnp.sin(function(x, w, arguments[2])))

            return jax.jit(jax.hessian(loss, argnums=(0, 1)))(*arguments[:2])

        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12),
            curvature(affine),
            curvature(plain),
        )


@pytest.mark.parametrize(('D', 'F'), SHAPES)
def test_gradients_of_many_weights_at_once(D, F):
    x, w, b = normal(0, B, T, D), normal(1, 3, D, F), normal(2, F)
    with jax.enable_x64(True):

        def gradients(function):
            def loss(x, w):
                return jnp.sum(jnp.sin(function(x, w, b)))

            return jax.jit(jax.vmap(jax.grad(loss, argnums=(0, 1)), in_axes=(None, 0)))(x, w)

        for ours, theirs in zip(gradients(affine), gradients(plain), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-12)


@pytest.mark.parametrize(('D', 'F'), SHAPES)
def test_what_is_not_differentiated_costs_no_product(D, F):
    x, w = normal(0, B, T, D), normal(1, D, F)

    def products(argnums):
        program = jax.make_jaxpr(jax.grad(lambda x, w: affine(x, w).sum(), argnums))(x, w)
        return str(program).count('dot_general')

    assert products(0) == 2  # forward, and the gradient of x
    assert products(1) == 2
    assert products((0, 1)) == 3


@pytest.mark.skipif(jax.default_backend() != 'cpu', reason='other devices take the plain product')
@pytest.mark.parametrize(('D', 'F'), [(64, 256), (256, 64), (64, 64)])
def test_no_product_contracts_the_rows_of_its_first_factor(D, F):
    def loss(x, w):
        return jnp.sum(jnp.sin(affine(x, w)))

    arguments = np.float32(normal(0, 8, 16, D)), np.float32(normal(1, D, F))
    program = jax.jit(jax.grad(loss, (0, 1))).lower(*arguments).compile().as_text()
    assert re.findall(r' dot\(.*lhs_contracting_dims=\{(.*?)\}', program) == ['1', '1', '1']


def test_low_precision_is_summed_up_in_the_dtype_asked_for():
    x, w = (jnp.asarray(a, jnp.bfloat16) for a in (normal(0, T, 64), normal(1, 64, 8)))
    assert affine(x, w).dtype == jnp.bfloat16
    logits = affine(x, w, dtype=jnp.float32)
    assert logits.dtype == jnp.float32
    np.testing.assert_allclose(logits, np.float64(x) @ np.float64(w), rtol=1e-5, atol=1e-5)
    gradient = jax.grad(lambda w: affine(x, w, dtype=jnp.float32).sum())(w)
    assert gradient.dtype == jnp.bfloat16
    expected = np.tile(np.float64(x).sum(0)[:, None], 8)
    np.testing.assert_allclose(np.float64(gradient), expected, rtol=2**-7, atol=2**-6)


def test_heads_are_split_and_merged_as_their_equations():
    x, w, b = normal(0, B, T, 6), normal(1, 6, N, H), normal(2, N, H)
    back, c = normal(3, N, H, 6), normal(4, 6)
    with jax.enable_x64(True):
        heads = np.einsum('btd,dnh->btnh', x, w) + b
        np.testing.assert_allclose(split_heads(x, w, b), heads, atol=1e-12)
        merged = np.einsum('btnh,nhd->btd', heads, back) + c
        np.testing.assert_allclose(merge_heads(heads, back, c), merged, atol=1e-12)
        np.testing.assert_allclose(split_heads(x[0, 0], w, b), heads[0, 0], atol=1e-12)
        check_grads(split_heads, (x, w, b), order=1)
        check_grads(merge_heads, (heads, back, c), order=1)


def test_split_and_merge_name_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match=r'x \[2, 3, 9\] and w \[10, 4, 5\]'):
        split_heads(np.zeros((B, T, 9)), np.zeros((10, N, H)))
    with pytest.raises(ValueError, match=r'x \[2, 3, 4, 7\] and w \[4, 5, 10\]'):
        merge_heads(np.zeros((B, T, N, 7)), np.zeros((N, H, 10)))


@pytest.mark.parametrize('shape', [(7,), (1, 1, 7), (2, 7), (4, 8, 7), (3, 11, 7)])
def test_unembed_multiplies_by_every_row_of_the_table(shape):
    """Of one, few and many rows of activations."""
    x, table = normal(0, *shape), normal(1, 9, 7)
    with jax.enable_x64(True):
        expected = np.einsum('...d,vd->...v', x, table)
        np.testing.assert_allclose(jax.jit(unembed)(x, table), expected, atol=1e-12)
        check_grads(jax.jit(unembed), (x, table), order=2, modes=['fwd', 'rev'])
        many = jax.vmap(unembed, (None, 0))(x, np.stack([table, 2 * table]))
        np.testing.assert_allclose(many, np.stack([expected, 2 * expected]), atol=1e-12)


def test_unembed_sums_up_in_the_dtype_it_returns():
    x, table = (jnp.asarray(normal(i, 4, 256), jnp.bfloat16) for i in range(2))
    expected = np.asarray(x, np.float64) @ np.asarray(table, np.float64).T
    products = unembed(x, table, dtype=jnp.float32)
    assert products.dtype == jnp.float32
    np.testing.assert_allclose(products, expected, atol=1e-4)
    assert unembed(x, table).dtype == jnp.bfloat16


@pytest.mark.skipif(jax.default_backend() != 'cpu', reason='other devices take the plain product')
@pytest.mark.parametrize(('rows', 'first'), [(1, (1, 7)), (2, (9, 7)), (32, (9, 7)), (33, (33, 7))])
def test_the_table_comes_first_for_few_rows(rows, first):
    text = jax.jit(unembed).lower(np.ones((rows, 7)), np.ones((9, 7))).as_text()
    operand = re.search(r'dot_general.*: \(tensor<(\d+)x(\d+)x', text)
    assert tuple(map(int, operand.groups())) == first
