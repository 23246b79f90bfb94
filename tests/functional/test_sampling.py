"""Sampling: filters against sorting in numpy, edge values, and one program for all settings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.functional.sampling import apply_temperature, greedy, min_p, sample, top_k, top_p

V = 11
NAMES = ('temperature', 'top_k', 'top_p', 'min_p')
draw = jax.jit(sample)  # the options are traced
draw_plain = jax.jit(sample, static_argnames=NAMES)  # they are Python numbers
warm = jax.jit(apply_temperature)
plain = {'top_k': top_k, 'top_p': top_p, 'min_p': min_p}
filters = {name: jax.jit(function) for name, function in plain.items()}


def rows(seed=0, count=6):
    """Random logits with ties, negative numbers, and both zeros."""
    rng = np.random.default_rng(seed)
    logits = np.round(3 * rng.standard_normal((count, V))).astype(np.float32)
    logits[0, :4] = 0.0, -0.0, 0.0, -0.0
    return logits


def softmax64(logits):
    logits = np.asarray(logits, np.float64)
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def expected_tokens(name, row, option):
    """The ids that a filter keeps, from a stable sort."""
    order = np.argsort(-row, kind='stable')
    probabilities = softmax64(row)[order]
    if name == 'top_k':
        return set(order[: int(option) or V])
    if name == 'top_p':
        before = np.cumsum(probabilities) - probabilities
        kept = (before < option - 1e-7) | (option >= 1)
        return {order[0]} | set(order[kept])
    return set(order[probabilities >= option * probabilities[0] * (1 - 1e-6)])


def kept(logits):
    """The ids left in one row, each with its logit."""
    return set(np.flatnonzero(np.asarray(logits).astype(float) > -1e37).tolist())


OPTIONS = {
    'top_k': [0, 1, 2, 5, V, 100],
    'top_p': [0.0, 1e-9, 0.2, 0.5, 0.9, 0.99, 1.0],
    'min_p': [0.0, 0.04, 0.3, 1.0],
}
CASES = [(name, option) for name, options in OPTIONS.items() for option in options]


@pytest.mark.parametrize(('name', 'option'), CASES)
def test_filters_keep_what_a_stable_sort_keeps(name, option):
    logits = rows()
    filtered = filters[name](logits, option)
    assert filtered.dtype == jnp.float32
    for before, after in zip(logits, np.asarray(filtered), strict=True):
        tokens = expected_tokens(name, before, option)
        assert kept(after) == tokens
        np.testing.assert_array_equal(after[list(tokens)], before[list(tokens)])


@pytest.mark.parametrize('name', OPTIONS)
def test_each_row_may_have_its_own_option_and_numbers_need_not_be_traced(name):
    options = np.array(OPTIONS[name][1:3])
    logits = rows(count=2)
    filtered = filters[name](logits, options)
    for row, option, after in zip(logits, options.tolist(), filtered, strict=True):
        np.testing.assert_array_equal(after, plain[name](row, option))


@pytest.mark.parametrize('name', OPTIONS)
def test_filters_of_bfloat16_with_ties(name):
    logits = rows(1).astype(jnp.bfloat16)
    option = OPTIONS[name][2]
    filtered = filters[name](logits, option)
    assert filtered.dtype == jnp.bfloat16
    for before, after in zip(logits.astype(np.float32), filtered, strict=True):
        assert kept(after) == expected_tokens(name, before, option)


def test_filters_of_float64_see_differences_that_float32_does_not():
    logits = 1 + 1e-12 * np.array([3.0, 5, 1, 4])
    with jax.enable_x64(True):
        assert kept(top_k(jnp.asarray(logits), 2)) == {1, 3}
        assert kept(top_p(jnp.asarray(logits), 0.3)) == {1, 3}


@pytest.mark.parametrize(('name', 'option'), CASES)
@pytest.mark.parametrize('scale', [0.0, 1e4, 1e30])
def test_extreme_logits_stay_finite_and_leave_a_token(name, option, scale):
    logits = scale * rows()
    filtered = np.asarray(filters[name](logits, option))
    assert np.isfinite(filtered).all()
    assert np.isfinite(jax.nn.log_softmax(filtered)).all()
    best = logits.argmax(-1)
    np.testing.assert_array_equal(filtered[np.arange(6), best], logits[np.arange(6), best])


@pytest.mark.parametrize('temperature', [0.01, 0.7, 1.0, 3.0])
def test_temperature_divides_logits(temperature):
    logits = rows()
    expected = softmax64(logits.astype(np.float64) / temperature)
    np.testing.assert_allclose(jax.nn.softmax(warm(logits, temperature)), expected, atol=1e-6)


@pytest.mark.parametrize('temperature', [1e-2, 1e-30, 1e-45])
@pytest.mark.parametrize('scale', [1.0, 100.0, 1e30])
def test_low_temperatures_stay_finite(temperature, scale):
    scaled = warm(scale * rows(), temperature)
    assert np.isfinite(scaled).all()
    filtered = filters['top_p'](scaled, 0.9)
    assert np.isfinite(jax.nn.softmax(filtered)).all()
    assert all(kept(row) for row in filtered)


def test_temperature_zero_top_p_zero_and_top_k_one_are_greedy():
    logits = (100 * rows()).astype(jnp.bfloat16)  # with ties: the first wins
    best, key = np.argmax(logits.astype(np.float32), axis=-1), jax.random.key(0)
    tokens = draw_plain(key, logits, temperature=0, top_p=0.9)
    assert tokens.dtype == jnp.int32
    np.testing.assert_array_equal(tokens, best)
    for temperature, k, p in (0.0, 0, 0.9), (1.0, 0, 0.0), (1.0, 1, 1.0):
        for key in jax.random.split(jax.random.key(1), 3):
            tokens = draw(key, logits, temperature=temperature, top_k=k, top_p=p)
            np.testing.assert_array_equal(tokens, best)


def test_a_row_with_temperature_zero_is_greedy_beside_others():
    logits = np.tile(rows()[:2], (40, 1))
    temperatures = np.tile(np.array([0.0, 1e3], np.float32), 40)
    tokens = np.asarray(draw(jax.random.key(0), logits, temperature=temperatures))
    np.testing.assert_array_equal(tokens[::2], logits[0].argmax())
    assert len(set(tokens[1::2].tolist())) > V // 2


def test_greedy_neither_draws_nor_searches_and_plain_sampling_does_not_search():
    logits = rows()

    def program(**options):
        return str(jax.make_jaxpr(lambda key: sample(key, logits, **options))(jax.random.key(0)))

    greedy = program(temperature=0.0, top_k=5, top_p=0.9, min_p=0.1)
    searches = 'while[', 'scan[', 'sort['
    assert not any(name in greedy for name in ('random', *searches))
    plain = program(temperature=0.7)
    assert 'random' in plain
    assert not any(name in plain for name in searches)
    assert any(name in program(top_p=0.9) for name in searches)


def test_numbers_and_traced_options_draw_the_same_tokens_from_one_program():
    logits, traces = rows(), []

    @jax.jit
    def program(key, logits, **options):
        traces.append(options)
        return sample(key, logits, **options)

    for i, settings in enumerate([(1.0, 0, 1.0, 0.0), (0.0, 0, 1.0, 0.0), (1.3, 100, 0.8, 0.05)]):
        key = jax.random.key(i)
        options = dict(zip(NAMES, settings, strict=True))
        tokens = program(key, logits, **options)
        np.testing.assert_array_equal(tokens, draw_plain(key, logits, **options))
    assert len(traces) == 1


def assert_frequencies(tokens, probabilities):
    """Each within 5 standard deviations: a false alarm in two million."""
    counts = np.bincount(tokens, minlength=len(probabilities))
    deviations = np.sqrt(len(tokens) * probabilities * (1 - probabilities))
    assert (np.abs(counts - len(tokens) * probabilities) <= 5 * deviations).all()


def test_tokens_have_the_probabilities_of_the_filtered_logits():
    row = np.array([1.0, 0.5, 2.0, -1.0, 0.0, -3.0], np.float32)
    logits = np.broadcast_to(row, (20_000, 6))  # rows are drawn independently
    assert_frequencies(np.asarray(draw(jax.random.key(1), logits)), softmax64(row))

    options = {'temperature': 0.8, 'top_k': 5, 'top_p': 0.93, 'min_p': 0.1}
    tokens = np.asarray(draw(jax.random.key(2), logits, **options))
    probabilities = softmax64(row / 0.8)
    # Top-k drops token 5; of the rest, renormalised, top-p needs 2, 0, 1, 4 (0.927 is short);
    # min-p drops 4, with 0.082 of the probability of 2.
    probabilities[[5, 3, 4]] = 0
    assert_frequencies(tokens, probabilities / probabilities.sum())


def test_filters_apply_in_order():
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))
    # After top-k 2 the first token has 4/7 > 0.5; without it 0.4 < 0.5, and two would stay.
    tokens = jax.vmap(lambda key: draw(key, logits, top_k=2, top_p=0.5))(
        jax.random.split(jax.random.key(3), 100)
    )
    assert set(tokens.tolist()) == {0}


def test_a_single_row_needs_no_batch():
    token = draw(jax.random.key(0), rows()[1], temperature=0.5, top_k=3)
    assert token.shape == ()
    assert int(token) in expected_tokens('top_k', rows()[1], 3)


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_greedy_is_the_first_of_the_largest(dtype):
    logits = np.random.default_rng(0).integers(-3, 3, (40, 5, 11))  # most rows have equal ones
    chosen = greedy(jnp.asarray(logits, dtype))
    assert chosen.dtype == jnp.int32
    np.testing.assert_array_equal(chosen, logits.argmax(-1))
    assert greedy(jnp.full((3,), -jnp.inf, dtype)) == 0
