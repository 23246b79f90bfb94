"""Text from an encoder_decoder: the memory made once, against the full forward pass."""

import numpy as np
import pytest
from decoding_models import ENDS, PROMPTS, SOURCES, full_log_probs, make

from transformer.decoding import generate, stream
from transformer.decoding.generation import start, unrolled
from transformer.decoding.loop import encode
from transformer.errors import UserError
from transformer.parallel import RowParallel

NEW = 12


def greedy_without_cache(name, prompt, source):
    tokens = list(prompt)
    for _ in range(NEW):
        log_probs = full_log_probs(name, [tokens] * 3, source)
        tokens.append(int(log_probs[0, len(tokens) - 1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize('name', ['original', 'two_tables'])
def test_greedy_tokens_equal_those_without_cache_and_padding(name):
    rows = generate(*make(name), PROMPTS, sources=SOURCES, max_new_tokens=NEW)
    expected = [greedy_without_cache(name, *row) for row in zip(PROMPTS, SOURCES, strict=True)]
    assert rows == expected
    assert len(set(map(tuple, rows))) == 3


def test_the_tokens_depend_on_the_source_alone_beside_the_prompt():
    model, params = make('two_tables')
    options = {'max_new_tokens': NEW, 'eos_id': ENDS['two_tables']}
    prompts = [[0]] * 3
    together = generate(model, params, prompts, sources=SOURCES, **options)
    assert len(set(map(tuple, together))) == 3
    alone = [generate(model, params, [[0]], sources=[row], **options)[0] for row in SOURCES[:2]]
    assert alone == together[:2]


def test_the_memory_is_projected_once_and_padded_to_a_bucket():
    model, params = unrolled(*make('two_tables'))
    state = start(RowParallel(3), model, params, PROMPTS, SOURCES, 32)
    assert len(state.memory.layers) == model.config.num_layers
    key, value = state.memory.layers[0]
    assert key.shape == value.shape == (3 * 2, 32, 4)
    expected = np.arange(32) < np.array([[len(source)] for source in SOURCES])
    np.testing.assert_array_equal(state.memory.segment_ids, expected)
    programs = encode._cache_size()
    start(RowParallel(3), model, params, PROMPTS, [[1] * 17, [2], [49] * 32], 32)
    assert encode._cache_size() == programs


@pytest.mark.parametrize(
    ('name', 'sources', 'words'),
    [
        ('decoder', SOURCES, ["'decoder'", 'no sources']),
        ('original', None, ["'encoder_decoder'", 'give sources']),
        ('original', SOURCES[:2], ['2 sources', '3 prompts']),
        ('original', [[1], [], [2]], ['Source 2', 'no token', 'end it']),
        ('original', [[1], [2], [1] * 33], ['Source 3', '33 tokens', 'model.max_length 32']),
        ('original', [[1], [40], [2]], ['Source 2', 'token 40', 'vocabulary of 40']),
        ('two_tables', [[40], [50], [2]], ['Source 2', 'token 50', 'vocabulary of 50']),
    ],
)
def test_mistakes_are_refused_in_one_line_before_any_work(name, sources, words):
    model, _ = make(name)
    with pytest.raises(UserError) as caught:
        stream(model, None, PROMPTS, sources, max_new_tokens=1)
    assert '\n' not in str(caught.value)
    for word in words:
        assert word in str(caught.value)
