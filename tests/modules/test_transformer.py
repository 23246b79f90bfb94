"""The Transformer by its properties: every topology, norm placement and position scheme."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import BASE, BATCH, PLACEMENTS, POSITIONS, TOKENS, apply, gradients, make

from transformer.errors import UserError
from transformer.modules import (
    Dropout,
    Transformer,
    init_cache,
    stack_layers,
    unstack_layers,
)


@pytest.mark.parametrize('placement', PLACEMENTS)
@pytest.mark.parametrize('topology', ['decoder', 'encoder', 'encoder_decoder'])
def test_topologies_and_norm_placements(topology, placement):
    """Shapes, causality or its absence by gradient, and a gradient for every parameter."""
    if topology == 'encoder_decoder' and placement.startswith('parallel'):
        with pytest.raises(UserError, match='cross-attention'):
            make(topology=topology, norm_placement=placement)
        return
    model, params = make(topology=topology, norm_placement=placement, num_layers=1)
    logits, grads, influence = gradients(model, params, target=4)
    assert logits.shape == (2, 8, 13)
    assert logits.dtype == jnp.float32
    for path, grad in jax.tree_util.tree_leaves_with_path(grads):
        assert np.isfinite(grad).all(), path
        assert np.abs(grad).max() > 0, path
    assert (influence[:, :5] > 0).all()
    if topology == 'encoder':
        assert (influence[:, 5:] > 0).all()
    else:
        np.testing.assert_array_equal(influence[:, 5:], 0)


@pytest.mark.parametrize('position', POSITIONS)
def test_cache_equals_full_forward(position):
    """Prefill of 3 tokens, then 1, then 4 with a cache, against one forward pass."""
    model, params = make(position=position, window=3, layer_pattern=('local', 'global'))
    expected = apply(model, params, BATCH)
    cache = init_cache(model.config, 2, 10)

    @jax.jit
    def extend(cache, tokens, positions):
        batch = {'tokens': tokens, 'positions': positions}
        features, cache = model.apply({'params': params}, batch, cache=cache, method='features')
        return model.apply({'params': params}, features, method='logits'), cache

    outputs = []
    for start, stop in (0, 3), (3, 4), (4, 8):
        positions = jnp.broadcast_to(jnp.arange(start, stop), (2, stop - start))
        logits, cache = extend(cache, TOKENS[:, start:stop], positions)
        outputs.append(logits)
    np.testing.assert_allclose(np.concatenate(outputs, 1), expected, atol=1e-5)
    np.testing.assert_array_equal(cache[0].index, 8)


@pytest.mark.parametrize('side', ['left', 'right'])
def test_cache_with_padded_prompts(side):
    """Prompts of 3 and 5 tokens in one batch continue as each alone."""
    model, params = make(position='learned')
    lengths = np.array([3, 5])
    offsets = 5 - lengths if side == 'left' else np.zeros(2, int)
    index = np.arange(5) - offsets[:, None]
    valid = (index >= 0) & (index < lengths[:, None])
    positions = np.where(valid, index, 0)
    batch = {
        'tokens': np.where(valid, np.take_along_axis(TOKENS, positions, 1), 0),
        'positions': positions,
        'segment_ids': valid.astype(int),
    }
    cache = init_cache(model.config, 2, 8)
    _, cache = apply(model, params, batch, cache=cache, method='features')
    step = {
        'tokens': np.take_along_axis(TOKENS, lengths[:, None], 1),
        'positions': lengths[:, None],
    }
    features, _ = apply(model, params, step, cache=cache, method='features')
    for row, length in enumerate(lengths):
        alone = {'tokens': TOKENS[row : row + 1, : length + 1]}
        expected, _ = apply(model, params, alone, method='features')
        np.testing.assert_allclose(features[row, 0], expected[0, -1], atol=1e-5)


def test_memory_projected_once_equals_encoding_again():
    model, params = make(topology='encoder_decoder', position='relative', num_encoder_layers=1)
    batch = BATCH | {'encoder_segment_ids': np.array([[1, 1, 1], [1, 1, 0]])}
    memory = apply(model, params, batch, method='encode_memory')
    cached, _ = apply(model, params, {'tokens': TOKENS}, memory=memory, method='features')
    full, _ = apply(model, params, batch, method='features')
    np.testing.assert_allclose(cached, full, atol=1e-5)


def test_encoder_padding_does_not_matter():
    model, params = make(topology='encoder_decoder', position='sinusoidal')
    short = BATCH | {'encoder_tokens': BATCH['encoder_tokens'][:, :2]}
    padded = BATCH | {'encoder_segment_ids': np.array([[1, 1, 0], [1, 1, 0]])}
    np.testing.assert_allclose(apply(model, params, padded), apply(model, params, short), atol=1e-5)


@pytest.mark.parametrize('position', POSITIONS)
def test_packed_rows_equal_separate_rows(position):
    model, params = make(position=position, window=2, layer_pattern=('global', 'local'))
    packed = {
        'tokens': TOKENS,
        'segment_ids': np.array([[1, 1, 1, 2, 2, 2, 2, 0]] * 2),
        'positions': np.array([[0, 1, 2, 0, 1, 2, 3, 0]] * 2),
    }
    logits = apply(model, params, packed)
    for first, last in (0, 3), (3, 7):
        alone = apply(model, params, {'tokens': TOKENS[:, first:last]})
        np.testing.assert_allclose(logits[:, first:last], alone, atol=1e-5)


@pytest.mark.parametrize(
    ('depth', 'pattern', 'remat'),
    [(2, (), 'none'), (2, (), 'full'), (3, ('local', 'global'), 'dots_saveable')],
)
def test_scan_equals_loop_and_remat_equals_plain(depth, pattern, remat):
    """With dropout: the same loss and gradients however the layers are run."""
    changes = {'num_layers': depth, 'window': 3, 'layer_pattern': pattern, 'position': 'alibi'}
    model, params = make(**changes)
    rates = Dropout(jax.random.split(jax.random.key(2), 2), 0.2, 0.2, 0.2)

    def loss_and_grad(params, **how):
        model = Transformer(dataclasses.replace(BASE, **changes, **how))

        def loss(params):
            return (model.apply({'params': params}, BATCH, rates) ** 2).mean()

        return jax.jit(jax.value_and_grad(loss))(params)

    loss, grads = loss_and_grad(params)
    other, other_grads = loss_and_grad(
        stack_layers(params, model.config), scan_layers=True, remat=remat
    )
    np.testing.assert_allclose(other, loss, rtol=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        unstack_layers(other_grads, model.config),
        grads,
    )


def test_stacking_is_invertible():
    model, params = make(num_layers=5, window=3, layer_pattern=('local', 'global'))
    again = unstack_layers(stack_layers(params, model.config), model.config)
    assert jax.tree.structure(again) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, again, params)


def test_scanned_layers_refuse_a_cache():
    model, params = make(scan_layers=True)
    with pytest.raises(ValueError, match='unstack_layers'):
        apply(model, params, BATCH, cache=init_cache(model.config, 2, 8), method='features')


@pytest.mark.parametrize('scan', [False, True])
def test_attention_weights_come_out(scan):
    model, params = make(scan_layers=scan)
    batch = BATCH | {'segment_ids': np.array([[1] * 6 + [0] * 2] * 2)}
    logits, sown = apply(model, params, batch, mutable='intermediates')
    np.testing.assert_allclose(logits, apply(model, params, batch), atol=1e-6)
    weights = [w if scan else w[None] for w in jax.tree.leaves(sown)]
    weights = np.concatenate(weights)  # [layers, B, N, T, S]
    assert weights.shape == (2, 2, 3, 8, 8)
    np.testing.assert_allclose(weights[..., :6, :].sum(-1), 1, atol=1e-5)
    np.testing.assert_array_equal(weights[..., 6:, :], 0)


def test_dropout_is_a_function_of_the_row_key():
    """Rows keep their masks when the batch is split or reordered; layers and sites differ."""
    model, params = make()
    keys = jax.random.split(jax.random.key(3), 2)
    same = {'tokens': np.stack([TOKENS[0], TOKENS[0]])}
    both = apply(model, params, same, dropout=Dropout(keys, 0.3, 0.3, 0.3))
    assert np.abs(both[0] - both[1]).max() > 1e-3
    swapped = apply(model, params, same, dropout=Dropout(keys[::-1], 0.3, 0.3, 0.3))
    np.testing.assert_allclose(swapped, both[::-1], atol=1e-5)
    one = {'tokens': TOKENS[:1]}
    alone = apply(model, params, one, dropout=Dropout(keys[:1], 0.3, 0.3, 0.3))
    np.testing.assert_allclose(alone[0], both[0], atol=1e-5)
