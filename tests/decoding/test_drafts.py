"""Speculative decoding: the tokens of greedy decoding, and the distribution of the model alone."""

import decoding_models
import jax
import numpy as np
import pytest
from decoding_models import PROMPTS, full_log_probs

from transformer.config import RopeConfig
from transformer.decoding import generate, stream, unrolled
from transformer.decoding.drafts import Pair, speculate
from transformer.decoding.generation import start
from transformer.errors import UserError
from transformer.parallel import RowParallel

NEW = 20
MODELS = {
    'local and global': {'num_kv_heads': 2, 'layer_pattern': ('local', 'global'), 'window': 4},
    'alibi': {'position': 'alibi'},
    'learned': {'position': 'learned', 'norm_placement': 'post'},
    'relative': {'position': 'relative', 'logits_softcap': 9.0},
}


def make(name='local and global', **changes):
    return decoding_models.make('other', **MODELS[name] | changes)


def drafted(model, params, draft, prompts=PROMPTS, **options):
    return generate(model, params, prompts, **{'max_new_tokens': NEW} | options, draft=draft)


def nearly(params, share=0.05):
    """Parameters that are now and then of another opinion."""
    random = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: leaf + share * random.normal(size=leaf.shape), params)


@pytest.mark.parametrize(('name', 'num_drafts'), list(zip(MODELS, [1, 3, 7, 4], strict=True)))
def test_greedy_tokens_are_those_of_the_model_alone(name, num_drafts):
    model, params = make(name)
    expected = generate(model, params, PROMPTS, max_new_tokens=NEW)
    for draft in (model, params), (model, nearly(params)), make('alibi', num_layers=1):
        assert drafted(model, params, draft, num_drafts=num_drafts) == expected


def test_drafts_are_kept():
    """A model that drafts for itself is called once for `num_drafts` + 1 tokens."""
    model, params = make()
    options = {'max_new_tokens': NEW, 'draft': (model, params), 'num_drafts': 4, 'chunk': 1}
    chunks = [len(new) for (new,) in stream(model, params, PROMPTS[:1], **options)]
    assert chunks == [5] * (NEW // 5)
    options['draft'] = make('alibi', num_layers=1)  # agrees by chance alone
    chunks = [len(new) for (new,) in stream(model, params, PROMPTS[:1], **options)]
    assert sum(chunks) == NEW
    assert len(chunks) > NEW / 2


def test_rows_end_at_their_token_or_at_the_limit():
    model, params = make()
    plain = generate(model, params, PROMPTS, max_new_tokens=NEW)
    eos_id = plain[0][6]
    expected = generate(model, params, PROMPTS, max_new_tokens=NEW, eos_id=eos_id)
    assert {len(row) for row in expected} > {NEW} or len(expected[0]) <= 7
    found = drafted(model, params, (model, nearly(params)), eos_id=eos_id)
    assert found == expected
    for new in 1, 2, 6:  # fewer than are made in a round, and not a multiple of it
        found = drafted(model, params, (model, params), max_new_tokens=new)
        assert found == [row[:new] for row in plain]


def test_a_chunk_of_the_terminal_changes_nothing():
    model, params = make()
    draft = model, nearly(params)
    parts = stream(model, params, PROMPTS, max_new_tokens=NEW, draft=draft, chunk=3)
    rows = [[token for new in column for token in new] for column in zip(*parts, strict=True)]
    assert rows == drafted(model, params, draft)


@pytest.mark.parametrize('top_k', [0, 3])
def test_what_is_drawn_has_the_distribution_of_the_model_alone(top_k):
    """Of the first two tokens, by Pearson's statistic over all pairs."""
    changes, count, prompt, temperature = {'vocab_size': 6}, 20_000, [3, 1], 1.5
    (model, params), draft = make(**changes), make('alibi', **changes, num_layers=1)
    (model, params), (draft_model, draft_params) = unrolled(model, params), unrolled(*draft)
    one = RowParallel(1)
    state = start(one, model, params, [prompt], None, 16)
    pair = Pair(state, start(one, draft_model, draft_params, [prompt], None, 16).cache)
    options = {'temperature': np.float32(temperature)} | (
        {'top_k': np.int32(top_k)} if top_k else {}
    )

    @jax.jit
    @jax.vmap
    def draw(row):
        return speculate(
            params, draft_params, pair, key=jax.random.key(0), row=row, options=options,
            eos_id=np.int32(-1), stop=np.int32(2), limit=np.int32(2), config=model.config,
            draft_config=draft_model.config, num_drafts=2, vocab_limit=6,
        )[1][0, :2]  # fmt: skip

    found = np.zeros((6, 6))
    np.add.at(found, tuple(np.array(draw(np.arange(count))).T), 1)

    rows = [[*prompt, token] for token in range(6)]
    log_probs = full_log_probs('other', rows, **MODELS['local and global'] | changes)

    def probabilities(log_probs):
        is_kept = log_probs >= np.sort(log_probs)[-(top_k or 6)]
        kept = np.where(is_kept, np.exp(log_probs / temperature), 0)
        return kept / kept.sum()

    after = np.stack([probabilities(row[2]) for row in log_probs])
    expected = count * probabilities(log_probs[0, 1])[:, None] * after
    possible = expected > 0
    assert found[~possible].sum() == 0
    statistic = (np.square(found - expected)[possible] / expected[possible]).sum()
    freedom = possible.sum() - 1
    assert statistic < freedom + 4 * np.sqrt(2 * freedom)


def test_a_row_draws_the_same_whatever_stands_beside_it():
    model, params = make()
    draft, options = (model, nearly(params)), {'key': jax.random.key(3), 'temperature': 0.8}
    together = drafted(model, params, draft, **options)
    alone = drafted(model, params, draft, PROMPTS[1:2], first_row=1, **options)
    assert alone == together[1:2]


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'vocab_size': 39}, 'vocabulary of 39 tokens and the model one of 40'),
        ({'max_length': 9}, 'The draft cannot follow. Prompt 1 has 7 tokens'),
        ({'topology': 'encoder_decoder'}, "the draft's is 'encoder_decoder'"),
        ({'rope': RopeConfig(scaling='dynamic', factor=2.0)}, "The draft's rope.scaling"),
    ],
)
def test_drafts_that_cannot_be_are_refused(changes, message):
    model, params = make()
    with pytest.raises(UserError, match=message):
        drafted(model, params, make(**changes))


def test_no_draft_at_a_time_is_refused():
    model, params = make()
    with pytest.raises(UserError, match='num_drafts must be at least 1, not 0'):
        drafted(model, params, (model, params), num_drafts=0)
