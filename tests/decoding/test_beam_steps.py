"""Single steps of a beam search, on chains of known probabilities."""

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.decoding.search import NEVER, Finished, Search, compact, select
from transformer.modules import LayerCache


def test_clearing_keeps_what_a_hypothesis_sees_and_its_order():
    slots = jnp.arange(6)
    layer = LayerCache(
        key=(slots + 10 * jnp.arange(4)[:, None])[..., None],  # 2 rows of 2 heads, [4, 6, 1]
        value=jnp.zeros((4, 6, 1)),
        positions=slots + jnp.array([[0], [20]]),
        segment_ids=jnp.ones((2, 6), jnp.int32),
        index=jnp.int32(6),
    )
    visible = jnp.array([[[1, 0, 1, 0, 0, 0], [1, 0, 0, 0, 1, 0]], [[1, 1, 0, 0, 0, 0]] * 2], bool)
    search = walk([[0.0, 0.0, 1.0]] * 3, 1.0, 1, M=2)[0].replace(cache=(layer,), visible=visible)
    cleared = compact(search, size=8)
    [cache] = cleared.cache
    assert int(cache.index) == 3
    np.testing.assert_array_equal(
        cache.key[:, :3, 0], [[0, 2, 4], [10, 12, 14], [20, 21, 22], [30, 31, 32]]
    )
    np.testing.assert_array_equal(cache.positions[:, :2], [[0, 2], [20, 21]])
    expected = [[[1, 1, 0], [1, 0, 1]], [[1, 1, 0]] * 2]
    np.testing.assert_array_equal(cleared.visible[..., :3], expected)
    assert cleared.visible.shape == (2, 2, 8)
    assert not cleared.visible[..., 3:].any()


def walk(chain, alpha, steps, M=1, K=1, stop=8):
    """States of a search in a Markov chain: log-probabilities of token 0 (the end), 1, 2 ...

    Args:
        chain: probabilities [V, V] of the next token after each; the first one is after token 1.
    """
    V = len(chain)
    empty = jnp.full((1, K), NEVER)
    state = Search(
        cache=(),
        visible=jnp.ones((1, M, 1), bool),
        newest=jnp.ones((1, M), jnp.int32),
        tokens=jnp.zeros((1, M, stop), jnp.int32),
        log_probs=jnp.full((1, M), NEVER).at[:, 0].set(0),
        finished=Finished(
            jnp.zeros((1, K, stop), jnp.int32), jnp.zeros((1, K), jnp.int32), empty, empty
        ),
        count=jnp.int32(0),
        ended=jnp.zeros(1, bool),
    )
    chain = jnp.log(jnp.array(chain))
    states = []
    for _ in range(steps):
        log_probs = jnp.maximum(state.log_probs[..., None] + chain[state.newest], NEVER)
        assert log_probs.shape == (1, M, V)
        state = select(state, log_probs, jnp.int32(0), jnp.int32(stop), alpha)
        states.append(state)
    return states


# The end is likely at once; else, almost surely, after token 2.
CHAIN = [[1.0, 0.0, 0.0], [0.6, 0.0, 0.4], [0.999999, 0.0, 0.000001]]


@pytest.mark.parametrize(
    ('alpha', 'ended', 'length'),
    [
        (-1.0, [True, True, True], 1),
        (0.0, [True, True, True], 1),
        # log(0.4) / (13 / 6) exceeds log(0.6) / 1, so a longer one may still win, and does not.
        (1.0, [False, True, True], 1),
        # And here it does: log(0.4) / (7 / 6)^4 exceeds log(0.6).
        (4.0, [False, True, True], 2),
    ],
)
def test_a_row_stops_when_nothing_unfinished_can_win_and_not_before(alpha, ended, length):
    states = walk(CHAIN, alpha, 3)
    assert [bool(state.ended[0]) for state in states] == ended
    assert int(states[-1].finished.lengths[0, 0]) == length
    kept = states[ended.index(True)].finished
    jax.tree.map(np.testing.assert_array_equal, states[-1].finished, kept)


def test_a_pool_that_is_not_full_does_not_stop_the_row():
    states = walk(CHAIN, 0.0, 3, M=2, K=2)
    assert [bool(state.ended[0]) for state in states] == [False, True, True]
    np.testing.assert_array_equal(states[-1].finished.lengths, [[1, 2]])
    np.testing.assert_allclose(states[-1].finished.scores, np.log([[0.6, 0.4]]), rtol=1e-5)


def test_hypotheses_that_are_none_stay_none():
    [state, *_] = walk([[0.0, 0.0, 1.0]] * 3, 1.0, 1, M=3, K=2)
    np.testing.assert_array_equal(state.log_probs, np.float32([[0, NEVER, NEVER]]))
    np.testing.assert_array_equal(state.finished.lengths, 0)
    np.testing.assert_array_equal(state.finished.scores, np.float32(NEVER))
    assert not state.ended
