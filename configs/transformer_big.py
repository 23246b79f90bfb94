"""The Transformer, big model for English to German (Vaswani et al. 2017, table 3).

python -m transformer.summary --config=configs/transformer_big.py
"""

from ml_collections import ConfigDict

from configs import transformer_base


def get_config() -> ConfigDict:
    config = transformer_base.get_config()

    config.model.embed_dim = 1024
    config.model.num_heads = 16
    config.model.mlp_dim = 4096
    config.model.embed_scale = 1024**0.5

    config.dropout.residual = 0.3
    config.dropout.embedding = 0.3

    config.optimizer.learning_rate = (1024 * 4000) ** -0.5

    config.train.steps = 300_000
    return config
