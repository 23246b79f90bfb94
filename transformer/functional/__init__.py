"""The mathematics of the Transformer as pure functions of arrays, which need nothing but JAX."""

from transformer.functional.activations import (
    ACTIVATIONS,
    gelu,
    gelu_tanh,
    relu,
    relu_squared,
    silu,
)
from transformer.functional.attention import dot_product_attention, multi_head_attention
from transformer.functional.chunking import sum_over_chunks
from transformer.functional.corruption import corrupt_spans, mask_tokens, span_lengths
from transformer.functional.dropout import dropout, dropout_bits
from transformer.functional.feed_forward import feed_forward, gated_feed_forward
from transformer.functional.frequencies import dynamic_ntk, rope_frequencies
from transformer.functional.losses import correct_predictions, cross_entropy, weighted_sum
from transformer.functional.masks import (
    causal_mask,
    combine_masks,
    length_mask,
    padding_mask,
    segment_mask,
    window_mask,
)
from transformer.functional.norms import layer_norm, rms_norm
from transformer.functional.pooling import mean_pool
from transformer.functional.positions import (
    alibi_bias,
    alibi_slopes,
    apply_rope,
    relative_bias,
    relative_buckets,
    sinusoidal,
)
from transformer.functional.projections import affine, merge_heads, split_heads, unembed
from transformer.functional.sampling import (
    apply_temperature,
    filtered,
    greedy,
    min_p,
    sample,
    top_k,
    top_p,
)
from transformer.functional.speculation import accept_drafts

__all__ = [
    'ACTIVATIONS',
    'accept_drafts',
    'affine',
    'alibi_bias',
    'alibi_slopes',
    'apply_rope',
    'apply_temperature',
    'causal_mask',
    'combine_masks',
    'correct_predictions',
    'corrupt_spans',
    'cross_entropy',
    'dot_product_attention',
    'dropout',
    'dropout_bits',
    'dynamic_ntk',
    'feed_forward',
    'filtered',
    'gated_feed_forward',
    'gelu',
    'gelu_tanh',
    'greedy',
    'layer_norm',
    'length_mask',
    'mask_tokens',
    'mean_pool',
    'merge_heads',
    'min_p',
    'multi_head_attention',
    'padding_mask',
    'relative_bias',
    'relative_buckets',
    'relu',
    'relu_squared',
    'rms_norm',
    'rope_frequencies',
    'sample',
    'segment_mask',
    'silu',
    'sinusoidal',
    'span_lengths',
    'split_heads',
    'sum_over_chunks',
    'top_k',
    'top_p',
    'unembed',
    'weighted_sum',
    'window_mask',
]
