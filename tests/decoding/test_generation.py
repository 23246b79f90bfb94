"""Decoding with a cache against the full forward pass, and what may not change the result."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.config import RopeConfig, TransformerConfig
from transformer.decoding import check_prompts, generate, stream, unrolled
from transformer.decoding.loop import CHUNK, State, choose_tokens, decode, next_logits, prefill
from transformer.errors import UserError
from transformer.modules import Transformer, init_cache

SMALL = {
    'vocab_size': 40,
    'num_layers': 2,
    'embed_dim': 16,
    'num_heads': 4,
    'mlp_dim': 24,
    'max_length': 32,
    'init_std': 0.5,  # so that the likeliest token changes from step to step
}
MODELS = {
    'rope': {
        'num_layers': 3,  # a period, scanned, and one layer more
        'num_kv_heads': 2,
        'layer_pattern': ('local', 'global'),
        'window': 4,
        'rope': RopeConfig(local_base=100.0),
    },
    'alibi': {'position': 'alibi', 'norm': 'layernorm', 'norm_placement': 'post'},
    'learned': {
        'position': 'learned',
        'scan_layers': False,
        'attention_bias': 'all',
        'tie_embeddings': False,
    },
    'relative': {'position': 'relative', 'window': 5, 'num_kv_heads': 1},
    'sinusoidal': {
        'position': 'sinusoidal',
        'scan_layers': False,
        'norm_placement': 'parallel',
        'logits_softcap': 9.0,
    },
}
PROMPTS = [[5, 31, 7, 7, 12, 0, 9], [17], [3, 1, 2]]  # longest 7: with 25 more, max_length
NEW = 25


@functools.cache
def make(name, **changes):
    model = Transformer(TransformerConfig(**SMALL | MODELS[name] | changes))
    return model, model.init(jax.random.key(0), {'tokens': np.ones((1, 2), np.int32)})['params']


@functools.partial(jax.jit, static_argnames='config')
def full_logits(params, tokens, config):
    return Transformer(config).apply({'params': params}, {'tokens': tokens})


@functools.cache
def greedy_without_cache(name):
    """Prompts and the tokens that follow, and the logits of all, by full forward passes."""
    model, params = make(name)
    lengths = np.array([len(prompt) for prompt in PROMPTS])
    tokens = np.zeros((len(PROMPTS), max(lengths) + NEW), np.int32)
    for row, prompt in zip(tokens, PROMPTS, strict=True):
        row[: len(prompt)] = prompt
    rows = np.arange(len(PROMPTS))
    for ends in lengths + np.arange(NEW)[:, None]:
        logits = np.asarray(full_logits(params, tokens, model.config))  # [B, T, V]
        tokens[rows, ends] = logits[rows, ends - 1].argmax(-1)
    new = [row[n : n + NEW].tolist() for n, row in zip(lengths, tokens, strict=True)]
    return new, np.asarray(full_logits(params, tokens, model.config))


@functools.partial(jax.jit, static_argnames='config')
def advance(params, state, token, config):
    """The next logits, and the state with a given token as the newest."""
    logits, cache = next_logits(params, state, config)
    return logits, state.replace(cache=cache, token=token, position=state.position + 1)


def started(prompts, model, params, size=32):
    tokens = np.zeros((len(prompts), 16), np.int32)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt) - 1] = prompt[:-1]
    lengths = np.array([len(prompt) - 1 for prompt in prompts], np.int32)
    newest = np.array([prompt[-1] for prompt in prompts], np.int32)
    return prefill(params, tokens, lengths, newest, config=model.config, size=size)


@pytest.mark.parametrize('name', MODELS)
def test_cached_logits_equal_those_of_the_full_forward(name):
    new, full = greedy_without_cache(name)
    model, params = unrolled(*make(name))
    state = started(PROMPTS, model, params)
    for i in range(NEW):
        logits, state = advance(params, state, np.array(new, np.int32)[:, i], model.config)
        expected = [full[b, len(prompt) - 1 + i] for b, prompt in enumerate(PROMPTS)]
        np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('name', MODELS)
def test_greedy_tokens_equal_those_without_a_cache_up_to_max_length(name):
    new, _ = greedy_without_cache(name)
    assert generate(*make(name), PROMPTS, max_new_tokens=NEW) == new
    assert all(len(set(row)) > 3 for row in new)


@pytest.mark.parametrize('name', ['rope', 'alibi'])
def test_left_padding_in_the_cache_changes_nothing(name):
    new, full = greedy_without_cache(name)
    model, params = unrolled(*make(name))
    lengths = np.array([len(prompt) - 1 for prompt in PROMPTS], np.int32)
    tokens = np.full((len(PROMPTS), max(lengths)), 11, np.int32)
    for row, prompt in zip(tokens, PROMPTS, strict=True):
        row[len(row) - len(prompt) + 1 :] = prompt[:-1]
    positions = np.arange(tokens.shape[1]) - (tokens.shape[1] - lengths[:, None])
    batch = {
        'tokens': tokens,
        'positions': np.maximum(positions, 0),
        'segment_ids': (positions >= 0).astype(np.int32),
    }
    cache = init_cache(model.config, len(PROMPTS), 32)
    run = jax.jit(functools.partial(model.apply, method='features'))
    _, cache = run({'params': params}, batch, cache=cache)
    state = State(
        cache=cache,
        token=jnp.array([prompt[-1] for prompt in PROMPTS]),
        position=jnp.array(lengths),
        count=jnp.zeros((), jnp.int32),
        ended=jnp.zeros(len(PROMPTS), bool),
    )
    for i in range(4):
        logits, state = advance(params, state, np.array(new, np.int32)[:, i], model.config)
        expected = [full[b, len(prompt) - 1 + i] for b, prompt in enumerate(PROMPTS)]
        np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)


def draw(prompts=PROMPTS, seed=0, new=NEW, **options):
    options = {'temperature': 1.5, 'top_p': 0.9} | options
    key = jax.random.key(seed)
    return generate(*make('rope'), prompts, max_new_tokens=new, key=key, **options)


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


def test_temperature_zero_and_top_k_one_are_greedy():
    greedy, _ = greedy_without_cache('rope')
    assert draw(temperature=0.0, top_p=0.9) == greedy
    assert draw(temperature=0.0, top_k=5, min_p=0.1) == greedy
    assert draw(top_k=1, top_p=1.0) == greedy
    assert draw(temperature=1e-6) == greedy


def test_drawn_tokens_follow_the_softmax_and_rows_are_independent():
    rows = np.arange(6000, dtype=np.int32)
    logits = jnp.tile(jnp.array([0.0, 1.0, -1.0, 0.5]), (len(rows), 1))
    options = {'temperature': np.float32(0.7)}
    key = jax.random.key(3)
    tokens = np.asarray(choose_tokens(logits, key, rows, np.int32(2), options, 0))
    share = np.bincount(tokens, minlength=4) / len(rows)
    expected = np.exp(np.array([0, 1, -1, 0.5]) / 0.7)
    expected /= expected.sum()
    np.testing.assert_allclose(share, expected, atol=4 * 0.5 / len(rows) ** 0.5)
    pairs = np.mean(tokens[1:] == tokens[:-1])
    np.testing.assert_allclose(pairs, (expected**2).sum(), atol=4 * 0.5 / len(rows) ** 0.5)
    later = np.asarray(choose_tokens(logits, key, rows, np.int32(3), options, 0))
    np.testing.assert_allclose(
        np.mean(later == tokens), (expected**2).sum(), atol=4 * 0.5 / len(rows) ** 0.5
    )


def test_min_p_and_top_k_leave_the_likeliest_only():
    logits = jnp.tile(jnp.array([0.0, 3.0, 2.0, -1.0]), (200, 1))
    rows = np.arange(200, dtype=np.int32)
    key, count = jax.random.key(0), np.int32(0)
    hot = {'temperature': np.float32(4.0)}
    assert set(choose_tokens(logits, key, rows, count, hot, 0).tolist()) == {0, 1, 2, 3}
    assert set(choose_tokens(logits, key, rows, count, hot, 2).tolist()) == {1, 2}
    options = hot | {'min_p': np.float32(0.7)}  # exp(-1 / 4) = 0.78, exp(-3 / 4) = 0.47
    assert set(choose_tokens(logits, key, rows, count, options, 0).tolist()) == {1, 2}


def test_a_row_ends_at_its_end_token_and_the_others_go_on():
    whole, _ = greedy_without_cache('rope')
    eos = whole[1][2]
    expected = [row[: row.index(eos) + 1] if eos in row else row for row in whole]
    assert {len(row) for row in expected} != {NEW}
    assert generate(*make('rope'), PROMPTS, max_new_tokens=NEW, eos_id=eos) == expected


def test_after_its_end_a_row_is_frozen_and_the_loop_stops_with_the_last_row():
    model, params = unrolled(*make('rope'))
    whole, _ = greedy_without_cache('rope')
    eos = whole[1][2]
    ends = [row.index(eos) if eos in row else NEW for row in whole]
    arguments = dict(
        key=None, rows=np.arange(3, dtype=np.int32), options=None, eos_id=np.int32(eos),
        config=model.config, vocab_limit=40, top_k=0,
    )  # fmt: skip
    state, tokens = decode(params, started(PROMPTS, model, params), stop=np.int32(NEW), **arguments)
    for row, end in zip(np.asarray(tokens), ends, strict=True):
        assert set(row[end:NEW].tolist()) <= {eos}
    lengths = np.array([len(prompt) for prompt in PROMPTS])
    used = np.minimum(np.array(ends) + 1, NEW)
    np.testing.assert_array_equal(state.position, lengths - 1 + used)
    np.testing.assert_array_equal(state.cache[0].index, state.position)

    alike = started([PROMPTS[1]] * 3, model, params)
    state, _ = decode(params, alike, stop=np.int32(NEW), **arguments)
    assert int(state.count) == ends[1] + 1 < NEW


def test_chunks_of_any_size_join_to_the_same_rows():
    whole = draw()
    options = {'max_new_tokens': NEW, 'temperature': 1.5, 'top_p': 0.9, 'key': jax.random.key(0)}
    chunks = list(stream(*make('rope'), PROMPTS, chunk=7, **options))
    assert [len(chunk[0]) for chunk in chunks] == [7, 7, 7, 4]
    assert [sum(parts, []) for parts in zip(*chunks, strict=True)] == whole

    eos = whole[1][3]
    chunks = list(stream(*make('rope'), [PROMPTS[1]], chunk=3, eos_id=eos, first_row=1, **options))
    assert sum((chunk[0] for chunk in chunks), []) == whole[1][: whole[1].index(eos) + 1]


def test_ids_beyond_the_limit_are_never_made():
    hot = {'temperature': 50.0, 'top_p': 1.0}
    assert max(map(max, draw(**hot))) > 6
    assert max(map(max, draw(vocab_limit=7, **hot))) == 6


def test_a_bucket_and_the_values_of_the_options_share_one_program():
    draw()
    programs = prefill._cache_size(), decode._cache_size()
    draw([[1, 2], [3] * 9, [4]], seed=5, new=17, temperature=0.3, top_p=0.2, eos_id=3)
    draw([[1] * 16, [3], [4]], seed=6, new=1, temperature=2.0, top_p=0.5)
    assert (prefill._cache_size(), decode._cache_size()) == programs


def test_the_loop_updates_the_cache_in_place():
    model, params = unrolled(*make('alibi', num_layers=4, max_length=1024, norm_placement='pre'))
    state = jax.eval_shape(lambda: started([[1, 2]] * 4, model, params, size=1024))
    number = np.int32(0)
    compiled = decode.lower(
        params, state, key=None, rows=np.arange(4), options=None, eos_id=number, stop=number,
        config=model.config, vocab_limit=40, top_k=0,
    ).compile()  # fmt: skip
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state.cache))
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes >= size  # the given buffers are those of the result
    assert memory.temp_size_in_bytes < size  # and no second cache stands beside it


def test_unrolled_parameters_are_narrow_and_give_the_same_logits():
    changes = {'dtype': 'bfloat16', 'num_layers': 2}
    model, params = make('rope', **changes)
    plain, narrow = unrolled(model, params)
    assert not plain.config.scan_layers
    assert narrow['embedding']['table'].dtype == jnp.bfloat16
    assert narrow['decoder']['final_norm']['scale'].dtype == jnp.float32
    tokens = np.array(PROMPTS[:1], np.int32)
    np.testing.assert_array_equal(
        full_logits(params, tokens, model.config), full_logits(narrow, tokens, plain.config)
    )
    again = unrolled(plain, narrow)
    assert again[0] is plain
    assert all(map(lambda a, b: a is b, jax.tree.leaves(narrow), jax.tree.leaves(again[1])))
    assert unrolled(*make('learned'))[1]['embedding']['table'].dtype == jnp.float32


def test_decoding_with_64_bit_types_on():
    greedy, drawn = draw(temperature=0.0), draw(top_k=9)
    with jax.enable_x64(True):
        assert draw(temperature=0.0) == greedy
        assert draw(top_k=9) == drawn


@pytest.mark.parametrize(
    ('options', 'words'),
    [
        ({'temperature': -0.1}, ['temperature', '-0.1', 'at least 0']),
        ({'temperature': float('nan')}, ['temperature', 'nan']),
        ({'top_k': -1}, ['top_k', '-1']),
        ({'top_p': 0.0}, ['top_p', '(0, 1]', '0.0']),
        ({'top_p': 1.5}, ['top_p', '1.5']),
        ({'min_p': 2.0}, ['min_p', '2.0']),
        ({'max_new_tokens': 0}, ['max_new_tokens', 'at least 1', '0']),
        ({'max_new_tokens': 26}, ['Prompt 1', '7 tokens', '26', 'model.max_length 32', 'to 25']),
        ({'prompts': [[1], [2] * 32]}, ['Prompt 2', '32 tokens', 'shorten the prompt to 31']),
        ({'prompts': [[1], []]}, ['Prompt 2', 'no token']),
        ({'prompts': []}, ['no prompt']),
        ({'prompts': [[1, 40]]}, ['Prompt 1', '40', 'vocabulary of 40']),
        ({'prompts': [[-1]]}, ['token -1']),
        ({'temperature': 1.0}, ['temperature 1.0', 'key']),
        ({'chunk': CHUNK + 1}, ['chunk', str(CHUNK)]),
    ],
)
def test_mistakes_are_refused_in_one_line_before_any_work(options, words):
    model, _ = make('learned')
    with pytest.raises(UserError) as caught:
        stream(model, None, **{'prompts': PROMPTS, 'max_new_tokens': 1} | options)
    assert '\n' not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_a_model_that_makes_no_text_is_refused():
    config = TransformerConfig(**SMALL | {'topology': 'encoder', 'head': 'masked_lm'})
    with pytest.raises(UserError, match="'encoder' with 'masked_lm'"):
        check_prompts(config, [[1]], 1)
