"""BART (Lewis et al. 2020) and Marian (Junczys-Dowmunt et al. 2018)."""

from transformer.interop.family import (
    Family,
    Fused,
    Rule,
    always,
    both,
    field,
    layers,
    only,
)
from transformer.interop.rules import ACTIVATIONS, scaled_embedding


def _read_head(published):
    return {
        'head': 'lm' if published.has('final_logits_bias') else 'none',
        'head_bias': published.has('final_logits_bias'),
        'tie_embeddings': bool(published.get('tie_word_embeddings', True)),
    }


RULES = (
    field('encoder_layers', 'num_encoder_layers', written='encoder_layers'),
    field('decoder_layers', 'num_layers'),
    field('d_model', 'embed_dim'),
    both('encoder_attention_heads', 'decoder_attention_heads', 'num_heads'),
    both('encoder_ffn_dim', 'decoder_ffn_dim', 'mlp_dim'),
    field('max_position_embeddings', 'max_length'),
    field('activation_function', 'activation', 'gelu', ACTIVATIONS),
    scaled_embedding('scale_embedding'),
    Rule(_read_head, lambda config: {'tie_word_embeddings': config.tie_embeddings}),
    # What mBART and early files say of other placements of the norms.
    only(normalize_before=False, add_final_layer_norm=False),
    always(
        topology='encoder_decoder',
        norm='layernorm',
        norm_placement='post',
        norm_eps=1e-5,
        attention_bias='all',
        feed_forward='mlp',
        mlp_bias=True,
    ),
)


def _attention(theirs, ours):
    names = {'q_proj': 'query', 'k_proj': 'key', 'v_proj': 'value', 'out_proj': 'out'}
    return layers(f'{theirs}.', f'{ours}/', names) | {f'{theirs}_layer_norm': f'{ours}_norm'}


def _stack(name):
    modules = _attention('self_attn', 'self_attention')
    if name == 'decoder':
        modules |= _attention('encoder_attn', 'cross_attention')
    modules |= {
        'fc1': 'feed_forward/up',
        'fc2': 'feed_forward/down',
        'final_layer_norm': 'feed_forward_norm',
    }
    return layers(f'model.{name}.layers.*.', f'{name}/layer_*/', modules) | {
        f'model.{name}.embed_positions': f'{name}/position/embedding',
        f'model.{name}.layernorm_embedding': f'{name}/embedding_norm',
    }


TENSORS = {
    'model.shared': 'embedding',
    'lm_head': 'head/output',
    'final_logits_bias': Fused('part vocab', ('head/bias',)),
    **_stack('encoder'),
    **_stack('decoder'),
}
ALIASES = {
    'lm_head.weight': 'embedding/table',
    'model.encoder.embed_tokens.weight': 'embedding/table',
    'model.decoder.embed_tokens.weight': 'embedding/table',
}

BART = Family(
    model_type='bart',
    classes={'lm': 'BartForConditionalGeneration', 'none': 'BartModel'},
    prefix='model.',
    rules=(
        *RULES,
        field('vocab_size', 'vocab_size'),
        only(static_position_embeddings=False, normalize_embedding=True),
        always(position='learned', position_offset=2, embedding_norm=True),
    ),
    tensors=TENSORS,
    aliases=ALIASES,
)


def _read_vocabularies(published):
    source = published.get('vocab_size')
    if published.get('share_encoder_decoder_embeddings', True):
        return {'vocab_size': source, 'share_embeddings': True}
    return {
        'vocab_size': published.get('decoder_vocab_size', None) or source,
        'encoder_vocab_size': source,
        'share_embeddings': False,
    }


def _write_vocabularies(config):
    return {
        'vocab_size': config.encoder_vocab_size or config.vocab_size,
        'decoder_vocab_size': config.vocab_size,
        'share_encoder_decoder_embeddings': config.share_embeddings,
        # The last token, which a table's row must exist for.
        'pad_token_id': min(config.encoder_vocab_size or config.vocab_size, config.vocab_size) - 1,
        'decoder_start_token_id': config.vocab_size - 1,
    }


MARIAN = Family(
    model_type='marian',
    classes={'lm': 'MarianMTModel', 'none': 'MarianModel'},
    prefix='model.',
    rules=(
        *RULES,
        Rule(_read_vocabularies, _write_vocabularies),
        only(static_position_embeddings=True, normalize_embedding=False),
        always(position='sinusoidal', sinusoidal_layout='half'),
    ),
    tensors=TENSORS,
    variants=(
        (
            {'share_embeddings': False},
            {
                'model.encoder.embed_tokens': 'encoder_embedding',
                'model.decoder.embed_tokens': 'embedding',
            },
        ),
    ),
    aliases=ALIASES,
    # The sinusoids, written out.
    ignored=r'model\.(encoder|decoder)\.embed_positions\.weight',
)
