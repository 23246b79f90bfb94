"""A config turned into the things a run needs: checked first, devices last."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from transformer.config import TransformerConfig, transformer_config
from transformer.data import Data, check_data, load_data
from transformer.errors import UserError, check_choice
from transformer.modules import Transformer
from transformer.training.checkpoint import Checkpoints
from transformer.training.optimizers import OPTIMIZERS, make_optimizer
from transformer.training.parallel import DataParallel
from transformer.training.schedules import SCHEDULES
from transformer.training.state import TrainState
from transformer.training.step import Recipe, eval_step, hyperparameters, train_step

MODES = ('pmap',)


@dataclasses.dataclass(frozen=True)
class Experiment:
    """What `train.py` and `eval.py` run. Made by `load_experiment`.

    Attributes:
        hparams: numbers of the step, see `hyperparameters`.
    """

    config: ConfigDict
    data: Data
    recipe: Recipe
    hparams: dict[str, float]
    parallel: DataParallel

    @property
    def model_config(self) -> TransformerConfig:
        return self.recipe.model.config

    def train_step(self) -> Any:
        """The compiled update (state, batch) -> (state, sums); it consumes the state."""
        step = functools.partial(train_step, hparams=self.hparams, recipe=self.recipe)
        return self.parallel.train(step)

    def eval_step(self) -> Any:
        """The compiled evaluation (params, batch) -> sums."""
        return self.parallel.evaluate(functools.partial(eval_step, recipe=self.recipe))

    def initial_params(self) -> Any:
        """Fresh parameters from `config.seed`, by the model's initializers."""
        return init_params(self.recipe.model, self.config.seed)

    def initial_state(self) -> TrainState:
        """A fresh state on every device."""

        def create():
            params = self.initial_params()
            hparams = self.hparams
            rate = hparams['learning_rate']
            optimizer = make_optimizer(self.recipe.optimizer, hparams, rate, self.recipe.no_decay)
            return TrainState.create(params, optimizer)

        return self.parallel.replicate(jax.jit(create)())

    def trained_params(self, checkpoints: Checkpoints) -> Any:
        """The parameters of the newest checkpoint, on every device."""
        like = jax.eval_shape(self.initial_params)
        return self.parallel.replicate(checkpoints.restore_params(like))


def load_experiment(config: ConfigDict, tokenizer: Any = None) -> Experiment:
    """Checks the config, loads the data, then looks for devices.

    Args:
        tokenizer: of an earlier run; by default one is made as the config says.

    Raises:
        UserError: something in the config, the data or the devices does not fit.
    """
    check_config(config)
    data = load_data(config, tokenizer)
    recipe = Recipe(
        model=Transformer(model_config(config, data.tokenizer.vocab_size)),
        optimizer=config.optimizer.name,
        schedule=config.schedule.name,
        no_decay=config.optimizer.no_decay,
        accumulation=config.train.accumulation,
        chunk=config.loss.chunk,
    )
    parallel = DataParallel(config.parallel.devices)
    rows = parallel.check_batch(config.data.batch_size, config.train.accumulation)
    if config.loss.chunk and rows % config.loss.chunk:
        raise UserError(
            f'loss.chunk {config.loss.chunk} does not divide the {rows} rows of a micro-batch on '
            'one device.'
        )
    return Experiment(config, data, recipe, hyperparameters(config), parallel)


def model_config(config: ConfigDict, num_tokens: int) -> TransformerConfig:
    """The architecture for a tokenizer of `num_tokens` tokens.

    Raises:
        UserError: `model.vocab_size` is smaller, or the rows do not fit the model.
    """
    vocab_size = config.model.vocab_size or num_tokens
    if vocab_size < num_tokens:
        raise UserError(
            f"model.vocab_size {vocab_size} is smaller than the tokenizer's {num_tokens} tokens: "
            'leave it unset, or make it at least that.'
        )
    return transformer_config(config.model, vocab_size=vocab_size)


def init_params(model: Transformer, seed: int) -> Any:
    """Parameters of a model from a seed; does not depend on the batch."""
    tokens = np.ones((1, 2), np.int32)
    batch = {'tokens': tokens}
    if model.config.topology == 'encoder_decoder':
        batch['encoder_tokens'] = tokens
    return model.init(jax.random.key(seed), batch)['params']


def check_config(config: ConfigDict) -> None:
    """Raises UserError for choices and numbers that no run can have, before anything is loaded."""
    check_choice(config.optimizer.name, OPTIMIZERS, 'optimizer.name')
    check_choice(config.schedule.name, SCHEDULES, 'schedule.name')
    check_choice(config.train.on_nonfinite, ('stop', 'continue'), 'train.on_nonfinite')
    check_choice(config.parallel.mode, MODES, 'parallel.mode')
    model = transformer_config(config.model, vocab_size=config.model.vocab_size or 1)
    if (model.topology, model.head) != ('decoder', 'lm'):
        raise UserError(
            f"task {config.task} needs model.topology 'decoder' with model.head 'lm', not "
            f'{model.topology!r} with {model.head!r}.'
        )
    for name in 'train.steps', 'train.log_every', 'train.accumulation', 'train.keep_checkpoints':
        _check(config, name, lambda value: value >= 1, 'at least 1')
    for name in ('train.eval_every', 'train.eval_batches', 'train.checkpoint_every', 'loss.chunk',
                 'schedule.warmup_steps', 'optimizer.weight_decay', 'optimizer.clip_norm',
                 'loss.z_loss'):  # fmt: skip
        _check(config, name, lambda value: value >= 0, 'at least 0')
    for name in ('dropout.attention', 'dropout.residual', 'dropout.embedding',
                 'loss.label_smoothing', 'optimizer.b1', 'optimizer.b2'):  # fmt: skip
        _check(config, name, lambda value: 0 <= value < 1, 'in [0, 1)')
    _check(config, 'optimizer.learning_rate', lambda value: value > 0, 'positive')
    if config.data.length > model.max_length:
        raise UserError(
            f'data.length {config.data.length} exceeds model.max_length {model.max_length}: '
            'raise the one or lower the other.'
        )
    check_data(config)


def _check(config, name, valid, expected):
    section, field = name.split('.')
    value = config[section][field]
    if not valid(value):
        raise UserError(f'{name} must be {expected}, not {value}.')
