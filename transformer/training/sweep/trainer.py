"""Many trials of one group trained side by side, each as if it were alone."""

import dataclasses
import functools
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from transformer.data.datasets import TrainingSet, read_ahead
from transformer.errors import UserError
from transformer.modules import Transformer
from transformer.parallel import DataParallel, TrialParallel
from transformer.training.evaluation import means
from transformer.training.experiment import Experiment, init_params, load_experiment
from transformer.training.optimizers import make_optimizer
from transformer.training.state import TrainState
from transformer.training.step import eval_step, hyperparameters, train_step
from transformer.training.sweep.groups import (
    INIT_FIELDS,
    field_classes,
    group_key,
    hyperparameter_fields,
)

AHEAD = 10  # updates that the host sends before it waits for the device
TIMED_SECONDS = 0.2  # least time over which a layout is measured


class VectorTrainer:
    """Slots, each of which trains one trial; all take a step together, in one compiled program.

    What differs between trials (`fields`) are arrays of the program, all else is compiled in. A
    trial has its own state, step, seed and numbers, so that in a slot it computes what `train.py`
    would, to rounding; a slot can take a new trial at any time. Slots without a trial repeat one.

    Attributes:
        steps: [slots] updates made by the trial of each slot.
        lockstep: all slots read the same batch, and start together.
    """

    def __init__(
        self,
        config: ConfigDict,
        fields: Collection[str],
        slots: int,
        *,
        lockstep: bool = True,
        chunk: int | None = None,
        experiment: Experiment | None = None,
    ):
        """Loads the data; compiles nothing yet.

        Args:
            config: of any trial of the group.
            fields: traced and host fields in which the trials differ.
            slots: trials side by side; `self.slots` may be more, so that devices divide them.
            lockstep: all slots read the same batch, which costs less. It needs trials that start
                together and share `data.seed`.
            chunk: trials of a device computed at a time; None: all. See `fastest_trainer`.
            experiment: of the same data and program, to share.

        Raises:
            UserError: a field that cannot vary in a program, or what `load_experiment` finds.
        """
        classes = field_classes(config)
        for field in fields:
            if classes.get(field) not in ('traced', 'host'):
                raise UserError(
                    f'{field} changes the program: trials in one must agree on it, so make a '
                    'trainer for each of its values.'
                )
        if lockstep and 'data.seed' in fields:
            raise UserError('Trials with a data.seed of their own cannot run in lockstep.')
        DataParallel(1).check_batch(config.data.batch_size, config.train.accumulation)
        names = hyperparameter_fields(config)
        self._classes = classes
        traced = {name for field in fields for name in names.get(field, ())}
        self._traced = sorted(traced | {'seed'})  # so that there is an array to map over
        self._init = [field for field in INIT_FIELDS if field in fields]
        self._group = group_key(config, classes)
        self.lockstep = lockstep
        self.experiment = experiment or load_experiment(config)
        self.parallel = TrialParallel(slots, config.parallel.devices, chunk)
        self.slots = self.parallel.slots
        self.steps = np.zeros(self.slots, np.int64)
        self._numbers = {}
        self.clear()
        self._compile()

    def _compile(self):
        compiled, axis = self.parallel.map, None if self.lockstep else 0
        recipe = self.experiment.recipe
        self._create = compiled(self.created, (0,))
        self._choose = compiled(_choose, (0, 0, 0))
        self._update = compiled(self.updated, (0, axis, 0), donate=True)
        self._evaluate = compiled(functools.partial(eval_step, recipe=recipe), (0, None))

    def start(self, trials: Mapping[int, ConfigDict]) -> None:
        """Puts fresh trials into slots, by number; in lockstep all other slots become free.

        Raises:
            UserError: a trial of another group.
        """
        for config in trials.values():
            if group_key(config, self._classes) != self._group:
                raise UserError('A trial differs in a static field: it needs another program.')
        if self.lockstep:
            self.clear()
        for slot, config in trials.items():
            self._configs[slot] = config
        started = np.isin(np.arange(self.slots), list(trials))
        self.steps[started | (self._state is None)] = 0
        filler = next(config for config in self._configs if config is not None)
        configs = [config or filler for config in self._configs]
        self._numbers = self.parallel.split(self.columns(configs))
        fresh = self._create(self._numbers)
        if self._state is None:
            self._state = fresh
        else:
            self._state = self._choose(self.parallel.split(started), fresh, self._state)

    def train(self, updates: int) -> dict[str, np.ndarray]:
        """Makes so many updates in every slot; the [slots] sums of `train_step` over them."""
        total, waiting = {}, []
        for batch in self._batches(updates):
            self._state, sums = self._update(self._state, batch, self._numbers)
            waiting.append(sums)
            if len(waiting) == AHEAD:
                total, waiting = self._added(total, waiting), []
        self.steps += updates
        return self._added(total, waiting)

    def evaluate(self) -> list[dict[str, float]]:
        """The metrics of `means` of every slot, on the validation split as `train.py` reads it."""
        experiment = self.experiment
        config, dataset = experiment.config, experiment.data.validation
        total: dict[str, np.ndarray] = {}
        batches = dataset.evaluation_batches(config.data.batch_size, config.train.eval_batches)
        for batch in batches:
            sums = self._evaluate(self._state.best_params, self.parallel.replicate(batch))
            total = self._added(total, [sums])
        bytes_per_token = experiment.bytes_per_token(dataset)
        return [
            means({name: float(value[slot]) for name, value in total.items()}, bytes_per_token)
            for slot in range(self.slots)
        ]

    def bad_steps(self) -> np.ndarray:
        """[slots] the first step of each trial whose update was not finite; -1: none."""
        return self.parallel.gather(self._state.bad_step)

    def params(self, slot: int) -> Any:
        """The parameters to evaluate of one trial, in host memory."""
        params = self.parallel.gather(self._state.best_params)
        return jax.tree.map(lambda leaf: leaf[slot], params)

    def seconds_per_update(self) -> float:
        """Measured, after compilation, on trials like the config; those in the slots are lost."""
        self.start(dict.fromkeys(range(self.slots), self.experiment.config))
        self.train(1)
        updates, seconds = 1, 0.0
        while seconds < TIMED_SECONDS:
            updates *= 3
            started = time.perf_counter()
            self.train(updates)
            seconds = time.perf_counter() - started
        self.clear()
        return seconds / updates

    def clear(self) -> None:
        """Frees all slots and the memory of their trials."""
        self._configs, self._state = [None] * self.slots, None

    def created(self, numbers: Mapping[str, jax.Array]) -> TrainState:
        """The state of one trial before its first update."""
        experiment, recipe = self.experiment, self.experiment.recipe
        hparams = experiment.hparams | numbers
        fields = {field.removeprefix('model.'): numbers[field] for field in self._init}
        model = Transformer(dataclasses.replace(experiment.model_config, **fields))
        params = init_params(model, hparams['seed'])
        rate = hparams['learning_rate']
        optimizer = make_optimizer(recipe.optimizer, hparams, rate, recipe.no_decay)
        return TrainState.create(params, optimizer, experiment.keeps_ema)

    def updated(self, state: TrainState, batch: Any, numbers: Mapping[str, jax.Array]) -> Any:
        """The state of one trial after an update, and its sums."""
        hparams = self.experiment.hparams | numbers
        after, sums = train_step(state, batch, hparams, self.experiment.recipe)
        # An array raises the precision of low-precision parameters, where Python's numbers do not.
        return jax.tree.map(lambda new, old: new.astype(old.dtype), after, state), sums

    def columns(self, configs: Sequence[ConfigDict]) -> dict[str, np.ndarray]:
        """The numbers in which trials differ, as arrays [slots]."""
        rows = [hyperparameters(config) for config in configs]
        columns = {name: [row[name] for row in rows] for name in self._traced}
        if 'clip_norm' in columns:  # 0 clips nothing if it is Python's, which a traced 0 is not
            columns['clip_norm'] = [limit or np.inf for limit in columns['clip_norm']]
        for field in self._init:
            columns[field] = [config.model[field.removeprefix('model.')] for config in configs]
        return {
            name: np.array(column, np.int32 if type(column[0]) is int else np.float32)
            for name, column in columns.items()
        }

    def _batches(self, count: int) -> Iterator[Any]:
        """The next batches on the devices: one for all, or [slots] of them, each a slot's next."""
        train, steps = self.experiment.data.train, self.steps.copy()
        if self.lockstep:
            seed = next(config for config in self._configs if config is not None).data.seed
            stream = dataclasses.replace(train, seed=seed)
            batches = read_ahead(stream.batch, int(steps[0]), int(steps[0]) + count)
            return map(self.parallel.replicate, batches)
        filler = next(config for config in self._configs if config is not None)
        seeds = [(config or filler).data.seed for config in self._configs]
        return map(self.parallel.split, read_ahead(_stacker(train, seeds, steps), 0, count))

    def _added(self, total, sums):
        for one in self.parallel.gather(sums):
            total = {
                name: total.get(name, 0.0) + value.astype(float) for name, value in one.items()
            }
        return total


def fastest_trainer(
    config: ConfigDict, fields: Collection[str], slots: int, *, lockstep: bool = True
) -> VectorTrainer:
    """A trainer whose trials are laid out as is fastest on these devices, by a measurement.

    Whether a device should compute all its trials at a time, one after another or a few together
    depends on how well one trial fills it and on what fits into its caches.
    """
    make = functools.partial(VectorTrainer, config, fields, slots, lockstep=lockstep)
    trainer = make()
    share, device = trainer.parallel.per_device, trainer.parallel.devices[0].device_kind
    if (device, share) not in _chunks:
        chunks = [chunk for chunk in (1, 4) if chunk < share and share % chunk == 0]
        others = [make(chunk=chunk, experiment=trainer.experiment) for chunk in chunks]
        if others:
            trainer = min([trainer, *others], key=VectorTrainer.seconds_per_update)
        _chunks[device, share] = trainer.parallel.chunk
    if trainer.parallel.chunk == _chunks[device, share]:
        return trainer
    return make(chunk=_chunks[device, share], experiment=trainer.experiment)


_chunks: dict[tuple[str, int], int] = {}  # of a kind of device and a number of trials on each


def _stacker(train: TrainingSet, seeds: list[int], steps: np.ndarray) -> Any:
    """n -> batches [slots, B, ...]: of each slot the one n after its step, of its stream."""
    streams = {seed: dataclasses.replace(train, seed=seed) for seed in seeds}

    def make(n):
        wanted = [(seed, int(step) + n) for seed, step in zip(seeds, steps, strict=True)]
        distinct = {key: streams[key[0]].batch(key[1]) for key in set(wanted)}
        rows = [distinct[key] for key in wanted]
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}

    return make


def _choose(chosen, fresh, old):
    return jax.tree.map(lambda a, b: jax.numpy.where(chosen, a, b), fresh, old)
