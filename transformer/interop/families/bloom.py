"""BLOOM (BigScience Workshop 2022)."""

from transformer.interop.family import (
    REQUIRED,
    Family,
    Fused,
    always,
    derived,
    field,
    layers,
    only,
)
from transformer.interop.rules import lm_head

BLOOM = Family(
    model_type='bloom',
    classes={'lm': 'BloomForCausalLM', 'none': 'BloomModel'},
    prefix='transformer.',
    rules=(
        field('vocab_size', 'vocab_size'),
        field('n_layer', 'num_layers'),
        field('hidden_size', 'embed_dim'),
        field('n_head', 'num_heads'),
        derived('mlp_dim', lambda published: 4 * published.get('hidden_size', REQUIRED)),
        field('layer_norm_epsilon', 'norm_eps', 1e-5),
        field('seq_length', 'max_length', 2048),
        lm_head('lm_head', tied=True),
        only(apply_residual_connection_post_layernorm=False),
        always(
            position='alibi',
            embedding_norm=True,
            norm='layernorm',
            attention_bias='all',
            feed_forward='mlp',
            activation='gelu_tanh',
            mlp_bias=True,
        ),
    ),
    tensors={
        'transformer.word_embeddings': 'embedding',
        'transformer.word_embeddings_layernorm': 'decoder/embedding_norm',
        'transformer.ln_f': 'decoder/final_norm',
        'lm_head': 'head/output',
    }
    | layers(
        'transformer.h.*.',
        'decoder/layer_*/',
        {
            'input_layernorm': 'self_attention_norm',
            'self_attention.query_key_value': Fused(
                '(heads part head_dim) embed',
                ('self_attention/query', 'self_attention/key', 'self_attention/value'),
            ),
            'self_attention.dense': 'self_attention/out',
            'post_attention_layernorm': 'feed_forward_norm',
            'mlp.dense_h_to_4h': 'feed_forward/up',
            'mlp.dense_4h_to_h': 'feed_forward/down',
        },
    ),
    aliases={'lm_head.weight': 'embedding/table'},
    older={
        'n_embed': 'hidden_size',
        'num_hidden_layers': 'n_layer',
        'num_attention_heads': 'n_head',
    },
)
