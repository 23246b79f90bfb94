"""A study on the standard library: positions, norms, learning rate and weight decay, 3 seeds.

    python sweep.py --config=configs/stdlib_study.py --workdir=runs/study --parallel_trials=18

108 trials of a model of 2 layers in six groups, about 20 minutes on two CPU cores; docs/sweeps.md
shows what it found.
"""

from ml_collections import ConfigDict

from configs import quickstart


def get_config() -> ConfigDict:
    config = quickstart.get_config()
    config.model.num_layers = 2
    config.model.embed_dim = 64
    config.model.mlp_dim = 168
    config.model.max_length = 64

    config.data.vocab_size = 1024
    config.data.length = 64

    config.optimizer.name = 'adamw'

    config.train.steps = 400
    config.train.eval_every = 100
    return config


def get_space() -> list[dict]:
    """What `sweep.py` searches."""
    from transformer.training.sweep import grid  # imports Optuna, which train.py does not need

    return grid(
        {
            'model.position': ['rope', 'alibi', 'learned'],
            'model.norm_placement': ['pre', 'post'],
            'optimizer.learning_rate': [1e-3, 3e-3, 1e-2],
            'optimizer.weight_decay': [0.0, 0.3],
            'seed': range(3),
        }
    )
