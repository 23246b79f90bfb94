"""Names of models on the hub; nothing is downloaded: the library's function is replaced."""

import sys
import types

import jax
import numpy as np
import pytest
from tiny_models import read_golden, write_model

from transformer.errors import UserError
from transformer.interop import hub, load_pretrained, read_pretrained

MODELS, _ = read_golden()


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """An empty working folder, and a hub that was asked for nothing."""
    monkeypatch.chdir(tmp_path)
    hub._download.cache_clear()
    yield
    hub._download.cache_clear()


@pytest.fixture
def serve(monkeypatch):
    """Replaces `snapshot_download` by a function; returns the calls it gets."""

    def replace(download):
        calls = []

        def snapshot_download(name, *, allow_patterns):
            calls.append((name, allow_patterns))
            return download(name)

        module = types.SimpleNamespace(snapshot_download=snapshot_download)
        monkeypatch.setitem(sys.modules, 'huggingface_hub', module)
        return calls

    return replace


def refusal(path):
    with pytest.raises(UserError) as caught:
        load_pretrained(path)
    assert '\n' not in str(caught.value)
    return str(caught.value)


def test_a_name_is_downloaded_once_and_without_pickles(serve, tmp_path):
    folder = write_model(tmp_path / 'cache', MODELS['llama'])
    calls = serve(lambda name: str(folder))
    config, params, _ = load_pretrained('someone/tiny-llama')
    expected = load_pretrained(folder)
    assert config == expected[0]
    jax.tree.map(np.testing.assert_array_equal, params, expected[1])
    assert read_pretrained('someone/tiny-llama').config.num_layers == 2
    ((name, patterns),) = calls
    assert name == 'someone/tiny-llama'
    assert {'config.json', 'tokenizer.json', 'model.safetensors'} <= set(patterns)
    assert 'model-*.safetensors' in patterns  # shards
    assert 'model.safetensors.index.json' in patterns
    assert all(pattern.endswith(('.json', '.safetensors')) for pattern in patterns)


def test_a_folder_comes_before_the_hub(serve, tmp_path):
    calls = serve(lambda name: 1 / 0)
    write_model(tmp_path / 'someone' / 'tiny-llama', MODELS['llama'])
    assert load_pretrained('someone/tiny-llama')[0].num_layers == 2
    assert not calls


@pytest.mark.parametrize('path', ['llama', '/tmp/none/llama', 'a/b/c', '../x', 'a/../b', '~/x y'])
def test_what_is_no_name_is_not_asked_for(serve, path):
    calls = serve(lambda name: 1 / 0)
    message = refusal(path)
    assert f'There is no folder {path}' in message
    assert 'openai-community/gpt2' in message
    assert not calls


def test_without_the_library_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, 'huggingface_hub', None)
    message = refusal('someone/model')
    assert 'someone/model' in message
    assert 'pip install huggingface_hub' in message


def test_a_hub_that_gives_nothing_says_why_in_one_line(serve):
    def fail(name):
        raise OSError('404 Client Error.\n\nRepository Not Found for url: https://...')

    serve(fail)
    message = refusal('someone/model')
    assert 'someone/model' in message
    assert message.endswith('of that name: 404 Client Error.')
    hub._download.cache_clear()
    serve(lambda name: 1 / 0)
    assert 'division by zero' in refusal('someone/model')


def test_a_model_of_pickles_alone_is_refused(serve, tmp_path):
    (tmp_path / 'config.json').write_text('{}')
    serve(lambda name: str(tmp_path))
    message = refusal('someone/model')
    assert 'no model.safetensors' in message
    assert 'pickle' in message
