"""Drafts kept and replaced: the distribution of the model, whatever that of the drafts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.functional import accept_drafts

V, K = 5, 2
P = jnp.array([[2.0, 1, 0, 0, -1], [0, 0, 3, 0, 1], [1, 2, 0, 1, -2]])  # of any token before
DRAFTS = {
    'near': P[:K] + 0.5 * jnp.array([1.0, -1, 0, 1, 0]),
    'far': -P[:K],
    'sure of one': jnp.array([[0, 0, 0, 50.0, 0]] * K),
    'the model': P[:K],
}


@pytest.mark.parametrize('name', DRAFTS)
def test_tokens_have_the_distribution_of_the_model(name):
    """Counts of all results are multinomial: compared within four standard deviations."""
    q, count = DRAFTS[name], 100_000

    @jax.vmap
    def run(key):
        draft_key, accept_key = jax.random.split(key)
        drafts = jax.random.categorical(draft_key, q)
        return accept_drafts(accept_key, drafts, q, P)

    tokens, made = jax.jit(run)(jax.random.split(jax.random.key(0), count))
    tokens, made, p = np.asarray(tokens), np.asarray(made), np.asarray(jax.nn.softmax(P))
    for place in range(K + 1):
        # Whether there is a token at a place depends on the earlier ones alone.
        there = tokens[made > place, place]
        found = np.bincount(there, minlength=V)
        error = 4 * np.sqrt(len(there) * p[place] * (1 - p[place])) + 1e-9
        assert (np.abs(found - len(there) * p[place]) <= error).all(), place
    overlap = np.minimum(p[0], jax.nn.softmax(q)[0]).sum()  # Leviathan et al., corollary 3.6
    assert (made > 1).mean() == pytest.approx(overlap, abs=0.01)


def test_greedy_drafts_are_kept_up_to_the_first_other_one():
    best = [0, 2, 1]  # of P
    for drafts, made in ([0, 2], 3), ([0, 3], 2), ([1, 2], 1), ([4, 4], 1):
        tokens, count = accept_drafts(None, jnp.array(drafts), None, P)
        assert count == made
        assert tokens.tolist()[:made] == best[:made]
