"""The places of the norms, by value, and the keys of dropout."""

import dataclasses

import jax
import numpy as np
import pytest

from transformer.config import TransformerConfig
from transformer.functional import rms_norm
from transformer.modules import Dropout, Transformer
from transformer.modules import attention as attention_module
from transformer.modules import context as context_module
from transformer.modules.block import Block, deepnorm_scales
from transformer.modules.context import Context

CONFIG = TransformerConfig(
    vocab_size=7,
    num_layers=1,
    embed_dim=8,
    num_heads=2,
    mlp_dim=12,
    scan_layers=False,
    init='fan_in',
)
EXPECTED = {
    'pre': lambda x, f, norm, post, alpha: x + f(norm(x)),
    'post': lambda x, f, norm, post, alpha: norm(x + f(x)),
    'sandwich': lambda x, f, norm, post, alpha: x + post(f(norm(x))),
    'deepnorm': lambda x, f, norm, post, alpha: norm(alpha * x + f(x)),
}


@pytest.mark.parametrize('placement', [*EXPECTED, 'parallel', 'parallel_two'])
def test_norms_stand_where_the_papers_put_them(placement):
    config = dataclasses.replace(CONFIG, norm_placement=placement, norm_eps=1e-3)
    block = Block(config, 'decoder', 'global')
    x = jax.random.normal(jax.random.key(1), (1, 5, 8))
    context = Context(np.arange(5)[None], None)
    params = block.init(jax.random.key(0), x, 0, context)['params']
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda a: a + 0.3 * rng.standard_normal(a.shape), params)
    bound = block.bind({'params': params})

    def attend(x):
        return bound.self_attention(x, context)[0]

    def norm(name):
        return lambda x: rms_norm(x, params[name]['scale'], eps=1e-3)

    if placement == 'parallel':
        normed = norm('layer_norm')(x)
        expected = x + attend(normed) + bound.feed_forward(normed)
    elif placement == 'parallel_two':
        fed = bound.feed_forward(norm('feed_forward_norm')(x))
        expected = x + attend(norm('self_attention_norm')(x)) + fed
    else:
        expected, alpha = x, 2**0.25  # table 1 of the DeepNorm paper for one decoder layer
        sublayers = {'self_attention': attend, 'feed_forward': bound.feed_forward}
        for name, sublayer in sublayers.items():
            norms = norm(f'{name}_norm'), norm(f'{name}_post_norm')
            expected = EXPECTED[placement](expected, sublayer, *norms, alpha)
    got, _ = bound(x, 0, context)
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_deepnorm_scales_are_those_of_table_1():
    def scales(stack, **changes):
        return deepnorm_scales(dataclasses.replace(CONFIG, **changes), stack)

    assert scales('decoder', num_layers=8) == pytest.approx((2.0, 64**-0.25))
    assert scales('encoder', topology='encoder', num_layers=8) == pytest.approx((2.0, 64**-0.25))
    both = {'topology': 'encoder_decoder', 'num_layers': 6, 'num_encoder_layers': 18}
    assert scales('decoder', **both) == pytest.approx((18**0.25, 72**-0.25))
    depths = (18**4 * 6) ** (1 / 16)
    assert scales('encoder', **both) == pytest.approx((0.81 * depths, 0.87 / depths))


@pytest.mark.slow
def test_no_two_places_share_dropout_keys(monkeypatch):
    """Every layer, sublayer and stack draws for itself: a shared key would repeat a mask."""
    config = dataclasses.replace(CONFIG, topology='encoder_decoder', num_layers=3)
    tokens = np.ones((2, 4), int)
    batch = {'tokens': tokens, 'encoder_tokens': tokens}
    model = Transformer(config)
    params = jax.jit(model.init)(jax.random.key(0), batch)
    seen = []

    def record(keys):
        seen.append(np.asarray(jax.random.key_data(keys)).tobytes())

    attend, drop = attention_module.dot_product_attention, context_module.dropout

    def spy_attend(*arguments, dropout_key, **rest):
        record(dropout_key)
        return attend(*arguments, dropout_key=dropout_key, **rest)

    def spy_drop(x, rate, keys):
        record(keys)
        return drop(x, rate, keys)

    monkeypatch.setattr(attention_module, 'dot_product_attention', spy_attend)
    monkeypatch.setattr(context_module, 'dropout', spy_drop)
    keys = jax.random.split(jax.random.key(1), 2)
    with jax.disable_jit():
        model.apply(params, batch, Dropout(keys, 0.1, 0.1, 0.1))
    # Two embeddings; attention and feed-forward in the encoder's layers, cross-attention too in
    # the decoder's: 3 x (2 + 2) + 3 x (3 + 2).
    assert len(seen) == 2 + 3 * (1 + 2) + 3 * (2 + 3)
    assert len(set(seen)) == len(seen)
