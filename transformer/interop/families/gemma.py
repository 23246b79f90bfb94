"""Gemma (Gemma Team 2024), Gemma 2 (2024) and the text model of Gemma 3 (2025)."""

from transformer.errors import UserError
from transformer.interop.families.llama import (
    ALIASES,
    IGNORED,
    SIZES,
    TENSORS,
)
from transformer.interop.family import REQUIRED, Family, Rule, always, derived, field, layers, only
from transformer.interop.rules import (
    ACTIVATIONS,
    attention_bias,
    layer_types,
    lm_head,
    read_rope,
    rope,
    write_rope,
)

GEMMA_ACTIVATIONS = {'gelu_pytorch_tanh': 'gelu_tanh'} | ACTIVATIONS
RULES = (
    *SIZES,
    field('head_dim', 'head_dim', 256, written='dim_per_head'),
    derived('embed_scale', lambda published: published.get('hidden_size', REQUIRED) ** 0.5),
    lm_head('lm_head', tied=True),
    attention_bias(default=False),
    only(use_bidirectional_attention=False),
    always(norm_offset=1.0),
)
SANDWICH = (
    *RULES,
    field('hidden_activation', 'activation', 'gelu_pytorch_tanh', GEMMA_ACTIVATIONS),
    Rule(
        lambda published: {'attention_scale': published.get('query_pre_attn_scalar', 256) ** -0.5},
        lambda config: {
            'query_pre_attn_scalar': round(
                (config.attention_scale or config.dim_per_head**-0.5) ** -2
            )
        },
    ),
    always(norm_placement='sandwich'),
)
SANDWICH_TENSORS = TENSORS | layers(
    'model.layers.*.',
    'decoder/layer_*/',
    {
        'post_attention_layernorm': 'self_attention_post_norm',
        'pre_feedforward_layernorm': 'feed_forward_norm',
        'post_feedforward_layernorm': 'feed_forward_post_norm',
    },
)


def _read_two_ropes(published):
    """RoPE of global layers, and the base of local ones, which are unscaled."""
    given = published.get('rope_parameters') or {}
    length = published.get('max_position_embeddings', 131_072)
    scaled = given.get('full_attention') or published.get('rope_scaling') or {}
    local = given.get('sliding_attention') or {}
    if local.get('rope_type', 'default') != 'default':
        raise UserError('config.json scales the rope of sliding_attention, which we never do.')
    return read_rope(scaled, length) | {
        'position': 'rope',
        'max_length': length,
        'rope.base': scaled.get('rope_theta') or published.get('rope_theta', 1_000_000.0),
        'rope.local_base': local.get('rope_theta') or published.get('rope_local_base_freq', 1e4),
    }


def _write_two_ropes(config):
    local_base = config.rope.base if config.rope.local_base is None else config.rope.local_base
    local = {'rope_type': 'default', 'rope_theta': local_base}
    return {
        'rope_parameters': {'full_attention': write_rope(config), 'sliding_attention': local},
        'max_position_embeddings': config.max_length,
    }


GEMMA = Family(
    model_type='gemma',
    classes={'lm': 'GemmaForCausalLM', 'none': 'GemmaModel'},
    prefix='model.',
    rules=(
        *RULES,
        field(  # early files say gelu and mean its approximation
            'hidden_act',
            'activation',
            'gelu_pytorch_tanh',
            GEMMA_ACTIVATIONS | {'gelu': 'gelu_tanh'},
        ),
        rope(),
    ),
    tensors=TENSORS,
    aliases=ALIASES,
    ignored=IGNORED,
)

GEMMA2 = Family(
    model_type='gemma2',
    classes={'lm': 'Gemma2ForCausalLM', 'none': 'Gemma2Model'},
    prefix='model.',
    rules=(
        *SANDWICH,
        rope(),
        field('attn_logit_softcapping', 'attention_softcap', 50.0),
        field('final_logit_softcapping', 'logits_softcap', 30.0),
        layer_types(lambda _, i: 'full_attention' if i % 2 else 'sliding_attention', 4096),
    ),
    tensors=SANDWICH_TENSORS,
    aliases=ALIASES,
    ignored=IGNORED,
)

GEMMA3 = Family(
    model_type='gemma3_text',
    classes={'lm': 'Gemma3ForCausalLM', 'none': 'Gemma3TextModel'},
    prefix='model.',
    rules=(
        *SANDWICH,
        Rule(_read_two_ropes, _write_two_ropes),
        only(attn_logit_softcapping=None),  # which `transformers` reads and does not apply
        field('final_logit_softcapping', 'logits_softcap', None),
        layer_types(
            lambda published, i: (
                'sliding_attention'
                if (i + 1) % published.get('sliding_window_pattern', 6)
                else 'full_attention'
            ),
            4096,
        ),
        always(qk_norm=True),
    ),
    tensors=SANDWICH_TENSORS,
    aliases=ALIASES,
    ignored=IGNORED,
)
