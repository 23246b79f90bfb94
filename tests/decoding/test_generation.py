"""Decoding with a cache against the full forward pass, and what may not change the result."""

import dataclasses
import functools
import itertools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cached_models import MODELS, NEW, draw, greedy_without_cache, make
from decoding_models import PROMPTS, SMALL, full_logits

from transformer.config import TransformerConfig
from transformer.decoding import check_prompts, generate, stream, unrolled
from transformer.decoding.loop import CHUNK, State, decode, next_logits, prefill
from transformer.errors import UserError
from transformer.modules import Transformer, init_cache


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
    assert all(len(set(row)) > 4 for row in new)


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
    run = functools.partial(
        decode,
        params,
        key=None,
        rows=np.arange(3, dtype=np.int32),
        options=None,
        eos_id=np.int32(eos),
        stop=np.int32(NEW),
        config=model.config,
        vocab_limit=40,
    )
    state, tokens = run(started(PROMPTS, model, params))
    for row, end in zip(np.asarray(tokens), ends, strict=True):
        assert set(row[end : int(state.count)].tolist()) <= {eos}
    lengths = np.array([len(prompt) for prompt in PROMPTS])
    used = np.minimum(np.array(ends) + 1, NEW)
    np.testing.assert_array_equal(state.position, lengths - 1 + used)
    assert int(state.cache[0].index) == lengths.max() - 1 + int(state.count)

    alike = started([PROMPTS[1]] * 3, model, params)
    state, _ = run(alike)
    assert int(state.count) == ends[1] + 1 < NEW


def joined(chunks):
    return [list(itertools.chain(*parts)) for parts in zip(*chunks, strict=True)]


def test_chunks_of_any_size_join_to_the_same_rows():
    options = {'max_new_tokens': NEW, 'temperature': 1.5, 'top_p': 0.9, 'key': jax.random.key(0)}
    chunks = list(stream(*make('rope'), PROMPTS, chunk=7, **options))
    whole = draw()
    assert [len(chunk[0]) for chunk in chunks] == [7, 7, 7, 4]
    assert joined(chunks) == whole

    eos = whole[1][3]
    chunks = stream(*make('rope'), PROMPTS, chunk=3, eos_id=eos, **options)
    ended = [row[: row.index(eos) + 1] if eos in row else row for row in whole]
    assert joined(chunks) == ended == draw(eos_id=eos)


def test_ids_beyond_the_limit_are_never_made():
    assert max(map(max, draw(temperature=50.0))) > 6
    assert max(map(max, draw(temperature=50.0, vocab_limit=7))) == 6


def test_a_bucket_and_the_values_of_the_options_share_one_program():
    draw()
    programs = prefill._cache_size(), decode._cache_size()
    draw([[1, 2], [3] * 9, [4]], seed=5, new=17, temperature=0.3, top_p=0.2, eos_id=3)
    draw([[1] * 16, [3], [4]], seed=6, new=1, temperature=2.0, top_p=0.5)
    assert (prefill._cache_size(), decode._cache_size()) == programs
    draw(top_k=3)
    programs = prefill._cache_size(), decode._cache_size()
    draw(top_k=5)
    assert (prefill._cache_size(), decode._cache_size()) == programs


def test_the_loop_updates_the_cache_in_place():
    model, params = unrolled(*make('alibi', max_length=1024))
    state = jax.eval_shape(lambda: started([[1, 2]] * 8, model, params, size=1024))
    number = np.int32(0)
    compiled = decode.lower(
        params, state, key=None, rows=np.arange(8), options=None, eos_id=number, stop=number,
        config=model.config, vocab_limit=40,
    ).compile()  # fmt: skip
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state.cache))
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes >= size  # the given buffers are those of the result
    assert memory.temp_size_in_bytes < size  # and no second cache stands beside it


def test_unrolled_parameters_are_narrow_and_give_the_same_logits():
    model, params = make('learned', dtype='bfloat16', num_layers=1)
    same, narrow = unrolled(model, params)
    assert same is model
    assert {leaf.dtype for leaf in jax.tree.leaves(narrow) if leaf.ndim > 1} == {
        jnp.dtype('bfloat16')
    }
    assert narrow['decoder']['final_norm']['scale'].dtype == jnp.float32

    # A compiler may leave out the rounding of a parameter; here it has been done before.
    def rounded(leaf):
        return leaf.astype(jnp.bfloat16).astype(jnp.float32) if leaf.ndim > 1 else leaf

    tokens = np.array(PROMPTS[:1], np.int32)
    expected = full_logits(jax.tree.map(rounded, params), {'tokens': tokens}, model.config)
    np.testing.assert_array_equal(full_logits(narrow, {'tokens': tokens}, model.config), expected)
    _, again = unrolled(model, narrow)
    assert all(map(operator.is_, jax.tree.leaves(again), jax.tree.leaves(narrow)))


def test_decoding_with_64_bit_types_on():
    drawn = draw()
    with jax.enable_x64(True):
        assert draw() == drawn


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


def test_any_device_decodes_what_a_kernel_of_another_trained():
    model, params = make('rope')
    trained = Transformer(dataclasses.replace(model.config, attention_implementation='pallas'))
    expected = generate(model, params, PROMPTS, max_new_tokens=NEW)
    assert generate(trained, params, PROMPTS, max_new_tokens=NEW) == expected
