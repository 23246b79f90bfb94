"""The Transformer by its properties: every topology, norm placement and position scheme."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from transformer.config import RopeConfig, TransformerConfig
from transformer.errors import UserError
from transformer.modules import (
    Dropout,
    Transformer,
    init_cache,
    stack_layers,
    unstack_layers,
)
from transformer.modules.axes import map_parameters, parameter_axes

BASE = TransformerConfig(
    vocab_size=13,
    num_layers=2,
    embed_dim=12,
    num_heads=3,
    num_kv_heads=1,
    head_dim=4,
    mlp_dim=20,
    max_length=16,
    scan_layers=False,
    init='fan_in',
)
TOKENS = np.array([[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 8, 1, 8]])
BATCH = {'tokens': TOKENS, 'encoder_tokens': np.array([[5, 6, 7], [8, 9, 10]])}
PLACEMENTS = ('pre', 'post', 'sandwich', 'parallel', 'parallel_two', 'deepnorm')
POSITIONS = ('none', 'sinusoidal', 'learned', 'rope', 'alibi', 'relative')


def make(**changes):
    """A small model with random parameters, biases and norm scales included."""
    model = Transformer(dataclasses.replace(BASE, **changes))
    shapes = jax.eval_shape(model.init, jax.random.key(0), BATCH)['params']
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: (0.3 * rng.standard_normal(leaf.shape)).astype(np.float32), shapes
    )
    return model, params


def apply(model, params, batch, **arguments):
    return jax.jit(functools.partial(model.apply, **arguments))({'params': params}, batch)


def gradients(model, params, target):
    """Gradients of the logits [:, target], weighed, in the parameters and the embedded tokens.

    Returns:
        The logits, the parameters' gradients, and the absolute gradients of the embedded tokens
        [B, T] of the stack that makes the logits.
    """
    embedded = jax.random.normal(jax.random.key(1), (*TOKENS.shape, model.config.embed_dim))

    def loss(params, embedded):
        def add_to_embedded(call, args, kwargs, context):
            x = call(*args, **kwargs)
            is_input = context.method_name == '_embed' and x.shape == embedded.shape
            return x + embedded if is_input else x

        with nn.intercept_methods(add_to_embedded):
            logits = model.apply({'params': params}, BATCH)
        return (logits[:, target] * jnp.sin(jnp.arange(logits.shape[-1]))).sum(), logits

    grads, logits = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(params, embedded)
    return logits, grads[0], np.abs(grads[1]).sum(-1)


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


def test_no_positions_means_permutation_equivariance():
    model, params = make(topology='encoder', position='none')
    order = np.array([3, 1, 0, 2, 7, 6, 5, 4])
    permuted = apply(model, params, {'tokens': TOKENS[:, order]})
    np.testing.assert_allclose(permuted, apply(model, params, BATCH)[:, order], atol=1e-5)


def test_window_counts_the_querys_own_key():
    model, params = make(num_layers=1, window=3, position='none')
    *_, influence = gradients(model, params, target=6)
    np.testing.assert_array_equal((influence > 0)[0], [0, 0, 0, 0, 1, 1, 1, 0])


def test_local_rope_base_concerns_local_layers_only():
    pattern = {'window': 8, 'layer_pattern': ('local', 'global')}
    model, params = make(**pattern)
    other, _ = make(**pattern, rope=RopeConfig(local_base=100.0))
    all_global, _ = make(rope=RopeConfig(local_base=100.0))
    plain, _ = make()
    assert np.abs(apply(model, params, BATCH) - apply(other, params, BATCH)).max() > 1e-4
    np.testing.assert_array_equal(apply(plain, params, BATCH), apply(all_global, params, BATCH))


def test_position_offset_leaves_rows_before_position_0():
    model, params = make(position='learned', position_offset=3)
    table = params['decoder']['position']['embedding']['table']
    assert table.shape == (19, 12)
    plain, _ = make(position='learned')
    rest = {**params['decoder'], 'position': {'embedding': {'table': table[3:]}}}
    expected = apply(plain, params | {'decoder': rest}, BATCH)
    np.testing.assert_array_equal(apply(model, params, BATCH), expected)


@pytest.mark.parametrize('norm', ['rmsnorm', 'layernorm'])
def test_norm_offset_is_added_to_every_scale(norm):
    """Fresh scales and their offset make 1, also for the norms of queries and keys."""
    model, params = make(norm=norm, qk_norm=True, norm_offset=1.0)
    plain, _ = make(norm=norm, qk_norm=True)

    def shifted(name, leaf):
        return leaf + 1 if name.endswith('scale') else leaf

    expected = apply(plain, map_parameters(shifted, params), BATCH)
    np.testing.assert_allclose(apply(model, params, BATCH), expected, atol=1e-6)
    fresh = jax.jit(model.init)(jax.random.key(0), BATCH)['params']
    map_parameters(lambda name, leaf: assert_zero_scale(name, leaf), fresh)


def assert_zero_scale(name, leaf):
    if name.endswith('scale'):
        np.testing.assert_array_equal(leaf, 0)


def test_dynamic_rope_grows_with_each_row():
    """Up to original_length nothing changes; beyond it, a row of n is NTK scaled for n tokens."""
    dynamic = RopeConfig(scaling='dynamic', factor=3.0, original_length=5)
    model, params = make(rope=dynamic)
    plain, _ = make()
    short = {'tokens': TOKENS[:, :5]}
    np.testing.assert_allclose(apply(model, params, short), apply(plain, params, short), atol=1e-6)
    ntk, _ = make(rope=RopeConfig(scaling='ntk', factor=3.0 * 8 / 5 - 2))
    np.testing.assert_allclose(apply(model, params, BATCH), apply(ntk, params, BATCH), atol=1e-5)
    lengths = {
        'segment_ids': np.array([[1] * 8, [1] * 5 + [0] * 3]),
        'positions': np.array([[*range(8)], [0, 1, 2, 3, 4, 0, 0, 0]]),
    }
    both = apply(model, params, BATCH | lengths)
    np.testing.assert_allclose(both[0], apply(ntk, params, BATCH)[0], atol=1e-5)
    np.testing.assert_allclose(both[1, :5], apply(plain, params, BATCH)[1, :5], atol=1e-5)


def test_attention_factor_sharpens_as_a_scale_of_the_logits():
    model, params = make(rope=RopeConfig(scaling='linear', attention_factor=1.5))
    scaled, _ = make(attention_scale=1.5**2 * 4**-0.5)
    expected = apply(scaled, params, BATCH)
    np.testing.assert_allclose(apply(model, params, BATCH), expected, atol=1e-5)


def test_every_parameter_is_in_the_axes_table():
    full = {
        'num_token_types': 2,
        'embedding_norm': True,
        'qk_norm': True,
        'attention_bias': 'all',
        'mlp_bias': True,
        'norm': 'layernorm',
        'head': 'masked_lm',
        'head_bias': True,
        'tie_embeddings': False,
        'norm_placement': 'sandwich',
    }
    for changes in (
        {'topology': 'encoder', 'pooler': True, 'position': 'learned'},
        {'topology': 'encoder', 'embedding_width': 12, 'head': 'lm'},
        {'topology': 'encoder_decoder', 'share_embeddings': False, 'position': 'relative'},
    ):
        _, params = make(**full | changes)
        sizes = {'heads': 3, 'kv_heads': 1, 'head_dim': 4, 'embed': 12}
        sizes |= {'embed_in': 12, 'embed_out': 12}
        sizes |= {'mlp': 20, 'vocab': 13, 'types': 2, 'length': 16, 'buckets': 32}

        def check(name, leaf, sizes=sizes):
            contracted, produced = parameter_axes(name)
            assert leaf.shape == tuple(sizes[axis] for axis in contracted + produced), name

        map_parameters(check, params)


def test_bfloat16_computes_in_bfloat16_with_float32_parameters():
    model, params = make(dtype='bfloat16')
    features, _ = apply(model, params, BATCH, method='features')
    assert features.dtype == jnp.bfloat16
    logits = apply(model, params, BATCH)
    assert logits.dtype == jnp.float32
    exact, _ = make()
    np.testing.assert_allclose(logits, apply(exact, params, BATCH), atol=0.15)
    shapes = jax.eval_shape(model.init, jax.random.key(0), BATCH)
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {np.dtype('float32')}


def test_initial_scales():
    """Standard deviations of fresh kernels, within 5%, for each initialisation."""
    wide = {'embed_dim': 128, 'num_heads': 4, 'num_kv_heads': None, 'head_dim': 32, 'mlp_dim': 512}

    def stds(**changes):
        config = dataclasses.replace(BASE, **wide, vocab_size=1000, **changes)
        params = jax.jit(Transformer(config).init)(jax.random.key(0), BATCH)['params']
        layer = params['decoder']['layer_0']
        attention, mlp = layer['self_attention'], layer['feed_forward']
        return [
            float(leaf.std())
            for leaf in (
                params['embedding']['table'],
                attention['query']['kernel'],
                attention['value']['kernel'],
                attention['out']['kernel'],
                mlp['up']['kernel'],
                mlp['down']['kernel'],
            )
        ]

    t5 = stds(init='fan_in', embedding_std=1.0, attention_scale=1.0)
    wide_std, inner_std = 128**-0.5, 512**-0.5
    expected = [1.0, wide_std * 32**-0.5, wide_std, wide_std, wide_std, inner_std]
    np.testing.assert_allclose(t5, expected, rtol=0.05)
    np.testing.assert_allclose(stds(init='normal'), [0.02] * 6, rtol=0.05)
    np.testing.assert_allclose(stds(init='gpt2'), [0.02, 0.02, 0.02, 0.01, 0.02, 0.01], rtol=0.05)
    glorot, glorot_mlp = (2 / 256) ** 0.5, (2 / 640) ** 0.5
    np.testing.assert_allclose(
        stds(init='xavier'),
        [wide_std, glorot, glorot, glorot, glorot_mlp, glorot_mlp],
        rtol=0.05,
    )


@pytest.mark.parametrize('head', ['lm', 'masked_lm'])
def test_a_narrow_table_is_a_wide_one_of_lower_rank(head):
    """Lan et al. 2020, section 3.1: V x E and E x D in the place of V x D, tied or not."""
    options = {'topology': 'encoder', 'head': head, 'norm': 'layernorm', 'head_bias': True}
    narrow, params = make(embedding_width=5, **options)
    table = params.pop('embedding')['table']  # [V, E]
    assert table.shape == (13, 5)
    projection = params.pop('embedding_projection')['kernel']  # [E, D]
    wide, _ = make(tie_embeddings=False, **options)
    narrow_params = params | {
        'embedding': {'table': table},
        'embedding_projection': {'kernel': projection},
    }
    features, _ = apply(narrow, narrow_params, BATCH, method='features')
    wide_params = params | {'embedding': {'table': table @ projection}}
    expected, _ = apply(wide, wide_params, BATCH, method='features')
    np.testing.assert_allclose(features, expected, atol=1e-5)

    logits = np.asarray(apply(narrow, narrow_params, BATCH))
    if head == 'lm':
        x = features @ params['head']['projection']['kernel']
    else:
        x = jax.nn.silu(
            features @ params['head']['transform']['kernel'] + params['head']['transform']['bias']
        )
        norm = params['head']['norm']
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        x = x * norm['scale'] + norm['bias']
    assert x.shape[-1] == 5
    np.testing.assert_allclose(logits, x @ table.T + params['head']['bias'], atol=1e-5)


def test_the_pooler_has_the_activation_of_its_field():
    features = np.linspace(-1, 1, 2 * 8 * 12, dtype=np.float32).reshape(2, 8, 12)
    options = {'topology': 'encoder', 'head': 'none', 'pooler': True}
    for name, activate in ('tanh', np.tanh), ('relu', lambda x: np.maximum(x, 0)):
        model, params = make(pooler_activation=name, **options)
        pooler = params['pooler']
        expected = activate(features[:, 0] @ pooler['kernel'] + pooler['bias'])
        found = model.apply({'params': params}, features, method='pooled')
        np.testing.assert_allclose(found, expected, atol=1e-6)
