"""The Transformer, base model (Vaswani et al. 2017, sections 3 and 5, table 3).

python -m transformer.summary --config=configs/transformer_base.py

Its sizes are the defaults of a model: 6 layers, 8 heads, 512 and 2048 wide.
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    config = base.get_config()
    config.task = 'seq2seq'

    config.model.topology = 'encoder_decoder'
    config.model.vocab_size = 37_000  # shared by both languages
    config.model.position = 'sinusoidal'
    config.model.norm = 'layernorm'
    config.model.norm_placement = 'post'
    config.model.feed_forward = 'mlp'
    config.model.activation = 'relu'
    config.model.mlp_bias = True
    config.model.embed_scale = 512**0.5
    config.model.init = 'xavier'

    config.data.path = ()
    config.data.vocab_size = 37_000
    config.data.batch_size = 96  # about 25,000 tokens a side

    config.dropout.residual = 0.1
    config.dropout.embedding = 0.1

    config.loss.label_smoothing = 0.1

    config.optimizer.learning_rate = (512 * 4000) ** -0.5
    config.optimizer.weight_decay = 0.0
    config.optimizer.b2 = 0.98
    config.optimizer.eps = 1e-9
    config.optimizer.clip_norm = 0.0

    config.schedule.name = 'rsqrt'
    config.schedule.warmup_steps = 4000

    config.train.steps = 100_000
    config.train.eval_every = 1000
    config.train.checkpoint_every = 1000
    return config
