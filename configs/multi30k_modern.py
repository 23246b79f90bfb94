"""Multi30k, English to German, at the size of Transformer-Tiny with choices that learn faster.

    python train.py --config=configs/multi30k_modern.py:FOLDER --workdir=runs/multi30k_modern
    python eval.py --workdir=runs/multi30k_modern --split=test

Against `multi30k`: rotary positions, RMS norms before the sublayers and over queries and keys, a
gated feed-forward, Muon with a linear decay to 0, and four times as many updates of a quarter of
the tokens.
"""

from ml_collections import ConfigDict

from configs import multi30k


def get_config(folder: str = 'data') -> ConfigDict:
    config = multi30k.get_config(folder)

    config.model.position = 'rope'
    config.model.norm = 'rmsnorm'
    config.model.norm_placement = 'pre'
    config.model.qk_norm = True
    config.model.attention_bias = 'none'
    config.model.feed_forward = 'glu'
    config.model.activation = 'silu'
    config.model.mlp_bias = False
    config.model.embed_scale = 1.0
    config.model.init = 'gpt2'

    config.data.batch_size = 16

    config.dropout.residual = 0.2
    config.dropout.embedding = 0.2

    config.optimizer.name = 'muon'
    config.optimizer.learning_rate = 1e-2
    config.optimizer.weight_decay = 0.1
    config.optimizer.b2 = 0.95
    config.optimizer.clip_norm = 1.0
    config.schedule.name = 'linear'
    config.schedule.warmup_steps = 100
    config.schedule.end_factor = 0.0

    config.train.steps = 4000
    return config
