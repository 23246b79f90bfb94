"""BERT (Devlin et al. 2019), RoBERTa (Liu et al. 2019) and DistilBERT (Sanh et al. 2019)."""

from transformer.interop.family import Family, Rule, always, field, layers, only
from transformer.interop.rules import ACTIVATIONS, encoder_heads

ENCODER = always(
    topology='encoder',
    position='learned',
    embedding_norm=True,
    norm='layernorm',
    norm_placement='post',
    attention_bias='all',
    feed_forward='mlp',
    mlp_bias=True,
)
SIZES = (
    field('vocab_size', 'vocab_size'),
    field('num_hidden_layers', 'num_layers'),
    field('hidden_size', 'embed_dim'),
    field('num_attention_heads', 'num_heads'),
    field('intermediate_size', 'mlp_dim'),
    field('type_vocab_size', 'num_token_types', 2),
    field('layer_norm_eps', 'norm_eps', 1e-12),
    only(position_embedding_type='absolute', is_decoder=False, add_cross_attention=False),
    ENCODER,
)


def _tensors(prefix):
    return {
        f'{prefix}embeddings.word_embeddings': 'embedding',
        f'{prefix}embeddings.token_type_embeddings': 'token_types',
        f'{prefix}embeddings.position_embeddings': 'encoder/position/embedding',
        f'{prefix}embeddings.LayerNorm': 'encoder/embedding_norm',
        f'{prefix}pooler.dense': 'pooler',
    } | layers(
        f'{prefix}encoder.layer.*.',
        'encoder/layer_*/',
        {
            'attention.self.query': 'self_attention/query',
            'attention.self.key': 'self_attention/key',
            'attention.self.value': 'self_attention/value',
            'attention.output.dense': 'self_attention/out',
            'attention.output.LayerNorm': 'self_attention_norm',
            'intermediate.dense': 'feed_forward/up',
            'output.dense': 'feed_forward/down',
            'output.LayerNorm': 'feed_forward_norm',
        },
    )


BERT = Family(
    model_type='bert',
    classes={
        'masked_lm': 'BertForMaskedLM',
        'classifier': 'BertForSequenceClassification',
        'none': 'BertModel',
    },
    prefix='bert.',
    rules=(
        *SIZES,
        field('max_position_embeddings', 'max_length'),
        field('hidden_act', 'activation', 'gelu', ACTIVATIONS),
        encoder_heads(
            'cls.predictions.transform.dense',
            'bert.pooler.dense',
            ('bert.pooler.dense', 'classifier'),
        ),
    ),
    tensors=_tensors('bert.')
    | {
        'cls.predictions.transform.dense': 'head/transform',
        'cls.predictions.transform.LayerNorm': 'head/norm',
        'cls.predictions.decoder': 'head/output',
        'cls.predictions.bias': 'head/bias',
        'classifier': 'classifier',
    },
    aliases={
        'cls.predictions.decoder.weight': 'embedding/table',
        'cls.predictions.decoder.bias': 'head/bias',
    },
    # The head of next-sentence prediction is not part of our model.
    ignored=r'bert\.embeddings\.position_ids|cls\.seq_relationship\.(weight|bias)',
)

ROBERTA = Family(
    model_type='roberta',
    classes={
        'masked_lm': 'RobertaForMaskedLM',
        'classifier': 'RobertaForSequenceClassification',
        'none': 'RobertaModel',
    },
    prefix='roberta.',
    rules=(
        *SIZES,
        Rule(  # position 0 comes after the row of padding
            lambda published: {
                'position_offset': published.get('pad_token_id', 1) + 1,
                'max_length': published.get('max_position_embeddings', 514)
                - published.get('pad_token_id', 1)
                - 1,
            },
            lambda config: {
                'pad_token_id': config.position_offset - 1,
                'max_position_embeddings': config.max_length + config.position_offset,
            },
        ),
        only(hidden_act='gelu'),  # which the head has whatever the layers have
        encoder_heads(
            'lm_head.dense', 'roberta.pooler.dense', ('classifier.dense', 'classifier.out_proj')
        ),
        always(activation='gelu'),
    ),
    tensors=_tensors('roberta.')
    | {
        'lm_head.dense': 'head/transform',
        'lm_head.layer_norm': 'head/norm',
        'lm_head.decoder': 'head/output',
        'lm_head.bias': 'head/bias',
    },
    variants=(
        (
            {'head': 'classifier'},
            {'classifier.dense': 'pooler', 'classifier.out_proj': 'classifier'},
        ),
    ),
    aliases={
        'lm_head.decoder.weight': 'embedding/table',
        'lm_head.decoder.bias': 'head/bias',
    },
    ignored=r'roberta\.embeddings\.position_ids',
)

DISTILBERT = Family(
    model_type='distilbert',
    classes={
        'masked_lm': 'DistilBertForMaskedLM',
        'classifier': 'DistilBertForSequenceClassification',
        'none': 'DistilBertModel',
    },
    prefix='distilbert.',
    rules=(
        field('vocab_size', 'vocab_size'),
        field('n_layers', 'num_layers'),
        field('dim', 'embed_dim'),
        field('n_heads', 'num_heads'),
        field('hidden_dim', 'mlp_dim'),
        field('max_position_embeddings', 'max_length'),
        field('activation', 'activation', 'gelu', ACTIVATIONS),
        encoder_heads('vocab_transform', classifier=('pre_classifier', 'classifier')),
        ENCODER,
        always(norm_eps=1e-12, pooler_activation='relu'),
    ),
    tensors={
        'distilbert.embeddings.word_embeddings': 'embedding',
        'distilbert.embeddings.position_embeddings': 'encoder/position/embedding',
        'distilbert.embeddings.LayerNorm': 'encoder/embedding_norm',
        'vocab_transform': 'head/transform',
        'vocab_layer_norm': 'head/norm',
        'vocab_projector': 'head/output',
        'vocab_projector.bias': 'head/bias',
        'pre_classifier': 'pooler',
        'classifier': 'classifier',
    }
    | layers(
        'distilbert.transformer.layer.*.',
        'encoder/layer_*/',
        {
            'attention.q_lin': 'self_attention/query',
            'attention.k_lin': 'self_attention/key',
            'attention.v_lin': 'self_attention/value',
            'attention.out_lin': 'self_attention/out',
            'sa_layer_norm': 'self_attention_norm',
            'ffn.lin1': 'feed_forward/up',
            'ffn.lin2': 'feed_forward/down',
            'output_layer_norm': 'feed_forward_norm',
        },
    ),
    aliases={'vocab_projector.weight': 'embedding/table'},
    ignored=r'distilbert\.embeddings\.position_ids',
)
