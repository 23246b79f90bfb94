"""Which package of the standard library a docstring is from: an encoder of `mlm`, fine-tuned.

    python train.py --config=configs/mlm.py --workdir=runs/mlm
    python train.py --config=configs/docstrings.py --workdir=runs/docstrings \
        --config.init_from=runs/mlm
    python generate.py --workdir=runs/docstrings \
        --prompt='Add a label to the window of the parent widget.'

Without `init_from` it starts from nothing, with a vocabulary of its own; docs/results.md compares.
"""

from ml_collections import ConfigDict

from configs import mlm


def get_config() -> ConfigDict:
    config = mlm.get_config()
    config.task = 'classification'

    config.model.head = 'classifier'
    config.model.pooling = 'mean'

    config.data.path = ('docstrings',)

    config.dropout.residual = 0.1
    config.dropout.embedding = 0.1

    config.train.steps = 300
    config.train.eval_every = 100
    config.train.eval_batches = 0
    return config
