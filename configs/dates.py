"""Dates in many languages, to ISO 8601: an encoder-decoder in about two minutes on two cores.

    python train.py --config=configs/dates.py --workdir=runs/dates
    python generate.py --workdir=runs/dates --prompt='martedì 3 marzo 1987'

Nothing is downloaded: the pairs are written by the locales of Babel.
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    config = base.get_config()
    config.task = 'seq2seq'

    config.model.topology = 'encoder_decoder'
    config.model.num_layers = 2
    config.model.embed_dim = 128
    config.model.num_heads = 4
    config.model.mlp_dim = 336
    config.model.max_length = 128
    config.model.scan_layers = False

    config.data.path = ('dates',)
    config.data.validation_fraction = 0.02
    config.data.vocab_size = 2048
    config.data.length = 64
    config.data.source_length = 96

    config.optimizer.name = 'muon'
    config.optimizer.learning_rate = 1e-2
    config.schedule.name = 'linear'
    config.schedule.warmup_steps = 20
    config.schedule.end_factor = 0.0

    config.train.steps = 260
    config.train.eval_every = 0
    return config
