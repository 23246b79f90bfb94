r"""The characters of Shakespeare again, with the choices of current models at the same size.

    python train.py --config=configs/shakespeare_modern.py --workdir=runs/modern \
        --config.data.path=tinyshakespeare.txt

Rotary positions, RMS norms also over queries and keys, a gated feed-forward of the same number of
parameters, and Muon with a linear decay to zero. docs/results.md compares it with
shakespeare_char.
"""

from ml_collections import ConfigDict

from configs import shakespeare_char


def get_config() -> ConfigDict:
    config = shakespeare_char.get_config()

    config.model.position = 'rope'
    config.model.norm = 'rmsnorm'
    config.model.qk_norm = True
    config.model.feed_forward = 'glu'
    config.model.activation = 'silu'
    config.model.mlp_dim = 336

    config.optimizer.name = 'muon'
    config.optimizer.learning_rate = 1e-2
    config.optimizer.b1 = 0.95
    config.schedule.name = 'linear'
    config.schedule.end_factor = 0.0
    return config
