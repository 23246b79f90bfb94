"""A config turned into the things a run needs: checked first, devices last."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from transformer.config import TransformerConfig, transformer_config
from transformer.data import Data, Tokenizer, check_data, load_data
from transformer.errors import UserError, check_choice
from transformer.functional import span_lengths
from transformer.functional.accelerators import KERNELS
from transformer.modules import Transformer
from transformer.parallel import DataParallel
from transformer.ranges import check_ranges, flat
from transformer.training.adapters import adapter_scale, add_adapters, frozen_paths
from transformer.training.checkpoint import Checkpoints
from transformer.training.objectives import check_objective, make_corruption
from transformer.training.optimizers import OPTIMIZERS, check_pattern, make_optimizer
from transformer.training.schedules import SCHEDULES
from transformer.training.state import TrainState
from transformer.training.step import Recipe, eval_step, hyperparameters, train_step

MODES = ('pmap',)
SPELLING_TASKS = ('causal_lm', 'seq2seq')  # whose targets are every token of a text, once


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

    def initial_state(self, params: Any = None) -> TrainState:
        """A fresh state on every device, of these parameters or of initial ones."""
        create = jax.jit(self._create_state)
        return self.parallel.replicate(create() if params is None else create(params))

    def restored_state(self, checkpoints: Checkpoints) -> TrainState:
        """The state of the newest checkpoint, on every device."""
        like = jax.eval_shape(self._create_state)
        return self.parallel.replicate(checkpoints.restore(like))

    def trained_params(self, checkpoints: Checkpoints, average: int = 1) -> Any:
        """The parameters of the newest checkpoint, on every device; see `restore_params`."""
        like = jax.eval_shape(self._create_state).params
        return self.parallel.replicate(
            checkpoints.restore_params(like, ema=self.keeps_ema, average=average)
        )

    def bytes_per_token(self, dataset: Any) -> float | None:
        """UTF-8 bytes that a target spells, on average; None if the task predicts no whole text."""
        if self.config.task not in SPELLING_TASKS:
            return None
        return max(dataset.num_bytes, 1) / dataset.num_tokens

    @property
    def keeps_ema(self) -> bool:
        return self.config.train.ema_decay > 0

    def _create_state(self, params=None):
        recipe, hparams = self.recipe, self.hparams
        rate = hparams['learning_rate']
        optimizer = make_optimizer(recipe.optimizer, hparams, rate, recipe.no_decay, recipe.frozen)
        params = self.initial_params() if params is None else params
        params = add_adapters(params, self.config.lora, self.config.seed)
        return TrainState.create(params, optimizer, self.keeps_ema)


def load_experiment(
    config: ConfigDict,
    tokenizer: Tokenizer | None = None,
    source_tokenizer: Tokenizer | None = None,
) -> Experiment:
    """Loads the data and puts the parts together; `check_config` comes before.

    Args:
        tokenizer, source_tokenizer: of an earlier run; by default made as the config says.

    Raises:
        UserError: the data or the devices do not fit.
    """
    data = load_data(config, tokenizer, source_tokenizer)
    recipe = Recipe(
        model=Transformer(model_config(config, data.tokenizer, data.source_tokenizer, data.labels)),
        corruption=make_corruption(config, data.tokenizer),
        optimizer=config.optimizer.name,
        schedule=config.schedule.name,
        no_decay=config.optimizer.no_decay,
        frozen=frozen_paths(config),
        adapter_scale=adapter_scale(config.lora),
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
            'device: choose a divisor, 0 for all at once, or leave it unset.'
        )


def model_config(
    config: ConfigDict,
    tokenizer: Tokenizer,
    source_tokenizer: Tokenizer | None = None,
    labels: Sequence[str] = (),
) -> TransformerConfig:
    """The architecture for the tokens and labels of the data.

    Raises:
        UserError: `model.vocab_size`, `model.encoder_vocab_size` or `model.num_classes` is smaller
            than what the data has.
    """
    sizes = {'vocab_size': tokenizer.vocab_size}
    if source_tokenizer is not None:
        sizes['encoder_vocab_size'] = source_tokenizer.vocab_size
    if labels:
        sizes['num_classes'] = len(labels)
    for name, size in sizes.items():
        sizes[name] = config.model[name] or size
        if sizes[name] < size:
            raise UserError(
                f'model.{name} {sizes[name]} is smaller than the {size} of the data: leave it '
                'unset, or make it at least that.'
            )
    return transformer_config(config.model, **sizes)


def init_params(model: Transformer, seed: int) -> Any:
    """Parameters of a model from a seed; does not depend on the batch."""
    tokens = np.ones((1, 2), np.int32)
    batch = {'tokens': tokens}
    if model.config.topology == 'encoder_decoder':
        batch['encoder_tokens'] = tokens
    return model.init(jax.random.key(seed), batch)['params']


def check_device(implementation: str) -> None:
    """Raises UserError if attention is to be computed by a kernel of a device that is not here."""
    kernel = KERNELS.get(implementation)
    if kernel is not None and not kernel.is_here():
        raise UserError(
            f'model.attention_implementation {implementation} needs {kernel.device}, which this '
            'process does not have: take auto.'
        )


def check_config(config: ConfigDict) -> None:
    """Raises UserError for choices and numbers that no run can have, before anything is loaded."""
    check_ranges(flat(config.to_dict()))
    check_choice(config.optimizer.name, OPTIMIZERS, 'optimizer.name')
    check_pattern(config.optimizer.no_decay, 'optimizer.no_decay')
    check_pattern(config.train.frozen, 'train.frozen')
    check_pattern(config.lora.paths, 'lora.paths')
    check_choice(config.schedule.name, SCHEDULES, 'schedule.name')
    check_choice(config.train.on_nonfinite, ('stop', 'continue'), 'train.on_nonfinite')
    check_choice(config.parallel.mode, MODES, 'parallel.mode')
    check_data(config)
    known = {'vocab_size': config.model.vocab_size or 1}
    if config.data.source_tokenizer is not None:
        known['encoder_vocab_size'] = config.model.encoder_vocab_size or 1
    if config.model.head == 'classifier':
        known['num_classes'] = config.model.num_classes or 1
    model = transformer_config(config.model, **known)
    check_device(model.attention_implementation)
    check_objective(config, model)
    length, source_length = config.data.length, config.data.source_length or 0
    if config.task == 'span_corruption':  # both sides are shorter than the row they are made of
        sizes = span_lengths(length, config.corruption.rate, config.corruption.mean_span)
        length, source_length = max(sizes), 0
    for name, size in (('length', length), ('source_length', source_length)):
        if size > model.max_length:
            raise UserError(
                f'data.{name} {config.data[name]} makes rows of {size} tokens, which exceed '
                f'model.max_length {model.max_length}: raise the one or lower the other.'
            )
