"""GPT-2, 1.5B parameters (Radford et al. 2019).

    python train.py --config=configs/gpt2_xl.py --workdir=runs/gpt2_xl --config.data.path=corpus.txt

The learning rate is GPT-3's for 1.3B parameters (Brown et al. 2020, table 2.1).
"""

from ml_collections import ConfigDict

from configs import gpt2_small


def get_config() -> ConfigDict:
    config = gpt2_small.get_config()

    config.model.num_layers = 48
    config.model.embed_dim = 1600
    config.model.num_heads = 25
    config.model.mlp_dim = 6400
    config.model.remat = 'full'

    config.optimizer.learning_rate = 2e-4
    return config
