"""Small random models, and what a full forward pass without cache or padding says of them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from transformer.config import TransformerConfig
from transformer.modules import Transformer

SMALL = {
    'vocab_size': 40,
    'num_layers': 2,
    'embed_dim': 16,
    'num_heads': 4,
    'mlp_dim': 24,
    'max_length': 32,
    'tie_embeddings': False,  # tied, random models repeat themselves
}
MODELS = {
    'decoder': {'num_kv_heads': 2, 'layer_pattern': ('local', 'global'), 'window': 4},
    'original': {  # Vaswani et al. 2017
        'topology': 'encoder_decoder',
        'position': 'sinusoidal',
        'norm': 'layernorm',
        'norm_placement': 'post',
        'attention_bias': 'all',
        'feed_forward': 'mlp',
        'embed_scale': 4.0,
    },
    'two_tables': {
        'topology': 'encoder_decoder',
        'position': 'learned',
        'share_embeddings': False,
        'encoder_vocab_size': 50,
        'num_encoder_layers': 1,
        'num_kv_heads': 2,
        'scan_layers': False,
    },
}
PROMPTS = [[5, 31, 7, 7, 12, 0, 9], [17], [3, 1, 2]]
ENDS = {'decoder': 16, 'original': 34, 'two_tables': 3}  # tokens that end some rows, not all
SOURCES = [[9, 4, 0], list(range(1, 30)), [38, 2, 2, 11, 0]]


@functools.cache
def make(name, **changes):
    """A model, and parameters that make the likeliest token change from step to step."""
    model = Transformer(TransformerConfig(**SMALL | MODELS.get(name, {}) | changes))
    tokens = np.ones((1, 2), np.int32)
    batch = {'tokens': tokens, 'encoder_tokens': tokens}
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), batch)['params'])
    random = np.random.default_rng(0)

    def draw(path, leaf):
        mean, std = {'table': (0, 1), 'scale': (1, 0.3)}.get(path[-1].key, (0, 0.3))
        return jnp.array(random.normal(mean, std, leaf.shape), leaf.dtype)

    return model, jax.tree_util.tree_map_with_path(draw, shapes)


def sources_of(name):
    return None if name == 'decoder' else SOURCES


@functools.partial(jax.jit, static_argnames='config')
def full_logits(params, batch, config):
    return Transformer(config).apply({'params': params}, batch)


def full_log_probs(name, rows, source=None, **changes):
    """float64 log-probabilities [len(rows), T, V] of the token after each, of rows padded to T.

    All rows have the one source; nothing sees the padding on their right.
    """
    model, params = make(name, **changes)
    tokens = np.zeros((len(rows), model.config.max_length), np.int32)
    for padded_row, row in zip(tokens, rows, strict=True):
        padded_row[: len(row)] = row
    batch = {'tokens': tokens}
    if source is not None:
        batch['encoder_tokens'] = np.tile(np.array(source, np.int32), (len(rows), 1))
    logits = np.asarray(full_logits(params, batch, model.config), np.float64)
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))
