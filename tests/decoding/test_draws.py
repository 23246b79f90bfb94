"""Drawing tokens: what decides them, and their distribution."""

import jax
import jax.numpy as jnp
import numpy as np
from cached_models import draw, greedy_without_cache
from decoding_models import PROMPTS

from transformer.decoding.loop import choose_tokens


def test_what_a_row_draws_does_not_depend_on_batch_or_bucket():
    together = draw()
    for row, prompt in enumerate(PROMPTS):
        [alone] = draw([prompt], new=8, first_row=row)  # a cache of 16 slots, not 32
        assert alone == together[row][:8]
    same_prompt = draw([PROMPTS[0]] * 3)
    assert same_prompt[0] == together[0]
    assert len(set(map(tuple, same_prompt))) == 3


def test_the_key_decides_what_is_drawn():
    assert draw() == draw()
    assert draw() != draw(seed=1)


def test_temperature_zero_is_greedy_and_the_limit_of_small_ones():
    greedy, _ = greedy_without_cache('rope')
    assert draw(temperature=0.0, top_k=5, min_p=0.1) == greedy
    assert draw(temperature=1e-6) == greedy


@jax.jit
def chosen(logits, count=2, **options):
    rows = jnp.arange(len(logits), dtype=jnp.int32)
    return choose_tokens(logits, jax.random.key(3), rows, count, options)


def test_top_k_one_takes_the_largest_logit():
    logits = jax.random.normal(jax.random.key(0), (50, 20))
    np.testing.assert_array_equal(chosen(logits, temperature=9.0, top_k=1), logits.argmax(-1))


def test_drawn_tokens_follow_the_softmax_apart_for_each_row_and_token():
    logits = np.array([0.0, 1.0, -1.0, 0.5])
    many = np.tile(logits, (6000, 1)).astype(np.float32)
    first = np.asarray(chosen(many, temperature=0.7))
    second = np.asarray(chosen(many, count=3, temperature=0.7))
    expected = np.exp(logits / 0.7) / np.exp(logits / 0.7).sum()
    error = 4 * 0.5 / len(many) ** 0.5
    np.testing.assert_allclose(np.bincount(first) / len(many), expected, atol=error)
    alike = (expected**2).sum()  # the probability that two independent draws are the same
    np.testing.assert_allclose(np.mean(first[1:] == first[:-1]), alike, atol=error)
    np.testing.assert_allclose(np.mean(first == second), alike, atol=error)


def test_filters_leave_the_likeliest_only():
    logits = np.tile(np.float32([0.0, 3.0, 2.0, -1.0]), (200, 1))

    def kept(top_p, min_p):
        return set(chosen(logits, temperature=4.0, top_p=top_p, min_p=min_p).tolist())

    # Probabilities 0.18, 0.38, 0.30, 0.14; over the largest 0.47, 1, 0.78, 0.37.
    assert kept(top_p=1.0, min_p=0.0) == {0, 1, 2, 3}
    assert kept(top_p=0.6, min_p=0.0) == {1, 2}
    assert kept(top_p=1.0, min_p=0.4) == {0, 1, 2}
