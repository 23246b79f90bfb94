"""What single fields of the config do to the Transformer."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import BASE, BATCH, TOKENS, apply, gradients, make

from transformer.config import RopeConfig
from transformer.modules import (
    Transformer,
)
from transformer.modules.axes import map_parameters, parameter_axes


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


def test_a_mask_keeps_tokens_from_keys():
    model, params = make(topology='encoder', position='none')
    causal = np.tril(np.ones((8, 8), bool))
    masked = apply(model, params, {'tokens': TOKENS, 'mask': np.stack([causal, causal])})
    changed = apply(model, params, {'tokens': TOKENS + (np.arange(8) > 4), 'mask': causal[None]})
    np.testing.assert_allclose(changed[:, :5], masked[:, :5], atol=1e-6)
    assert np.abs(changed[:, 5:] - masked[:, 5:]).max() > 0.1
