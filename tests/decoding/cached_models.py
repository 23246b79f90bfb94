"""Models whose cached decoding is compared with full forward passes."""

import functools

import decoding_models
import jax
import numpy as np
from decoding_models import PROMPTS, full_logits

from transformer.config import RopeConfig
from transformer.decoding import generate

MODELS = {
    'rope': {
        'num_layers': 3,  # a period, scanned, and one layer more
        'num_kv_heads': 2,
        'layer_pattern': ('local', 'global'),
        'window': 4,
        'rope': RopeConfig(local_base=100.0),
    },
    'alibi': {
        'position': 'alibi',
        'norm': 'layernorm',
        'norm_bias': False,
        'norm_placement': 'post',
    },
    'learned': {
        'position': 'learned',
        'scan_layers': False,
        'norm_placement': 'parallel',
        'attention_bias': 'all',
        'logits_softcap': 9.0,
    },
    'relative': {
        'position': 'relative',
        'window': 5,
        'num_kv_heads': 1,
        'tie_embeddings': True,
        'embed_scale': 0.1,  # lest it repeat itself
        'norm_placement': 'post',
    },
}
NEW = 25  # and the longest prompt of 7: max_length


def make(name, **changes):
    return decoding_models.make(name, **MODELS[name] | changes)


@functools.cache
def greedy_without_cache(name):
    """Prompts and the tokens that follow, and the logits of all, by full forward passes."""
    model, params = make(name)
    lengths = np.array([len(prompt) for prompt in PROMPTS])
    tokens = np.zeros((len(PROMPTS), max(lengths) + NEW), np.int32)
    for row, prompt in zip(tokens, PROMPTS, strict=True):
        row[: len(prompt)] = prompt
    rows = np.arange(len(PROMPTS))
    for ends in lengths + np.arange(NEW)[:, None]:
        logits = np.asarray(full_logits(params, {'tokens': tokens}, model.config))  # [B, T, V]
        tokens[rows, ends] = logits[rows, ends - 1].argmax(-1)
    new = [row[n : n + NEW].tolist() for n, row in zip(lengths, tokens, strict=True)]
    return new, np.asarray(full_logits(params, {'tokens': tokens}, model.config))


def draw(prompts=PROMPTS, seed=0, new=NEW, **options):
    options = {'temperature': 1.5, 'top_p': 0.9} | options
    key = jax.random.key(seed)
    return generate(*make('rope'), prompts, max_new_tokens=new, key=key, **options)
