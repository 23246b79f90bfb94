"""The trials of one group, from their start to their end, slot by slot."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from ml_collections import ConfigDict

from transformer.training.sweep.groups import field_classes, group_key
from transformer.training.sweep.space import Overrides, with_overrides
from transformer.training.sweep.trainer import VectorTrainer, fastest_trainer

MOST_UPDATES = 50  # between two looks at the trials


@dataclass
class Trial:
    """One trial of a sweep.

    Attributes:
        number: its name.
        overrides: the fields in which trials differ.
        config: of the trial.
        curve: the metrics of each evaluation, with its `step`, in order.
        failed_step: the first update that was not finite, counted from 1; None: none was.
        pruned: stopped early, because others were better.
    """

    number: int
    overrides: Overrides
    config: ConfigDict
    curve: list[dict[str, float]] = field(default_factory=list)
    failed_step: int | None = None
    pruned: bool = False

    @property
    def metrics(self) -> dict[str, float]:
        """Those of the last evaluation; {} before it."""
        return self.curve[-1] if self.curve else {}


class Listener:
    """What a run of a group tells, and whom it asks. This one lets every trial end."""

    def advanced(self, trials: Sequence[tuple[Trial, int]]) -> None:
        """The running trials with the updates that each has made."""

    def evaluated(self, trial: Trial) -> bool:
        """After an evaluation, the last of `trial.curve`: whether to stop the trial here."""
        return False

    def ended(self, trial: Trial) -> None:
        """The trial is complete, pruned or failed."""

    def more(self, count: int) -> list[Trial]:
        """At most so many further trials of the same group, for slots that became free."""
        return []


def run_group(trainer: VectorTrainer, trials: Sequence[Trial], listener: Listener) -> None:
    """Trains the trials, at most one a slot, and those that `listener.more` adds, to their ends.

    Args:
        trainer: of the group; in lockstep it takes no further trials.
    """
    running = dict(enumerate(trials))
    trainer.start({slot: trial.config for slot, trial in running.items()})
    while running:
        due = {
            slot: _next_evaluation(trial, trainer.steps[slot]) for slot, trial in running.items()
        }
        updates = min(step - int(trainer.steps[slot]) for slot, step in due.items())
        trainer.train(min(updates, MOST_UPDATES))
        listener.advanced([(trial, int(trainer.steps[slot])) for slot, trial in running.items()])
        evaluated = [slot for slot, step in due.items() if trainer.steps[slot] == step]
        _look(trainer, running, evaluated, listener)
        if not trainer.lockstep:
            _refill(trainer, running, listener)
    trainer.clear()


def _look(
    trainer: VectorTrainer, running: dict[int, Trial], evaluated: list[int], listener: Listener
) -> None:
    """Evaluates what is due and takes the trials out that are over."""
    bad_steps = trainer.bad_steps()
    metrics = trainer.evaluate() if evaluated else []
    for slot, trial in list(running.items()):
        if bad_steps[slot] >= 0 and trial.config.train.on_nonfinite == 'stop':
            trial.failed_step = int(bad_steps[slot]) + 1
        elif slot in evaluated:
            trial.curve.append({'step': int(trainer.steps[slot])} | metrics[slot])
            stop = listener.evaluated(trial)
            trial.pruned = stop and trainer.steps[slot] < trial.config.train.steps
        over = trial.failed_step or trial.pruned or trainer.steps[slot] >= trial.config.train.steps
        if over:
            del running[slot]
            listener.ended(trial)


def _refill(trainer: VectorTrainer, running: dict[int, Trial], listener: Listener) -> None:
    free = [slot for slot in range(trainer.slots) if slot not in running]
    added = dict(zip(free, listener.more(len(free)), strict=False)) if free else {}
    if added:
        trainer.start({slot: trial.config for slot, trial in added.items()})
        running |= added


def _next_evaluation(trial: Trial, step: np.int64) -> int:
    """The number of updates after which the trial is evaluated next."""
    config = trial.config.train
    if not config.eval_every:
        return config.steps
    return min((int(step) // config.eval_every + 1) * config.eval_every, config.steps)


def train_trials(
    config: ConfigDict, overrides: Sequence[Overrides], listener: Listener | None = None
) -> list[Trial]:
    """Trains trials side by side, group by group, and returns them in order with their metrics.

    Each equals what `train.py` would make of `config` with these overrides, to rounding.

    Args:
        config: what the trials have in common; `check_config` comes before.
        overrides: of each trial, by field; any may be overridden.

    Raises:
        UserError: an override that is none, or data that do not fit.
    """
    trials = [
        Trial(number, dict(one), with_overrides(config, one))
        for number, one in enumerate(overrides)
    ]
    classes, groups = field_classes(config), {}
    for trial in trials:
        groups.setdefault(group_key(trial.config, classes), []).append(trial)
    for group in groups.values():
        trainer = make_trainer([trial.overrides for trial in group], group[0].config, len(group))
        run_group(trainer, group, listener or Listener())
    return trials


def make_trainer(
    overrides: Sequence[Overrides], config: ConfigDict, slots: int, lockstep: bool = True
) -> VectorTrainer:
    """The fastest trainer of trials with such overrides, of the group that `config` is of.

    Args:
        lockstep: no slot takes a second trial before all are over.
    """
    fields = varied_fields(overrides, config)
    return fastest_trainer(config, fields, slots, lockstep=lockstep and 'data.seed' not in fields)


def varied_fields(overrides: Sequence[Overrides], config: ConfigDict) -> list[str]:
    """The fields of the overrides that may vary in a program."""
    classes = field_classes(config)
    names = dict.fromkeys(name for one in overrides for name in one)
    return [name for name in names if classes[name] != 'static']
