"""Parameters and FLOPs against hand counts, and against what XLA counts."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import pytest

from transformer import flops
from transformer.config import TransformerConfig
from transformer.flops import (
    COMPONENTS,
    attention_flops_per_token,
    count_parameters,
    crossing_length,
    forward_flops_per_token,
    parameter_shapes,
    parameters_by_component,
    peak_flops,
    training_flops_per_token,
)
from transformer.modules import Transformer
from transformer.modules.axes import path_name

SIZES = {'vocab_size': 100, 'embed_dim': 64, 'num_heads': 4, 'mlp_dim': 256, 'num_layers': 2}
EVERYTHING = TransformerConfig(
    **SIZES,
    topology='encoder_decoder',
    position='learned',
    norm='layernorm',
    attention_bias='all',
    mlp_bias=True,
    qk_norm=True,
    embedding_norm=True,
    share_embeddings=False,
    tie_embeddings=False,
    num_token_types=2,
    head='masked_lm',
    head_bias=True,
)
BERT = dataclasses.replace(EVERYTHING, topology='encoder', pooler=True)
T5 = dataclasses.replace(EVERYTHING, position='relative')
NARROW = dataclasses.replace(EVERYTHING, embedding_width=16, head='lm', tie_embeddings=True)


def compiled_flops(model, rows, length):
    """FLOPs that XLA counts in a forward pass, for each token."""
    tokens = jax.ShapeDtypeStruct((rows, length), jnp.int32)
    batch = {'tokens': tokens, 'encoder_tokens': tokens}
    forward = jax.jit(Transformer(model).apply)
    compiled = forward.lower({'params': parameter_shapes(model)}, batch).compile()
    return compiled.cost_analysis()['flops'] / rows / length


@pytest.mark.parametrize(
    'config', [EVERYTHING, BERT, T5, NARROW], ids=['everything', 'bert', 't5', 'narrow']
)
def test_every_parameter_has_one_component(config):
    names = [path_name(p) for p, _ in jax.tree_util.tree_leaves_with_path(parameter_shapes(config))]
    for name in names:
        assert len([part for part in COMPONENTS if re.search(COMPONENTS[part], name)]) == 1, name
    counts = parameters_by_component(config)
    assert all(counts.values())
    assert sum(counts.values()) == count_parameters(config)


def test_components_of_a_decoder_by_hand():
    config = TransformerConfig(**SIZES, num_kv_heads=2, tie_embeddings=False)
    assert parameters_by_component(config) == {
        'embedding': 100 * 64,
        'attention': 2 * (2 * 64 * 64 + 2 * 64 * 32),
        'feed_forward': 2 * 3 * 64 * 256,
        'norm': 5 * 64,
        'head': 64 * 100,
    }


def test_scanned_and_looped_layers_count_alike():
    looped = dataclasses.replace(EVERYTHING, scan_layers=False)
    assert parameters_by_component(looped) == parameters_by_component(EVERYTHING)
    assert forward_flops_per_token(looped, 8) == forward_flops_per_token(EVERYTHING, 8)


def test_shapes_are_not_arrays():
    leaves = jax.tree.leaves(parameter_shapes(EVERYTHING))
    assert all(type(leaf) is jax.ShapeDtypeStruct for leaf in leaves)


def test_forward_flops_by_hand():
    config = TransformerConfig(**SIZES, feed_forward='mlp')  # tied
    assert forward_flops_per_token(config, 9) == {
        'embedding': 0,
        'attention': 2 * (2 * 4 * 64 * 64 + 4 * 64 * 5),  # 5 of 9 keys are visible on average
        'feed_forward': 2 * 2 * 2 * 64 * 256,
        'norm': 0,
        'head': 2 * 64 * 100,
    }
    total = sum(forward_flops_per_token(config, 9).values())
    assert training_flops_per_token(config, 9) == 3 * total


@pytest.mark.parametrize('topology', ['encoder', 'decoder'])
@pytest.mark.parametrize('window', [None, 1, 3, 20])
def test_visible_keys_are_those_of_the_mask(topology, window):
    config = TransformerConfig(**SIZES, topology=topology, window=window)
    length, reach = 7, (window or 99) - 1
    pairs = [(i, j) for i in range(length) for j in range(length) if abs(i - j) <= reach]
    if topology == 'decoder':
        pairs = [(i, j) for i, j in pairs if j <= i]
    expected = 2 * 4 * 64 * len(pairs) / length
    assert attention_flops_per_token(config, length) == pytest.approx(expected, rel=1e-12)


def test_local_and_global_layers_and_cross_attention():
    local = TransformerConfig(**SIZES, window=2, layer_pattern=('local', 'global'))
    assert attention_flops_per_token(local, 5) == pytest.approx(4 * 64 * (9 / 5 + 3))
    both = TransformerConfig(**SIZES, topology='encoder_decoder', num_encoder_layers=1)
    assert attention_flops_per_token(both, 5) == pytest.approx(4 * 64 * (5 + 2 * 3 + 2 * 5))


@pytest.mark.parametrize('topology', ['encoder', 'decoder', 'encoder_decoder'])
def test_flops_are_those_that_xla_counts(topology):
    # XLA counts what is elementwise too: 5 or 6 operations for each of T attention weights, where
    # the products take 4 H, and some tens for each of D features, where they take 24 D.
    config = TransformerConfig(
        vocab_size=512,
        topology=topology,
        embed_dim=256,
        num_heads=2,
        mlp_dim=1024,
        num_layers=1,
        position='none',
        feed_forward='mlp',
        activation='relu',
        scan_layers=False,
        attention_implementation='xla',
    )
    length = 64
    counted = sum(forward_flops_per_token(config, length).values())
    if topology != 'encoder':  # two strips of 32 queries, for which 32 and 64 keys are multiplied
        counted += 4 * 256 * ((32 + 64) / 2 - (length + 1) / 2)
    assert counted <= compiled_flops(config, 2, length) <= 1.03 * counted


@pytest.mark.parametrize(
    ('change', 'expected'),
    [
        # Equal at n = P / (N H) - 1 if causal, P / (2 N H) if not; P = 2 * 64 * 256, N H = 64.
        ({'feed_forward': 'mlp'}, 511),
        ({'feed_forward': 'glu'}, 767),
        ({'feed_forward': 'mlp', 'topology': 'encoder'}, 256),
        # 2 layers each see n + (n + 1) / 2 + n keys, and 8 P / (4 N H) = 1024.
        ({'feed_forward': 'mlp', 'topology': 'encoder_decoder'}, 205),
        # (n + 1) / 2 + 100 - 4950 / n keys, and 4 P / (4 N H) = 512.
        ({'feed_forward': 'mlp', 'window': 100, 'layer_pattern': ('local', 'global')}, 835),
        ({'feed_forward': 'mlp', 'window': 100}, None),
        ({'mlp_dim': 1, 'num_layers': 1}, 2),
    ],
)
def test_attention_and_feed_forward_cross(change, expected):
    config = TransformerConfig(**SIZES | change)
    crossing = crossing_length(config)
    assert crossing == expected
    feed_forward = forward_flops_per_token(config, 1)['feed_forward']
    if crossing is None:
        assert attention_flops_per_token(config, 10**9) < feed_forward
    else:
        assert attention_flops_per_token(config, crossing) >= feed_forward
        assert attention_flops_per_token(config, crossing - 1) < feed_forward


def test_peak_is_flops_over_time(monkeypatch):
    ticks = iter(range(100))
    monkeypatch.setattr(flops.time, 'perf_counter', lambda: next(ticks))
    assert peak_flops('float32') == 2 * 512**3  # the first size takes a second, which is enough


def test_peak_is_that_of_a_computer():
    assert 1e8 < peak_flops('float32') < 1e16
