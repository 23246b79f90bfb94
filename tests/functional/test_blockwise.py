"""Blockwise attention: equal to the plain implementation, whatever the blocks; what it skips."""

import functools
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import (
    BAND,
    BIAS,
    FEATURES,
    KEYS,
    MASK,
    SEGMENTS,
    SINKS,
    SLOPES,
    N,
    T,
    alibi,
    buckets,
    inputs,
)

from transformer.functional import attention_blocks
from transformer.functional.attention import dot_product_attention

TABLE = BIAS.reshape(-1, N)[:7]
# Each once in blocks of one key head, or of all heads and rows.
CASES = {
    'every key, block by block': (1, {}),
    'every key, all heads in a block': (1000, {}),
    'causal, alibi and sinks': (
        1,
        {'is_causal': True, 'bias': (alibi, SLOPES), 'sinks': SINKS, 'scale': 0.3},
    ),
    'window of shuffled positions and dropout': (
        1,
        {
            'is_causal': True,
            'local_window_size': (3, 0),
            'query_positions': np.array([3, 0, 5, 1, 4, 2]),
            'dropout_rate': 0.3,
            'dropout_key': KEYS[0],
        },
    ),
    'bias of all heads, some of it -inf': (
        1,
        {'bias': np.where(BAND, BIAS[:1], -np.inf), 'softcap': 0.8, 'mask': MASK},
    ),
    'buckets of each row and lengths': (
        1000,
        {
            'bias': (buckets, TABLE),
            'query_positions': np.array([[1], [5]]) + np.arange(T),
            'query_seq_lengths': np.array([4, 6]),
            'key_value_seq_lengths': np.array([0, 5]),
        },
    ),
    'everything': (
        1000,
        {
            **FEATURES['all'][0],
            'local_window_size': (3, 1),
            'mask': MASK & BAND,
            'dropout_rate': np.float64(0.3),
            'dropout_key': KEYS,
        },
    ),
}


def results(arrays, implementation, **arguments):
    """Output, residual, and the gradients by every argument that is a float array."""
    names = {'sinks', 'scale', 'softcap', 'bias', 'dropout_rate'} & arguments.keys()
    variables = {name: arguments.pop(name) for name in names}
    bias_fn = None
    if isinstance(variables.get('bias'), tuple):
        bias_fn, variables['bias'] = variables['bias']
    variables = jax.tree.map(lambda x: jnp.asarray(x, arrays[0].dtype), variables)

    def loss(arrays, variables):
        if bias_fn:
            variables = {**variables, 'bias': (bias_fn, variables['bias'])}
        attend = functools.partial(dot_product_attention, implementation=implementation)
        output, residual = attend(*arrays, **variables, **arguments, return_residual=True)
        signs = jnp.cos(jnp.arange(output.size)).reshape(output.shape)
        return (output * signs).sum(), (output, residual)

    return jax.tree.leaves(jax.grad(loss, (0, 1), has_aux=True)(arrays, variables))


def assert_close(mine, others, tolerance):
    """Within `tolerance` of the largest element."""
    for x, y in zip(mine, others, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * max(np.abs(y).max(), 1e-3))


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of four queries and keys, of which 6 make one and a half."""
    monkeypatch.setattr(attention_blocks, 'CPU_SIDE', 4)
    monkeypatch.setattr(attention_blocks, 'CPU_BUDGET', 1)


@pytest.mark.parametrize('name', CASES)
def test_equals_the_plain_implementation_in_float64(name, small_blocks, monkeypatch):
    budget, arguments = CASES[name]
    monkeypatch.setattr(attention_blocks, 'CPU_BUDGET', budget)
    with jax.enable_x64(True):
        run = jax.jit(lambda x: [results(x, i, **arguments) for i in ('blockwise', 'xla')])
        assert_close(*run(inputs(dtype=np.float64)), tolerance=1e-12)


@pytest.mark.parametrize(('dtype', 'tolerance'), [(jnp.float32, 2e-6), (jnp.bfloat16, 2**-8)])
def test_low_precision_rounds_like_the_plain_implementation(dtype, tolerance, small_blocks):
    arrays = [jnp.asarray(x, dtype) for x in inputs(t=7, s=9)]
    run = jax.jit(lambda x: [results(x, i, is_causal=True) for i in ('blockwise', 'xla')])
    assert_close(*run(arrays), tolerance)


# What is skipped. A key of NaN makes a block's output NaN, even where it is masked out.


@pytest.mark.parametrize(
    'arguments',
    [
        {'is_causal': True},
        {'local_window_size': (2, 0)},
        {'query_segment_ids': np.repeat([1, 2, 0], 4)},
        {'is_causal': True, 'query_positions': np.arange(12) + 5},
    ],
    ids=lambda arguments: '+'.join(arguments),
)
def test_blocks_in_which_nothing_is_allowed_are_not_computed(arguments, small_blocks):
    query, key, value = inputs(t=12, s=12)
    key[:, 8:] = np.nan
    output = jax.jit(lambda *x: dot_product_attention(*x, implementation='blockwise', **arguments))(
        query, key, value
    )
    assert np.all(np.isfinite(output[:, :8]))
    assert 'query_segment_ids' in arguments or np.all(np.isnan(output[:, 8:]))


def equations(jaxpr):
    """Every equation of a jaxpr, and of those within."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: hasattr(x, 'eqns')
        ):
            inner = getattr(inner, 'jaxpr', inner)
            if hasattr(inner, 'eqns'):
                yield from equations(inner)


def test_nothing_is_of_the_size_of_the_logits():
    L = 4096
    arrays = [jax.ShapeDtypeStruct((1, L, 2, 8), np.float32) for _ in range(3)]

    def largest(implementation, **arguments):
        jaxpr = jax.make_jaxpr(lambda *x: results(x, implementation, **arguments))(*arrays)
        return max(out.aval.size for e in equations(jaxpr.jaxpr) for out in e.outvars)

    arguments = {
        'is_causal': True,
        'query_segment_ids': np.ones(L, int),
        'bias': (alibi, SLOPES[:2]),
    }
    assert largest('blockwise', **arguments) <= max(2 * L * 8, attention_blocks.CPU_BUDGET)
    assert largest('xla', **arguments) == 2 * L**2


@pytest.mark.parametrize('groups', [1, 4])
@pytest.mark.parametrize('lengths', [(8192, 8192), (8192, 256), (256, 8192), (3000, 1000)])
def test_a_block_is_within_the_budget_and_half_of_it_is_used(lengths, groups):
    T, S = lengths
    shapes = {'query': (1, T, 8, 64), 'key': (1, S, 8 // groups, 64)}
    shapes = {name: jax.ShapeDtypeStruct(x, np.float32) for name, x in shapes.items()}
    arguments = types.SimpleNamespace(**shapes, window=None, bias_fn=None)
    grid = attention_blocks.choose_grid(arguments, [])
    budget = attention_blocks.CPU_BUDGET
    assert 0.4 * budget <= grid.kv_heads * groups * grid.queries * grid.keys <= budget


# Transformations.


def test_examples_of_a_vmap_share_the_ends_of_loops(small_blocks):
    def loss(query, key, value, segment_ids):
        attend = functools.partial(dot_product_attention, implementation='blockwise')
        return (attend(query, key, value, query_segment_ids=segment_ids) ** 2).sum()

    def gradients(*arrays):
        return jax.grad(jax.checkpoint(loss), (0, 1, 2))(*arrays)

    arrays = (*inputs(), SEGMENTS)
    jaxpr = jax.make_jaxpr(jax.vmap(gradients))(*arrays)
    loops = [e for e in equations(jaxpr.jaxpr) if e.primitive.name == 'while']
    assert loops
    for loop in loops:
        assert [x.primitive.name for x in loop.params['cond_jaxpr'].jaxpr.eqns] == ['lt']
    together, alone = jax.jit(lambda *x: (gradients(*x), jax.vmap(gradients)(*x)))(*arrays)
    assert_close(together, alone, 2e-6)


def test_a_second_derivative_is_right_in_forward_mode_and_refused_in_reverse(small_blocks):
    query, key, value = inputs(dtype=np.float64)

    def gradient(implementation, query):
        attend = functools.partial(dot_product_attention, implementation=implementation)
        return jax.grad(lambda x: (attend(x, key, value, is_causal=True) ** 2).sum())(query)

    def change(implementation):
        function = functools.partial(gradient, implementation)
        return jax.jit(lambda x: jax.jvp(function, (x,), (x,))[1])(query)

    with jax.enable_x64(True):
        assert_close([change('blockwise')], [change('xla')], 1e-12)
        with pytest.raises(ValueError, match=r"no gradient of its gradient.*implementation='xla'"):
            jax.make_jaxpr(jax.grad(lambda x: gradient('blockwise', x).sum()))(query)


# The choice of an implementation.


def loops_of(t, s, **arguments):
    """Whether attention of t queries to s keys is computed in loops."""
    attend = functools.partial(dot_product_attention, **arguments)
    arrays = [jax.ShapeDtypeStruct((1, length, 1, 8), np.float32) for length in (t, s, s)]
    jaxpr = jax.make_jaxpr(attend)(*arrays)
    return any(e.primitive.name in ('while', 'scan') for e in equations(jaxpr.jaxpr))


def test_long_sequences_go_by_blocks_and_short_ones_and_single_queries_do_not():
    assert loops_of(1024, 1024)
    assert not loops_of(1024, 1024, implementation='xla')
    assert not loops_of(128, 128)
    assert loops_of(128, 128, implementation='blockwise')
    assert not loops_of(1, 2**20)


def test_the_plain_implementation_takes_over_what_blocks_cannot_do():
    assert not loops_of(1024, 1024, implementation='blockwise', return_weights=True)
    assert not loops_of(4, 0, implementation='blockwise')


def test_beside_arguments_and_gradients_there_are_blocks_alone():
    x = jax.ShapeDtypeStruct((1, 16_384, 8, 64), jnp.float32)  # 32 MiB

    def outputs(query, key, value, gradient):
        attend = functools.partial(
            dot_product_attention, is_causal=True, implementation='blockwise'
        )
        output, pull = jax.vjp(attend, query, key, value)
        return output, pull(gradient)

    memory = jax.jit(outputs).lower(x, x, x, x).compile().memory_analysis()
    assert memory.output_size_in_bytes == pytest.approx(4 * 2**25, rel=0.01)
    # Two blocks of float32, and some numbers of each query.
    assert memory.temp_size_in_bytes < 3 * 4 * attention_blocks.CPU_BUDGET


@pytest.mark.skipif(jax.default_backend() != 'cpu', reason='other devices multiply either way')
@pytest.mark.parametrize('is_causal', [True, False], ids=['strips', 'blocks'])
def test_no_product_contracts_the_rows_of_its_first_factor(is_causal):
    def loss(*arrays):
        options = {'is_causal': is_causal, 'implementation': 'blockwise'}
        return jnp.sin(dot_product_attention(*arrays, **options)).sum()

    arrays = [jax.ShapeDtypeStruct((1, 512, 4, 64), np.float32)] * 3
    program = jax.jit(jax.grad(loss, (0, 1, 2))).lower(*arrays).compile().as_text()
    products = re.findall(r'= f32\[([\d,]+)\]\S* dot\(.*lhs_contracting_dims=\{(.*?)\}', program)
    assert len(products) >= 6  # two forward and five backward, of which XLA may make one for all
    for shape, contracted in products:
        assert int(contracted) == shape.count(',')
