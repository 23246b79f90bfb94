"""Masked language modelling on Python source code, from this Python's own standard library.

Three minutes on two CPU cores:

    python train.py --config=configs/mlm.py --workdir=runs/mlm
    python generate.py --workdir=runs/mlm --prompt='import os, [MASK]'
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    config = base.get_config()
    config.task = 'masked_lm'

    config.model.topology = 'encoder'
    config.model.head = 'masked_lm'
    config.model.num_layers = 3
    config.model.embed_dim = 128
    config.model.num_heads = 2
    config.model.mlp_dim = 336
    config.model.scan_layers = False

    config.data.vocab_size = 2048
    config.data.length = 128

    config.corruption.rate = 0.2

    config.optimizer.name = 'muon'
    config.optimizer.learning_rate = 1e-2
    config.schedule.name = 'linear'
    config.schedule.warmup_steps = 20
    config.schedule.end_factor = 0.0

    config.train.steps = 400
    config.train.eval_batches = 20
    return config
