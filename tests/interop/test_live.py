"""Every family against `transformers` itself: `pytest -m interop`. Skipped where it is absent.

Beside what the golden outputs show, it reads what we write, and generates the same tokens.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import VARIANTS, make_batch, write_model

pytest.importorskip('torch', reason='torch is not installed')
pytest.importorskip('transformers', reason='transformers is not installed')

import reference
import torch

from transformer.decoding import beam_search, generate
from transformer.functional import cross_entropy
from transformer.interop import load_pretrained, save_pretrained
from transformer.modules import Transformer
from transformer.modules.block import Block

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings('default')]
LIMIT = 2e-5  # of the largest value
STEPS = 6


@pytest.fixture(scope='module', params=VARIANTS)
def name(request):
    return request.param


@pytest.fixture(scope='module')
def variant(name):
    return VARIANTS[name]


@pytest.fixture(scope='module')
def golden(variant, tmp_path_factory):
    described = reference.describe(variant, tmp_path_factory.mktemp('random'))
    return described | {'by_index': reference.positions_by_index(variant)}


@pytest.fixture(scope='module')
def folder(golden, tmp_path_factory):
    return write_model(tmp_path_factory.mktemp('published'), golden)


@pytest.fixture(scope='module')
def loaded(folder):
    config, params, _ = load_pretrained(folder)
    return config, params


@pytest.fixture(scope='module')
def exported(loaded, golden, tmp_path_factory):
    """What we write, with the token ids of the original, which are none of our config's."""
    folder = tmp_path_factory.mktemp('ours')
    ids = {key: value for key, value in golden['config'].items() if key.endswith('token_id')}
    save_pretrained(folder, *loaded, None, golden['config']['model_type'], ids)
    return folder


@pytest.fixture(scope='module')
def forward(loaded):
    """(params, batch) -> logits or features, and the outputs of every layer of the last stack."""
    model = Transformer(loaded[0])

    @jax.jit
    def run(params, batch):
        out, sown = model.apply(
            {'params': params},
            batch,
            mutable='intermediates',
            capture_intermediates=lambda module, method: (
                isinstance(module, Block) and method == '__call__'
            ),
        )
        stack = sown['intermediates'][
            'encoder' if model.config.topology == 'encoder' else 'decoder'
        ]
        depth = range(model.config.num_layers)
        return out, [stack[f'layer_{i}']['__call__'][0][0] for i in depth]

    return run


def test_logits_and_hidden_states(forward, loaded, folder, variant, golden, record_property):
    """On batches padded on the right and on the left."""
    config, params = loaded
    for side in ('right',) if config.pooler else ('right', 'left'):
        batch = make_batch(side, golden)
        valid = batch['segment_ids'] > 0
        expected = reference.run(folder, variant, batch)
        out, layers = forward(params, batch)
        theirs = expected['hidden'][-1] if config.head == 'none' else expected['logits']
        difference = relative(out, theirs, valid)
        record_property('difference', float(difference))
        assert difference < LIMIT
        for found, state in zip(layers[:-1], expected['hidden'][1:-1], strict=True):
            assert relative(found, state, valid) < LIMIT


def relative(found, expected, valid):
    if expected.ndim == 3:
        found, expected = np.asarray(found)[valid], expected[valid]
    return np.abs(found - expected).max() / np.abs(expected).max()


def test_what_we_write_is_what_we_read(exported, folder, loaded, variant, golden):
    """`transformers` computes the same bits from our folder, and we read back the same."""
    config, params, _ = load_pretrained(exported)
    assert config == loaded[0]
    jax.tree.map(np.testing.assert_array_equal, params, loaded[1])
    if variant.cls == 'BertForPreTraining':  # has a head that we have not
        variant = variant._replace(cls='BertForMaskedLM')
    batch = make_batch('right', golden)
    ours, theirs = (reference.run(path, variant, batch) for path in (exported, folder))
    for output in ours.keys() & theirs.keys():
        jax.tree.map(np.testing.assert_array_equal, ours[output], theirs[output])
    assert 'logits' in ours or config.head == 'none'


def test_the_loss_of_our_export_is_ours(exported, forward, loaded, variant, golden):
    """Of the first row, which is not padded; of an encoder-decoder after the token that begins."""
    config, params = loaded
    if config.head == 'none':
        pytest.skip('it has no loss')
    if variant.cls == 'BertForPreTraining':  # whose loss has another head's too
        variant = variant._replace(cls='BertForMaskedLM')
    batch = {name: value[:1] for name, value in make_batch('right', golden).items()}
    valid = batch['segment_ids'] > 0
    labels = batch['tokens'][valid][None]
    batch = {name: v if 'encoder' in name else v[valid][None] for name, v in batch.items()}
    if config.head == 'classifier':
        labels = np.array([1])
    model, given = reference.load(exported, variant), dict(batch)
    if config.topology == 'encoder_decoder':
        start = golden['config']['decoder_start_token_id']
        batch['tokens'] = np.insert(labels[:, :-1], 0, start, axis=1)
        given = {'input_ids': given['encoder_tokens']}
    else:
        given = {'input_ids': given['tokens']}
        if 'token_types' in batch:
            given['token_type_ids'] = batch['token_types']
    given = {name: torch.tensor(value).long() for name, value in given.items()}
    with torch.no_grad():
        expected = model(**given, labels=torch.tensor(labels).long()).loss.item()
    both = {name: np.concatenate([value] * 2) for name, value in batch.items()}
    logits = forward(params, both)[0][:1]
    if config.topology == 'decoder':
        logits, labels = logits[:, :-1], labels[:, 1:]
    ours = cross_entropy(logits, jnp.asarray(labels)).mean()
    assert float(ours) == pytest.approx(expected, rel=1e-5)


def prompts_and_sources(config, golden):
    batch = make_batch('right', golden)

    def rows(prefix):
        lengths = batch[f'{prefix}segment_ids'].sum(1)
        tokens = batch[f'{prefix}tokens'].tolist()
        return [row[:length] for row, length in zip(tokens, lengths, strict=True)]

    if config.topology != 'encoder_decoder':
        return rows(''), None
    start = golden['config']['decoder_start_token_id']  # which `transformers` puts before others
    return [[start, *row] for row in rows('')], rows('encoder_')


def test_greedy_tokens_with_a_cache(loaded, folder, variant, golden):
    """Prompts of two lengths in one batch of ours, one after the other in theirs."""
    config, params = loaded
    if config.head != 'lm':
        pytest.skip('it generates nothing')
    if config.rope.scaling == 'dynamic':
        pytest.skip('its published cache keeps the rotations of shorter rows')
    prompts, sources = prompts_and_sources(config, golden)
    options = {'sources': sources, 'max_new_tokens': STEPS, 'temperature': 0}
    found = generate(Transformer(config), params, prompts, **options)
    model = reference.load(folder, variant)
    for tokens, *given in zip(found, prompts, sources or [None] * 2, strict=True):
        assert tokens == reference.generate(model, *given, STEPS)


@pytest.mark.parametrize('ends', [False, True])
def test_beam_search_of_4(loaded, folder, variant, golden, ends):
    """The likeliest hypothesis, with an end that the search without one comes by, or with none."""
    config, params = loaded
    if config.topology != 'encoder_decoder':
        pytest.skip('beams are compared for encoder-decoders')
    prompts, sources = prompts_and_sources(config, golden)
    model = reference.load(folder, variant)
    eos_id = None
    if ends:
        eos_id = reference.generate(model, prompts[0], sources[0], STEPS, beams=4)[2]
    options = {'beam_size': 4, 'max_new_tokens': STEPS, 'eos_id': eos_id}
    found = beam_search(Transformer(config), params, prompts, sources, **options)
    for (best,), *given in zip(found, prompts, sources, strict=True):
        expected = reference.generate(model, *given, STEPS, beams=4, eos_id=eos_id)
        assert best.tokens == expected
