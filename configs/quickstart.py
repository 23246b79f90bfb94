"""A small model of Python source code, learnt from this Python's own standard library.

Two minutes on two CPU cores:

    python train.py --config=configs/quickstart.py --workdir=runs/quickstart
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    config = base.get_config()

    config.model.num_layers = 3
    config.model.embed_dim = 128
    config.model.num_heads = 2
    config.model.mlp_dim = 336
    config.model.scan_layers = False

    config.data.vocab_size = 2048
    config.data.length = 128
    config.data.batch_size = 8

    config.optimizer.name = 'muon'
    config.optimizer.learning_rate = 1e-2
    config.schedule.name = 'linear'
    config.schedule.warmup_steps = 20
    config.schedule.end_factor = 0.0

    config.train.steps = 500
    config.train.eval_every = 250
    config.train.eval_batches = 20
    return config


def get_space() -> dict:
    """What `sweep.py` searches."""
    from transformer.training.sweep import log_uniform, uniform

    return {
        'optimizer.learning_rate': log_uniform(1e-3, 1e-1),
        'optimizer.weight_decay': uniform(0.0, 0.5),
    }
