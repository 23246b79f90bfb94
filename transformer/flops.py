"""What a model costs, from the shapes of its parameters alone: nothing is allocated.

A multiply-add counts 2 FLOPs. Counted are the products with weights and those of attention; norms,
softmax, activations and table look-ups are not.
"""

import bisect
import functools
import re
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp

from transformer.config import TransformerConfig
from transformer.modules import Transformer
from transformer.modules.axes import path_name
from transformer.modules.stack import stack_depth

# Component of a parameter, by its path; every path matches one.
COMPONENTS = {
    'embedding': r'(embedding|token_types)/table$|^embedding_projection/',
    'attention': r'attention/(query|key|value|out)/|buckets/table$',
    'feed_forward': r'feed_forward/',
    'norm': r'norm/(scale|bias)$',
    'head': r'^(head/(?!norm)|pooler/|classifier/)',
}
LONGEST = 1 << 40  # tokens; where the search for a crossing ends


@functools.cache
def parameter_shapes(config: TransformerConfig) -> dict[str, Any]:
    """`jax.ShapeDtypeStruct`s in the place of the parameters of `Transformer(config)`."""
    tokens = jax.ShapeDtypeStruct((1, 2), jnp.int32)
    key = jax.eval_shape(jax.random.key, 0)
    batch = {'tokens': tokens, 'encoder_tokens': tokens}
    return jax.eval_shape(Transformer(config).init, key, batch)['params']


def count_parameters(config: TransformerConfig) -> int:
    """Number of trained values; a tied table counts once."""
    return sum(parameters_by_component(config).values())


def parameters_by_component(config: TransformerConfig) -> dict[str, int]:
    """Number of trained values of each of COMPONENTS; a tied table is an embedding."""
    counts = dict.fromkeys(COMPONENTS, 0)
    for name, size in _sizes(config):
        counts[_component(name)] += size
    return counts


def training_flops_per_token(model_config: TransformerConfig, length: int) -> float:
    """FLOPs of one update for each token of a row: three forward passes.

    A product's backward pass is two products of the same size. What rematerialisation computes
    again is not counted (as in the utilisation of Chowdhery et al. 2022, appendix B).
    """
    return 3 * sum(forward_flops_per_token(model_config, length).values())


def forward_flops_per_token(config: TransformerConfig, length: int) -> dict[str, float]:
    """FLOPs of a forward pass over rows of `length` tokens, for each token, by component.

    Pooler and classifier count nothing: they read one vector of a row. An encoder_decoder's rows
    have `length` tokens on both sides, and a token stands for a pair of them.
    """
    flops = dict.fromkeys(COMPONENTS, 0.0)
    for name, size in _sizes(config):
        if name.endswith('kernel') and not name.startswith(('pooler/', 'classifier/')):
            flops[_component(name)] += 2 * size
    if config.head in ('lm', 'masked_lm') and config.tie_embeddings:
        flops['head'] += 2 * config.vocab_size * config.table_width
    if config.embedding_width and config.topology == 'encoder_decoder':  # on both sides
        flops['embedding'] += 2 * config.embedding_width * config.embed_dim
    flops['attention'] += attention_flops_per_token(config, length)
    return flops


def attention_flops_per_token(config: TransformerConfig, length: int) -> float:
    """FLOPs of Q K^T and of the weighted sum of values, the part that grows with the length.

    4 N H for each key that a query sees. Masked keys are not counted, whether or not the
    implementation computes them: a query of a causal layer sees (length + 1) / 2 keys on average.
    Rows hold one segment.
    """
    keys = 0.0
    both = config.topology == 'encoder_decoder'
    for stack in ('encoder', 'decoder') if both else (config.topology,):
        for layer in range(stack_depth(config, stack)):
            kind = config.pattern[layer % len(config.pattern)]
            window = config.window if kind == 'local' else None
            keys += _visible_keys(length, window, causal=stack == 'decoder')
    if both:
        keys += config.num_layers * length  # cross-attention
    return 4 * config.num_heads * config.dim_per_head * keys


def crossing_length(config: TransformerConfig) -> int | None:
    """The least length at which Q K^T and the sum of values need what the feed-forward does.

    From there on attention's O(n^2 d) leads over O(n d^2). None: windows keep it below for ever.
    """
    feed_forward = forward_flops_per_token(config, 1)['feed_forward']
    attention = functools.partial(attention_flops_per_token, config)
    if attention(LONGEST) < feed_forward:
        return None
    return 1 + bisect.bisect_left(range(1, LONGEST), feed_forward, key=attention)


def peak_flops(dtype: str) -> float:
    """Measured FLOP/s of square matrix products in `dtype` on one device, in about half a second.

    The precision is the default one, with which a model multiplies too.
    """
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    product = jax.jit(jnp.matmul)
    size, seconds = 256, 0.0
    while seconds < 5e-3 and size < 8192:  # large enough to fill the device
        size *= 2
        a, b = jnp.ones((size, size), dtype), jnp.full((size, size), 1 / size, dtype)
        _seconds(product, a, b, 1)  # compiles
        seconds = _seconds(product, a, b, 1)
    repeats = max(1, int(1e-2 / seconds))
    return 2 * size**3 / statistics.median(_seconds(product, a, b, repeats) for _ in range(5))


def _seconds(product, a, b, repeats):
    """Time of one of `repeats` products that are queued together."""
    start = time.perf_counter()
    for _ in range(repeats):
        a = product(a, b)
    a.block_until_ready()
    return (time.perf_counter() - start) / repeats


def _sizes(config):
    leaves = jax.tree_util.tree_leaves_with_path(parameter_shapes(config))
    return [(path_name(path), leaf.size) for path, leaf in leaves]


def _component(name):
    for component, pattern in COMPONENTS.items():
        if re.search(pattern, name):
            return component
    raise ValueError(f'Parameter {name} is in none of COMPONENTS: a new kind needs a pattern.')


def _visible_keys(length, window, causal):
    """Keys that a query sees, on average over the queries of a row."""
    reach = length - 1 if window is None else min(window, length) - 1
    one_side = reach - reach * (reach + 1) / 2 / length  # mean of min(index, reach)
    return 1 + one_side if causal else 1 + 2 * one_side
