"""Every family against outputs of `transformers` that are kept beside this file."""

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file
from tiny_models import make_batch, read_golden, write_model

from transformer.interop import load_pretrained, save_pretrained
from transformer.modules import Transformer

MODELS, OUTPUTS = read_golden()


@pytest.fixture(params=MODELS)
def name(request):
    return request.param


@pytest.fixture
def folder(name, tmp_path):
    return write_model(tmp_path / 'published', MODELS[name])


def apply(config):
    """A function of (params, batch) -> features, and logits or pooled features, by name."""
    model = Transformer(config)

    @jax.jit
    def run(params, batch):
        features, _ = model.apply({'params': params}, batch, method='features')
        found = {'hidden': features}
        if config.head in ('lm', 'masked_lm'):
            found['logits'] = model.apply({'params': params}, features, method='logits')
        if config.embedding_width:  # published are the features that the table is multiplied by
            found['hidden'] = features @ params['head']['projection']['kernel']
        if config.pooler:
            found['pooled'] = model.apply({'params': params}, features, method='pooled')
        if config.head == 'classifier':
            method = 'class_logits'
            found['logits'] = model.apply({'params': params}, found['pooled'], method=method)
        return found

    return run


def check(found, expected, valid, limit=2e-5):
    """The largest difference at valid tokens, relative to the largest value, is below the limit."""
    if expected.ndim == 3:
        found, expected = np.asarray(found)[valid], expected[valid]
    assert np.abs(found - expected).max() < limit * np.abs(expected).max()


def test_outputs_equal_the_published_ones_and_the_round_trip_is_exact(name, folder, tmp_path):
    config, params, tokenizer = load_pretrained(folder)
    assert tokenizer is None
    run = apply(config)
    # The pooled token is the first of the row, which is padding on the left.
    sides = ('right',) if config.pooler else ('left', 'right')
    for side in sides:
        batch = make_batch(side, MODELS[name])
        found = run(params, batch)
        names = {key.split('/')[-1] for key in OUTPUTS if key.startswith(f'{name}/{side}/')}
        # A pre-training model's file has a pooler too, of which it gives no output.
        assert names <= set(found)
        assert names >= ({'hidden', 'logits'} if config.head != 'none' else {'hidden', 'pooled'})
        for output in names:
            expected = OUTPUTS[f'{name}/{side}/{output}']
            check(found[output], expected, batch['segment_ids'] > 0)

    family = MODELS[name]['config']['model_type']
    save_pretrained(tmp_path / 'ours', config, params, None, family)
    again, params_again, _ = load_pretrained(tmp_path / 'ours')
    assert again == config
    jax.tree.map(np.testing.assert_array_equal, params_again, params)
    published = load_file(folder / 'model.safetensors')
    ours = load_file(tmp_path / 'ours' / 'model.safetensors')
    dropped = published.keys() - ours.keys()
    assert all(key.startswith('cls.seq_relationship') for key in dropped)
    for key, tensor in ours.items():
        np.testing.assert_array_equal(tensor, published[key])
