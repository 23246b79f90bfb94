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
from transformer.ranges import check_ranges, flat
from transformer.training.checkpoint import Checkpoints
from transformer.training.optimizers import OPTIMIZERS, check_no_decay, make_optimizer
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
        return self.parallel.replicate(jax.jit(self._create_state)())

    def restored_state(self, checkpoints: Checkpoints) -> TrainState:
        """The state of the newest checkpoint, on every device."""
        like = jax.eval_shape(self._create_state)
        return self.parallel.replicate(checkpoints.restore(like))

    def trained_params(self, checkpoints: Checkpoints) -> Any:
        """The parameters of the newest checkpoint, on every device."""
        like = jax.eval_shape(self.initial_params)
        return self.parallel.replicate(checkpoints.restore_params(like))

    def _create_state(self):
        recipe, hparams = self.recipe, self.hparams
        rate = hparams['learning_rate']
        optimizer = make_optimizer(recipe.optimizer, hparams, rate, recipe.no_decay)
        return TrainState.create(self.initial_params(), optimizer)


def load_experiment(config: ConfigDict, tokenizer: Any = None) -> Experiment:
    """Loads the data and puts the parts together; `check_config` comes before.

    Args:
        tokenizer: of an earlier run; by default one is made as the config says.

    Raises:
        UserError: the data or the devices do not fit.
    """
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
    return Experiment(config, data, recipe, hyperparameters(config), parallel)


def check_batch(config: ConfigDict) -> None:
    """Raises UserError unless the devices divide a training batch, and `loss.chunk` their parts."""
    parallel = DataParallel(config.parallel.devices)
    rows = parallel.check_batch(config.data.batch_size, config.train.accumulation)
    tokens, chunk = rows * config.data.length, config.loss.chunk
    if chunk and tokens % chunk:
        raise UserError(
            f'loss.chunk {chunk} does not divide the {tokens} tokens of a micro-batch on one '
            'device: choose a divisor, or 0 for all at once.'
        )


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
    check_ranges(flat(config.to_dict()))
    check_choice(config.optimizer.name, OPTIMIZERS, 'optimizer.name')
    check_no_decay(config.optimizer.no_decay)
    check_choice(config.schedule.name, SCHEDULES, 'schedule.name')
    check_choice(config.train.on_nonfinite, ('stop', 'continue'), 'train.on_nonfinite')
    check_choice(config.parallel.mode, MODES, 'parallel.mode')
    model = transformer_config(config.model, vocab_size=config.model.vocab_size or 1)
    if (model.topology, model.head) != ('decoder', 'lm'):
        raise UserError(
            f"task {config.task} needs model.topology 'decoder' with model.head 'lm', not "
            f'{model.topology!r} with {model.head!r}.'
        )
    if config.data.length > model.max_length:
        raise UserError(
            f'data.length {config.data.length} exceeds model.max_length {model.max_length}: '
            'raise the one or lower the other.'
        )
    check_data(config)
