"""LLaMA (Touvron et al. 2023) and its kin: Mistral, Qwen2 and Qwen3."""

from transformer.interop.family import Family, always, field, layers, only
from transformer.interop.rules import ACTIVATIONS, attention_bias, layer_types, lm_head, rope

TENSORS = {
    'model.embed_tokens': 'embedding',
    'model.norm': 'decoder/final_norm',
    'lm_head': 'head/output',
} | layers(
    'model.layers.*.',
    'decoder/layer_*/',
    {
        'input_layernorm': 'self_attention_norm',
        'self_attn.q_proj': 'self_attention/query',
        'self_attn.k_proj': 'self_attention/key',
        'self_attn.v_proj': 'self_attention/value',
        'self_attn.o_proj': 'self_attention/out',
        'self_attn.q_norm': 'self_attention/query_norm',
        'self_attn.k_norm': 'self_attention/key_norm',
        'post_attention_layernorm': 'feed_forward_norm',
        'mlp.gate_proj': 'feed_forward/gate',
        'mlp.up_proj': 'feed_forward/up',
        'mlp.down_proj': 'feed_forward/down',
    },
)
ALIASES = {'lm_head.weight': 'embedding/table'}
IGNORED = r'model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq'
SIZES = (
    field('vocab_size', 'vocab_size'),
    field('num_hidden_layers', 'num_layers'),
    field('hidden_size', 'embed_dim'),
    field('num_attention_heads', 'num_heads'),
    field('num_key_value_heads', 'num_kv_heads', None, written='kv_heads'),
    field('intermediate_size', 'mlp_dim'),
    field('rms_norm_eps', 'norm_eps', 1e-6),
    always(norm='rmsnorm', norm_placement='pre', feed_forward='glu'),
)
RULES = (
    *SIZES,
    field('hidden_act', 'activation', 'silu', ACTIVATIONS),
    rope(),
    lm_head('lm_head', tied=False),
)
HEAD_DIM = field('head_dim', 'head_dim', None, written='dim_per_head')
QWEN_WINDOWS = layer_types(
    lambda published, i: (
        'sliding_attention'
        if published.get('use_sliding_window', False)
        and i >= published.get('max_window_layers', 28)
        else 'full_attention'
    ),
    4096,
    use_sliding_window=True,
)

LLAMA = Family(
    model_type='llama',
    classes={'lm': 'LlamaForCausalLM', 'none': 'LlamaModel'},
    prefix='model.',
    rules=(
        *RULES,
        HEAD_DIM,
        attention_bias(default=False),
        field('mlp_bias', 'mlp_bias', False),
    ),
    tensors=TENSORS,
    aliases=ALIASES,
    ignored=IGNORED,
)

MISTRAL = Family(
    model_type='mistral',
    classes={'lm': 'MistralForCausalLM', 'none': 'MistralModel'},
    prefix='model.',
    rules=(
        *RULES,
        HEAD_DIM,
        field('sliding_window', 'window', 4096),
        only(layer_types=None),
    ),
    tensors=TENSORS,
    aliases=ALIASES,
    ignored=IGNORED,
)

QWEN2 = Family(
    model_type='qwen2',
    classes={'lm': 'Qwen2ForCausalLM', 'none': 'Qwen2Model'},
    prefix='model.',
    rules=(*RULES, HEAD_DIM, QWEN_WINDOWS, always(attention_bias='qkv')),
    tensors=TENSORS,
    aliases=ALIASES,
    ignored=IGNORED,
)

QWEN3 = Family(
    model_type='qwen3',
    classes={'lm': 'Qwen3ForCausalLM', 'none': 'Qwen3Model'},
    prefix='model.',
    rules=(
        *RULES,
        field('head_dim', 'head_dim', 128, written='dim_per_head'),
        QWEN_WINDOWS,
        attention_bias(default=False),
        always(qk_norm=True),
    ),
    tensors=TENSORS,
    aliases=ALIASES,
    ignored=IGNORED,
)
