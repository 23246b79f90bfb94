"""GPT-NeoX (Black et al. 2022) and Pythia."""

from transformer.interop.family import Family, Fused, always, field, layers
from transformer.interop.rules import ACTIVATIONS, attention_bias, lm_head, rope

GPT_NEOX = Family(
    model_type='gpt_neox',
    classes={'lm': 'GPTNeoXForCausalLM', 'none': 'GPTNeoXModel'},
    prefix='gpt_neox.',
    rules=(
        field('vocab_size', 'vocab_size'),
        field('num_hidden_layers', 'num_layers'),
        field('hidden_size', 'embed_dim'),
        field('num_attention_heads', 'num_heads'),
        field('intermediate_size', 'mlp_dim'),
        field('hidden_act', 'activation', 'gelu', ACTIVATIONS),
        field('layer_norm_eps', 'norm_eps', 1e-5),
        field(
            'use_parallel_residual', 'norm_placement', True, {True: 'parallel_two', False: 'pre'}
        ),
        attention_bias(default=True),
        rope(fraction=0.25),
        lm_head('embed_out', tied=False),
        always(norm='layernorm', feed_forward='mlp', mlp_bias=True),
    ),
    tensors={
        'gpt_neox.embed_in': 'embedding',
        'gpt_neox.final_layer_norm': 'decoder/final_norm',
        'embed_out': 'head/output',
    }
    | layers(
        'gpt_neox.layers.*.',
        'decoder/layer_*/',
        {
            'input_layernorm': 'self_attention_norm',
            'attention.query_key_value': Fused(
                '(heads part head_dim) embed',
                ('self_attention/query', 'self_attention/key', 'self_attention/value'),
            ),
            'attention.dense': 'self_attention/out',
            'post_attention_layernorm': 'feed_forward_norm',
            'mlp.dense_h_to_4h': 'feed_forward/up',
            'mlp.dense_4h_to_h': 'feed_forward/down',
        },
    ),
    aliases={'embed_out.weight': 'embedding/table'},
    ignored=r'gpt_neox\.(layers\.\d+\.attention\.((masked_)?bias|rotary_emb\.inv_freq)|rotary_emb\..*)',
)
