"""Beam search against exhaustive enumeration and a search without cache."""

import functools
import itertools

import jax
import jax.extend
import numpy as np
import pytest
from decoding_models import ENDS, MODELS, PROMPTS, SOURCES, full_log_probs, make, sources_of

from transformer.decoding import beam, beam_search, generate, padding
from transformer.decoding.generation import start, unrolled
from transformer.decoding.search import advance, compact, initial_search
from transformer.errors import UserError
from transformer.parallel import RowParallel

NEW = 12


def score(log_probability, length, alpha):
    return log_probability / ((5 + length) / 6) ** alpha


def found(name, alpha=0.0, prompts=PROMPTS, **options):
    options = {
        'beam_size': 3,
        'num_results': 3,
        'max_new_tokens': NEW,
        'eos_id': ENDS[name],
    } | options
    sources = options.pop('sources', sources_of(name))
    return beam_search(*make(name), prompts, sources, length_penalty=alpha, **options)


def log_probability(log_probs, prompt, tokens):
    """Of the tokens after the prompt, by the log-probabilities [T, V] of both together."""
    places = np.arange(len(prompt) - 1, len(prompt) - 1 + len(tokens))
    return log_probs[places, tokens].sum()


def searched_without_cache(name, prompt, source, alpha, M=3, K=3):
    """The same search by full forward passes, which never stops before its last token."""
    eos, running, finished = ENDS[name], [(0.0, [])], []
    for count in range(1, NEW + 1):
        rows = [prompt + tokens for _, tokens in running] + [[0]] * (M - len(running))
        log_probs = full_log_probs(name, rows, source)[:, len(prompt) + count - 2]
        extended = [
            (total + log_probs[i, id], [*tokens, id])
            for i, (total, tokens) in enumerate(running)
            for id in range(log_probs.shape[1])
        ]
        extended = sorted(extended, reverse=True)[: 2 * M]
        finished += [one for one in extended[:M] if one[1][-1] == eos]
        running = [one for one in extended if one[1][-1] != eos][:M]
    finished += running
    ranked = [(score(total, len(tokens), alpha), total, tokens) for total, tokens in finished]
    return sorted(ranked, reverse=True)[:K]


@pytest.mark.parametrize('alpha', [-1.0, 0.0, 0.6, 1.0])
@pytest.mark.parametrize('name', ['decoder', 'original'])
def test_with_enough_beams_the_search_is_exhaustive(name, alpha):
    """All 31 sequences of up to 4 of 3 tokens, of which the second ends one."""
    prompt, source, eos = [2, 0], [1, 2, 2], 1
    continuations = list(map(list, itertools.product(range(3), repeat=4)))
    changes = {'vocab_size': 3, 'max_length': 8, 'num_layers': 1}
    source = None if name == 'decoder' else source
    log_probs = full_log_probs(name, [prompt + row for row in continuations], source, **changes)
    every = {}
    for row, values in zip(continuations, log_probs, strict=True):
        tokens = row[: row.index(eos) + 1] if eos in row else row
        every[tuple(tokens)] = score(log_probability(values, prompt, tokens), len(tokens), alpha)
    ranked = sorted(every, key=every.get, reverse=True)
    assert len(ranked) == 31

    options = {'beam_size': 32, 'max_new_tokens': 4, 'length_penalty': alpha, 'eos_id': eos}
    sources = source and [source]
    [all_of_them] = beam_search(
        *make(name, **changes), [prompt], sources, num_results=32, **options
    )
    assert [tuple(one.tokens) for one in all_of_them] == ranked
    np.testing.assert_allclose(
        [one.score for one in all_of_them], [every[one] for one in ranked], rtol=1e-5
    )
    [[best]] = beam_search(*make(name, **changes), [prompt], sources, **options)
    assert tuple(best.tokens) == ranked[0]


@pytest.mark.parametrize('alpha', [-1.0, 0.0, 1.0])
@pytest.mark.parametrize('name', MODELS)
def test_results_are_those_of_a_search_without_cache_or_early_stop(name, alpha):
    results = found(name, alpha)
    for prompt, source, best in zip(PROMPTS, sources_of(name) or [None] * 3, results, strict=True):
        expected = searched_without_cache(name, prompt, source, alpha)
        assert [one.tokens for one in best] == [tokens for _, _, tokens in expected]
        numbers = [(value, total) for value, total, _ in expected]
        np.testing.assert_allclose([one[1:] for one in best], numbers, rtol=1e-4)
    assert {one.tokens[-1] == ENDS[name] for best in results for one in best} == {True, False}


@pytest.mark.parametrize('name', MODELS)
def test_one_beam_is_greedy(name):
    options = {'max_new_tokens': NEW, 'eos_id': ENDS[name]}
    greedy = generate(*make(name), PROMPTS, sources=sources_of(name), **options)
    results = found(name, beam_size=1, num_results=1)
    assert [best.tokens for [best] in results] == greedy
    assert len(set(map(len, greedy))) > 1


@pytest.mark.parametrize('name', ['decoder', 'two_tables'])
def test_a_row_does_not_depend_on_the_rows_beside_it(name):
    """Prompts and sources of other buckets, and rows that end sooner or later."""
    together = found(name, 0.6)
    for row, prompt in enumerate(PROMPTS):
        source = sources_of(name) and SOURCES[row : row + 1]
        [alone] = found(name, 0.6, [prompt], sources=source)
        assert [one.tokens for one in alone] == [one.tokens for one in together[row]]
        np.testing.assert_allclose(
            [one[1:] for one in alone], [one[1:] for one in together[row]], rtol=1e-5
        )


def test_more_results_do_not_change_the_best():
    for alpha in (-1.0, 1.0):
        [best] = zip(*found('decoder', alpha, num_results=1), strict=True)
        first, *_ = zip(*found('decoder', alpha, num_results=3), strict=True)
        assert best == first


def test_ids_beyond_the_limit_are_never_made_and_have_no_probability():
    prompt, limit = PROMPTS[0], 7
    [best] = found('decoder', prompts=[prompt], vocab_limit=limit)
    for one in best:
        assert max(one.tokens) < limit
        log_probs = full_log_probs('decoder', [prompt + one.tokens])[0, :, :limit]
        log_probs -= np.log(np.exp(log_probs).sum(-1, keepdims=True))
        expected = log_probability(log_probs, prompt, one.tokens)
        np.testing.assert_allclose(one.log_probability, expected, rtol=1e-5)


def test_without_an_end_token_every_hypothesis_has_all_new_tokens():
    results = found('decoder', eos_id=None)
    assert {len(one.tokens) for best in results for one in best} == {NEW}
    assert any(ENDS['decoder'] in one.tokens for best in results for one in best)


@pytest.mark.parametrize('name', ['decoder', 'two_tables'])
def test_results_do_not_depend_on_when_the_cache_is_cleared(monkeypatch, name):
    expected = found(name, 0.6)
    cleared = []
    monkeypatch.setattr(beam, 'FEWEST_STEPS', 1)
    monkeypatch.setattr(padding, 'SMALLEST_BUCKET', 1)
    monkeypatch.setattr(beam, 'compact', lambda *a, **k: cleared.append(k) or compact(*a, **k))
    results = found(name, 0.6)
    assert len(cleared) > 1
    for best, as_before in zip(results, expected, strict=True):
        assert [one.tokens for one in best] == [one.tokens for one in as_before]
        scores = [one.score for one in best], [one.score for one in as_before]
        np.testing.assert_allclose(*scores, rtol=1e-5)


def lowered(name, beam_size, prompts=PROMPTS):
    model, params = unrolled(*make(name))
    state = jax.eval_shape(
        lambda: start(RowParallel(1), model, params, prompts, sources_of(name), 64)
    )
    sizes = {'beam_size': beam_size, 'num_results': 1, 'size': 8}
    search = jax.eval_shape(lambda state: initial_search(state, **sizes), state)
    program = functools.partial(advance, config=model.config, vocab_limit=40)
    scalars = np.int32(0), np.int32(8), np.float32(0)
    return state, jax.make_jaxpr(program)(params, state, search, *scalars)


def sizes(jaxpr):
    for equation in jaxpr.eqns:
        yield from (variable.aval.size for variable in equation.outvars)
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from sizes(inner)


def test_the_memory_is_not_repeated_for_the_beams():
    state, jaxpr = lowered('original', beam_size=7)
    key, _ = state.memory.layers[0]
    made = set(sizes(jaxpr.jaxpr))
    assert state.cache[0].key.size in made
    assert max(made) < 7 * key.size


def test_a_bucket_and_all_values_of_the_options_share_one_program():
    found('two_tables')
    programs = advance._cache_size()
    prompts, sources = [[1, 2], [3] * 8, [4]], [[1], [2] * 20, [49]]
    found('two_tables', 1.5, prompts, sources=sources, eos_id=3, max_new_tokens=9)
    assert advance._cache_size() == programs


def test_searching_with_64_bit_types_on():
    expected = found('decoder', 0.6)
    with jax.enable_x64(True):
        assert found('decoder', 0.6) == expected


def test_damaged_parameters_are_named():
    model, params = make('decoder')
    damaged = jax.tree.map(lambda leaf: leaf * np.nan, params)
    with pytest.raises(UserError, match='prompt 1 are not finite'):
        beam_search(model, damaged, PROMPTS, beam_size=3, max_new_tokens=NEW, eos_id=6)


@pytest.mark.parametrize(
    ('options', 'words'),
    [
        ({'beam_size': 0}, ['beam_size', 'at least 1', '0']),
        ({'num_results': 4}, ['num_results 4', 'beam_size 3']),
        ({'num_results': 0}, ['num_results', 'at least 1']),
        ({'length_penalty': float('nan')}, ['length_penalty', 'finite', 'nan']),
        ({'max_new_tokens': 40}, ['Prompt 1', 'model.max_length 32']),
        ({'sources': [[1]] * 3}, ['no sources']),
    ],
)
def test_mistakes_are_refused_in_one_line_before_any_work(options, words):
    model, _ = make('decoder')
    options = {'beam_size': 3, 'max_new_tokens': 4, 'eos_id': 6} | options
    with pytest.raises(UserError) as caught:
        beam_search(model, None, PROMPTS, **options)
    assert '\n' not in str(caught.value)
    for word in words:
        assert word in str(caught.value)
