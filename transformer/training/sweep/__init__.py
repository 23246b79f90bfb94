"""Hyperparameter sweeps: many trials side by side, in one compiled program.

`train_trials` trains a list of trials; `VectorTrainer` is what it drives. Search and storage, with
Optuna, are in `study`, the command line in `worker`.
"""

from transformer.training.sweep.groups import field_classes
from transformer.training.sweep.runner import Listener, Trial, run_group, train_trials
from transformer.training.sweep.space import (
    choice,
    grid,
    integers,
    log_uniform,
    product,
    uniform,
    zipped,
)
from transformer.training.sweep.trainer import VectorTrainer, fastest_trainer

__all__ = [
    'Listener',
    'Trial',
    'VectorTrainer',
    'choice',
    'fastest_trainer',
    'field_classes',
    'grid',
    'integers',
    'log_uniform',
    'product',
    'run_group',
    'train_trials',
    'uniform',
    'zipped',
]
