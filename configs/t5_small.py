"""T5 small (Raffel et al. 2020, sections 2.1, 3.1 and 3.7).

    python -m transformer.summary --config=configs/t5_small.py

Its sizes are the defaults of a model: 6 layers, 8 heads, 512 and 2048 wide. The table has 32,128
rows for 32,100 tokens. Adafactor's learning rate is relative to the size of each parameter; the
paper holds the peak for the first 10,000 steps, here it rises to it.
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    config = base.get_config()
    config.task = 'span_corruption'

    config.model.topology = 'encoder_decoder'
    config.model.vocab_size = 32_128
    config.model.max_length = 512
    config.model.position = 'relative'
    config.model.attention_scale = 1.0  # made up for in the initial queries
    config.model.feed_forward = 'mlp'
    config.model.activation = 'relu'
    config.model.logits_scale = 512**-0.5
    config.model.init = 'fan_in'
    config.model.init_std = 512**-0.5  # of the relative positions
    config.model.embedding_std = 1.0

    config.data.path = ('hf:allenai/c4:en',)
    config.data.vocab_size = 32_100
    config.data.length = 568  # which become 512 in the encoder and 114 in the decoder
    config.data.batch_size = 128

    config.dropout.attention = 0.1
    config.dropout.residual = 0.1
    config.dropout.embedding = 0.1

    config.optimizer.name = 'adafactor'
    config.optimizer.learning_rate = 0.01
    config.optimizer.weight_decay = 0.0
    config.optimizer.clip_norm = 0.0

    config.schedule.name = 'rsqrt'
    config.schedule.warmup_steps = 10_000

    config.train.steps = 524_288
    config.train.eval_every = 5000
    config.train.checkpoint_every = 5000
    return config
