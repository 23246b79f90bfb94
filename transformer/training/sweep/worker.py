"""One process of a sweep: it claims trials, trains them in groups and tells the study."""

import math
import signal
import time
from collections.abc import Sequence

import optuna
from ml_collections import ConfigDict

from transformer.errors import UserError
from transformer.training.experiment import check_config
from transformer.training.sweep.groups import field_classes, group_key, group_name
from transformer.training.sweep.progress import SweepProgress
from transformer.training.sweep.results import Result
from transformer.training.sweep.runner import Listener, Trial, make_trainer, run_group
from transformer.training.sweep.space import with_overrides
from transformer.training.sweep.study import Study
from transformer.training.sweep.trainer import VectorTrainer

POLL_SECONDS = 2.0  # between two looks at a study whose last trials run elsewhere
REFRESH_SECONDS = 2.0  # between two readings of the whole study for the table


class Worker(Listener):
    """Trains what it claims of a study, at most so many trials at a time."""

    def __init__(
        self,
        study: Study,
        config: ConfigDict,
        parallel_trials: int,
        progress: SweepProgress,
        pruning: bool,
    ):
        self._study = study
        self._config = config
        self._parallel = parallel_trials
        self._progress = progress
        self._lockstep = not pruning
        self._classes = field_classes(config)
        self._base = group_key(config, self._classes)
        self._claimed: dict[int, optuna.Trial] = {}  # by number, until they end
        self._waiting: list[tuple[tuple, Trial]] = []  # claimed, with their groups
        self._group: tuple = ()  # the one that runs
        self._trainers: dict[tuple, list[VectorTrainer]] = {}
        self._steps: dict[int, int] = {}
        self._results: list[Result] = []
        self._read = -math.inf

    def run(self) -> None:
        """Works until no trial of the study waits or runs, here or elsewhere.

        SIGTERM and SIGINT end it; then, and after an error, its trials wait for others.
        """
        previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            while self._next_group():
                pass
        finally:
            signal.signal(signal.SIGTERM, previous)
            self._study.give_back(list(self._claimed.values()))

    def _next_group(self) -> bool:
        """Runs the largest group that can be claimed; False when the study is over."""
        if self._study.give_back_dead():
            self._progress.message('took over trials of a process that is gone')
        self._claim(self._parallel - len(self._waiting))
        if not self._waiting:
            over = not self._study.unfinished()
            if not over:
                time.sleep(POLL_SECONDS)
            self._show(0, force=over)
            return not over
        keys = [key for key, _ in self._waiting]
        self._group = max(keys, key=keys.count)
        trials = self._take(self._parallel)
        name = group_name(self._group, self._base) or 'the config as it is'
        self._progress.message(f'{len(trials)} trials in one program: {name}')
        trainer = self._trainer(trials)
        run_group(trainer, trials, self)
        return True

    def _claim(self, count: int) -> None:
        for handle in self._study.claim(count):
            self._claimed[handle.number] = handle
            try:
                config = with_overrides(self._config, handle.params)
                check_config(config)
            except UserError as error:  # a combination that was not tried before the start
                self._end(handle.number, None, reason=str(error))
                continue
            trial = Trial(handle.number, dict(handle.params), config)
            self._waiting.append((group_key(config, self._classes), trial))

    def _take(self, count: int) -> list[Trial]:
        """Claimed trials of the present group."""
        taken = [trial for key, trial in self._waiting if key == self._group][:count]
        numbers = {trial.number for trial in taken}
        self._waiting = [pair for pair in self._waiting if pair[1].number not in numbers]
        return taken

    def _trainer(self, trials: Sequence[Trial]) -> VectorTrainer:
        """One of the group that has slots for the trials, and not many more; or a new one."""
        trainers = self._trainers.setdefault(self._group, [])
        for trainer in trainers:
            if len(trials) <= trainer.slots <= 2 * len(trials):
                return trainer
        overrides = [trial.overrides for trial in trials]
        trainers.append(make_trainer(overrides, trials[0].config, len(trials), self._lockstep))
        return trainers[-1]

    def advanced(self, trials: Sequence[tuple[Trial, int]]) -> None:
        steps = {trial.number: step for trial, step in trials}
        made = sum(step - self._steps.get(number, 0) for number, step in steps.items())
        self._steps = steps
        self._show(made)

    def evaluated(self, trial: Trial) -> bool:
        metrics = dict(trial.metrics)
        return self._study.report(self._claimed[trial.number], metrics.pop('step'), metrics)

    def ended(self, trial: Trial) -> None:
        value = trial.metrics.get(self._study.metric, math.nan)
        reason = ''
        if trial.failed_step is not None:
            reason = f'update {trial.failed_step} was not finite'
        elif not math.isfinite(value):
            reason = f'the {self._study.metric} is not finite'
        if reason:
            self._progress.message(f'trial {trial.number} failed: {reason}')
        self._end(trial.number, value, pruned=trial.pruned, reason=reason)
        self._steps.pop(trial.number, None)

    def more(self, count: int) -> list[Trial]:
        self._claim(min(count, self._parallel - len(self._waiting)))
        return self._take(count)

    def _end(
        self, number: int, value: float | None, *, pruned: bool = False, reason: str = ''
    ) -> None:
        self._study.finish(self._claimed.pop(number), value, pruned=pruned, reason=reason)

    def _show(self, updates: int, force: bool = False) -> None:
        now = time.monotonic()
        if force or now - self._read > REFRESH_SECONDS:
            self._results = [Result.of(trial) for trial in self._study.records()]
            self._read = now
        left = sum(
            self._config.train.steps - self._steps.get(result.number, 0)
            for result in self._results
            if result.state in ('running', 'waiting')
        )
        self._progress.update(self._results, self._steps, updates, left)
