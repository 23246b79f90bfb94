"""BERT base, uncased, as it is fine-tuned (Devlin et al. 2019, appendix A.2).

    python -m transformer.summary --config=configs/bert_base.py

Pre-training predicts masked tokens instead of pooling the first one:
`--config.model.head=masked_lm --config.model.pooler=false`.
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    config = base.get_config()
    config.task = 'masked_lm'

    config.model.topology = 'encoder'
    config.model.vocab_size = 30_522
    config.model.num_layers = 12
    config.model.embed_dim = 768
    config.model.num_heads = 12
    config.model.mlp_dim = 3072
    config.model.max_length = 512
    config.model.position = 'learned'
    config.model.norm = 'layernorm'
    config.model.norm_placement = 'post'
    config.model.norm_eps = 1e-12
    config.model.embedding_norm = True
    config.model.attention_bias = 'all'
    config.model.feed_forward = 'mlp'
    config.model.activation = 'gelu'
    config.model.mlp_bias = True
    config.model.num_token_types = 2
    config.model.head = 'none'
    config.model.head_bias = True  # of a masked_lm head
    config.model.pooler = True
    config.model.init = 'normal'

    config.data.path = ()
    config.data.vocab_size = 30_522
    config.data.length = 512
    config.data.batch_size = 256

    config.dropout.attention = 0.1
    config.dropout.residual = 0.1
    config.dropout.embedding = 0.1

    config.optimizer.learning_rate = 1e-4
    config.optimizer.weight_decay = 0.01
    config.optimizer.b2 = 0.999
    config.optimizer.eps = 1e-6

    config.schedule.name = 'linear'
    config.schedule.warmup_steps = 10_000
    config.schedule.end_factor = 0.0

    config.train.steps = 1_000_000
    config.train.eval_every = 5000
    config.train.checkpoint_every = 5000
    return config
