"""BLOOM, 560M parameters (BigScience Workshop 2022, section 3.2 and table 3).

    python train.py --config=configs/bloom_560m.py --workdir=runs/560m --config.data.path=corpus.txt

The table has 250,880 rows for the 250,680 tokens of its tokenizer.
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    config = base.get_config()

    config.model.vocab_size = 250_880
    config.model.num_layers = 24
    config.model.embed_dim = 1024
    config.model.num_heads = 16
    config.model.mlp_dim = 4096
    config.model.max_length = 2048
    config.model.position = 'alibi'
    config.model.norm = 'layernorm'
    config.model.norm_eps = 1e-5
    config.model.embedding_norm = True
    config.model.attention_bias = 'all'
    config.model.feed_forward = 'mlp'
    config.model.activation = 'gelu_tanh'
    config.model.mlp_bias = True
    config.model.dtype = 'bfloat16'
    config.model.remat = 'full'

    config.data.path = ()
    config.data.vocab_size = 250_680
    config.data.length = 2048
    config.data.batch_size = 256

    config.optimizer.learning_rate = 3e-4

    config.schedule.warmup_steps = 715  # 375M tokens
    config.schedule.decay_steps = 782_000  # 410B tokens
    config.schedule.end_factor = 1 / 30  # down to 1e-5

    config.loss.chunk = 2048

    config.train.steps = 650_000  # 341B tokens
    config.train.accumulation = 8
    config.train.eval_every = 2000
    config.train.checkpoint_every = 2000
    return config
