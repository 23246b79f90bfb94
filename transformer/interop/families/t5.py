"""T5 1.0 and 1.1 (Raffel et al. 2020; Shazeer 2020)."""

from transformer.errors import UserError
from transformer.interop.family import REQUIRED, Family, Rule, always, field, known, layers, needed
from transformer.interop.rules import ACTIVATIONS


def _read_feed_forward(published):
    gate, _, name = published.get('feed_forward_proj', 'relu').rpartition('-')
    activation = known(ACTIVATIONS, name, 'feed_forward_proj')
    if gate not in ('', 'gated'):
        raise UserError(f'config.json has feed_forward_proj {gate}-{name}, which we do not have.')
    if gate and name == 'gelu':  # meant is its approximation
        activation = 'gelu_tanh'
    return {'feed_forward': 'glu' if gate else 'mlp', 'activation': activation}


def _write_feed_forward(config):
    name = next(name for name, ours in ACTIVATIONS.items() if ours == config.activation)
    if config.feed_forward == 'mlp':
        return {'feed_forward_proj': name}
    return {'feed_forward_proj': 'gated-gelu' if name == 'gelu_new' else f'gated-{name}'}


def _read_head(published):
    """Version 1.0 ties its tables and scales the logits, 1.1 does neither."""
    scaled = published.get('scale_decoder_outputs', None)
    if scaled is None:
        scaled = published.get('tie_word_embeddings', True)
    width = published.get('d_model', REQUIRED)
    return {
        'tie_embeddings': not published.has('lm_head'),
        'logits_scale': width**-0.5 if scaled else 1.0,
    }


def _attention(ours):
    return {'q': f'{ours}/query', 'k': f'{ours}/key', 'v': f'{ours}/value', 'o': f'{ours}/out'}


def _stack(name, feed_forward_names):
    """A stack's tensors; those of its feed-forward have the names given."""
    cross = name == 'decoder'
    last = 2 if cross else 1
    modules = layers('0.SelfAttention.', '', _attention('self_attention'))
    modules |= {'0.layer_norm': 'self_attention_norm', f'{last}.layer_norm': 'feed_forward_norm'}
    if cross:
        modules |= layers('1.EncDecAttention.', '', _attention('cross_attention'))
        modules |= {'1.layer_norm': 'cross_attention_norm'}
    modules |= layers(f'{last}.DenseReluDense.', 'feed_forward/', feed_forward_names)
    return layers(f'{name}.block.*.layer.', f'{name}/layer_*/', modules) | {
        f'{name}.block.0.layer.0.SelfAttention.relative_attention_bias': f'{name}/position/buckets',
        f'{name}.final_layer_norm': f'{name}/final_norm',
    }


def _stacks(feed_forward_names):
    return _stack('encoder', feed_forward_names) | _stack('decoder', feed_forward_names)


T5 = Family(
    model_type='t5',
    classes={'lm': 'T5ForConditionalGeneration'},
    rules=(
        field('vocab_size', 'vocab_size'),
        Rule(
            lambda published: {
                'num_encoder_layers': published.get('num_layers', REQUIRED),
                'num_layers': published.get('num_decoder_layers', None)
                or published.get('num_layers', REQUIRED),
            },
            lambda config: {
                'num_layers': config.encoder_layers,
                'num_decoder_layers': config.num_layers,
            },
        ),
        field('d_model', 'embed_dim'),
        field('num_heads', 'num_heads'),
        field('d_kv', 'head_dim', 64, written='dim_per_head'),
        field('d_ff', 'mlp_dim'),
        field('n_positions', 'max_length', 512),
        field('relative_attention_num_buckets', 'relative.num_buckets', 32),
        field('relative_attention_max_distance', 'relative.max_distance', 128),
        field('layer_norm_epsilon', 'norm_eps', 1e-6),
        Rule(_read_feed_forward, _write_feed_forward),
        Rule(_read_head, lambda config: {'tie_word_embeddings': config.logits_scale != 1}),
        needed(decoder_start_token_id=0),
        always(
            topology='encoder_decoder',
            position='relative',
            attention_scale=1.0,
            init='fan_in',
            embedding_std=1.0,
        ),
    ),
    tensors={'shared': 'embedding', 'lm_head': 'head/output'}
    | _stacks({'wi_0': 'gate', 'wi_1': 'up', 'wo': 'down'}),
    variants=(({'feed_forward': 'mlp'}, _stacks({'wi': 'up', 'wo': 'down'})),),
    aliases={
        'encoder.embed_tokens.weight': 'embedding/table',
        'decoder.embed_tokens.weight': 'embedding/table',
    },
    # A table that early files have and the model never used.
    ignored=r'decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight',
)
