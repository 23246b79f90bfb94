"""OPT (Zhang et al. 2022)."""

from transformer.interop.family import REQUIRED, Family, Rule, always, field, layers, only
from transformer.interop.rules import ACTIVATIONS, lm_head


def _read_width(published):
    width = published.get('hidden_size', REQUIRED)
    given = published.get('word_embed_proj_dim', None) or width
    return {'embedding_width': None if given == width else given}


OPT = Family(
    model_type='opt',
    classes={'lm': 'OPTForCausalLM', 'none': 'OPTModel'},
    prefix='model.',
    rules=(
        field('vocab_size', 'vocab_size'),
        field('num_hidden_layers', 'num_layers'),
        field('hidden_size', 'embed_dim'),
        field('num_attention_heads', 'num_heads'),
        field('ffn_dim', 'mlp_dim'),
        field('max_position_embeddings', 'max_length'),
        field('activation_function', 'activation', 'relu', ACTIVATIONS),
        field('do_layer_norm_before', 'norm_placement', True, {True: 'pre', False: 'post'}),
        Rule(_read_width, lambda config: {'word_embed_proj_dim': config.table_width}),
        lm_head('lm_head', tied=True),
        only(_remove_final_layer_norm=False, enable_bias=True, layer_norm_elementwise_affine=True),
        always(
            position='learned',
            position_offset=2,
            norm='layernorm',
            norm_eps=1e-5,
            attention_bias='all',
            feed_forward='mlp',
            mlp_bias=True,
        ),
    ),
    tensors={
        'model.decoder.embed_tokens': 'embedding',
        'model.decoder.project_in': 'embedding_projection',
        'model.decoder.project_out': 'head/projection',
        'model.decoder.embed_positions': 'decoder/position/embedding',
        'model.decoder.final_layer_norm': 'decoder/final_norm',
        'lm_head': 'head/output',
    }
    | layers(
        'model.decoder.layers.*.',
        'decoder/layer_*/',
        {
            'self_attn_layer_norm': 'self_attention_norm',
            'self_attn.q_proj': 'self_attention/query',
            'self_attn.k_proj': 'self_attention/key',
            'self_attn.v_proj': 'self_attention/value',
            'self_attn.out_proj': 'self_attention/out',
            'final_layer_norm': 'feed_forward_norm',
            'fc1': 'feed_forward/up',
            'fc2': 'feed_forward/down',
        },
    ),
    aliases={'lm_head.weight': 'embedding/table'},
)
