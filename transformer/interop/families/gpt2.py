"""GPT-2 (Radford et al. 2019). Its matrices are [in, out]."""

from transformer.interop.family import Family, Fused, Rule, always, field, layers, only
from transformer.interop.rules import ACTIVATIONS, lm_head

GPT2 = Family(
    model_type='gpt2',
    classes={'lm': 'GPT2LMHeadModel', 'none': 'GPT2Model'},
    prefix='transformer.',
    rules=(
        field('vocab_size', 'vocab_size'),
        field('n_layer', 'num_layers'),
        field('n_embd', 'embed_dim'),
        field('n_head', 'num_heads'),
        field('n_positions', 'max_length'),
        Rule(
            lambda published: {
                'mlp_dim': published.get('n_inner') or 4 * published.get('n_embd', 768)
            },
            lambda config: {'n_inner': config.mlp_dim},
        ),
        field('activation_function', 'activation', 'gelu_new', ACTIVATIONS),
        field('layer_norm_epsilon', 'norm_eps', 1e-5),
        Rule(
            lambda published: {
                'attention_scale': None if published.get('scale_attn_weights', True) else 1.0
            },
            lambda config: {'scale_attn_weights': config.attention_scale is None},
        ),
        lm_head('lm_head', tied=True),
        only(scale_attn_by_inverse_layer_idx=False, add_cross_attention=False),
        always(
            position='learned',
            norm='layernorm',
            attention_bias='all',
            feed_forward='mlp',
            mlp_bias=True,
        ),
    ),
    tensors={
        'transformer.wte': 'embedding',
        'transformer.wpe': 'decoder/position/embedding',
        'transformer.ln_f': 'decoder/final_norm',
        'lm_head': 'head/output',
    }
    | layers(
        'transformer.h.*.',
        'decoder/layer_*/',
        {
            'ln_1': 'self_attention_norm',
            'attn.c_attn': Fused(
                'embed (part heads head_dim)',
                ('self_attention/query', 'self_attention/key', 'self_attention/value'),
            ),
            'attn.c_proj': Fused('(heads head_dim) embed', ('self_attention/out',)),
            'ln_2': 'feed_forward_norm',
            'mlp.c_fc': Fused('embed mlp', ('feed_forward/up',)),
            'mlp.c_proj': Fused('mlp embed', ('feed_forward/down',)),
        },
    ),
    aliases={'lm_head.weight': 'embedding/table'},
    ignored=r'transformer\.h\.\d+\.attn\.(masked_)?bias',
)
