"""A study: the trials of one sweep in a storage that many processes share, by Optuna.

All trials are planned when the study is made, and wait there until a process claims them. What a
process leaves behind when it dies is planned anew by the others.
"""

import contextlib
import threading
import time
import warnings
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

from transformer.errors import UserError, check_choice
from transformer.training.sweep.space import Choice, Integers, Overrides, Space, product, zipped
from transformer.training.sweep.storage import (
    close_storage,
    file_lock,
    is_gone,
    open_storage,
    process_name,
)

BEAT_SECONDS = 20.0  # between two signs of life of a process
DEAD_SECONDS = 120.0  # without one: its trials go back to the others

SAMPLERS = {
    'tpe': lambda: optuna.samplers.TPESampler(constant_liar=True),
    'random': optuna.samplers.RandomSampler,
    'grid': optuna.samplers.RandomSampler,  # which has nothing to choose: every point is planned
    'cmaes': lambda: optuna.samplers.CmaEsSampler(warn_independent_sampling=False),
    'qmc': lambda: optuna.samplers.QMCSampler(warn_independent_sampling=False),
}
PRUNERS = {
    'none': lambda steps: optuna.pruners.NopPruner(),
    'asha': lambda steps: optuna.pruners.SuccessiveHalvingPruner(min_resource=max(steps, 1)),
    'median': lambda steps: optuna.pruners.MedianPruner(),
}
METRICS = {
    'eval/loss': 'minimize',
    'eval/perplexity': 'minimize',
    'eval/bits_per_byte': 'minimize',
    'eval/accuracy': 'maximize',
}

optuna.logging.set_verbosity(optuna.logging.WARNING)


class Study:
    """The trials of a sweep, shared by every process that opens the same storage and name.

    A trial that a process has claimed is its own until it ends or the process dies. Every change is
    in the storage when a method returns.
    """

    def __init__(
        self,
        name: str,
        storage: str,
        space: Space,
        trials: int | None,
        *,
        sampler: str | None = None,
        pruner: str = 'none',
        metric: str = 'eval/loss',
        rung: int = 1,
    ):
        """Opens the study, makes it if need be, and plans what is not planned yet.

        Args:
            storage: a URL of SQLAlchemy (sqlite:///FILE, postgresql://..., mysql://...), or the
                path of a journal, FILE.journal, on a disk that all processes share.
            trials: how many; None: every point of a list or grid.
            sampler: in SAMPLERS; None: 'grid' for a list, else 'tpe'.
            pruner: in PRUNERS.
            metric: in METRICS; what is optimised.
            rung: updates before the first time that a trial may be pruned by 'asha'.

        Raises:
            UserError: what `check_study` finds, or a storage that cannot be opened.
        """
        check_study(space, trials, sampler, pruner, metric)
        self.direction, self.metric = METRICS[metric], metric.removeprefix('eval/')
        self._points = points = _points(space, sampler)
        if sampler is None:
            sampler = 'tpe' if points is None else 'grid'
        self.trials = trials if points is None else len(points[:trials])
        self._distributions = {key: _distribution(one) for key, one in space.distributions.items()}
        self._lock = file_lock(storage)
        self.worker = process_name()
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')  # of what Optuna calls experimental
            with self._lock():
                self._storage = open_storage(storage)
                self._study = optuna.create_study(
                    study_name=name,
                    storage=self._storage,
                    sampler=SAMPLERS[sampler](),
                    pruner=PRUNERS[pruner](rung),
                    direction=self.direction,
                    load_if_exists=True,
                )
                self._beat()
                self._plan()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._keep_beating, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()
        close_storage(self._storage)

    def claim(self, count: int) -> list[optuna.Trial]:
        """Takes at most so many waiting trials, with all their parameters chosen."""
        claimed = []
        while len(claimed) < count and (trial := self._claim_one()):
            claimed.append(trial)
        return claimed

    def report(self, trial: optuna.Trial, step: int, metrics: dict[str, float]) -> bool:
        """Stores the metrics after so many updates; whether the trial should stop here.

        It also should if it is no longer this process's, which was taken for dead.
        """
        try:
            trial.set_user_attr('metrics', metrics)
            trial.report(metrics[self.metric], step)
            return trial.should_prune()
        except optuna.exceptions.UpdateFinishedTrialError:
            return True

    def finish(
        self, trial: optuna.Trial, value: float | None, *, pruned: bool = False, reason: str = ''
    ) -> None:
        """Ends a trial: with its value, pruned, or failed for a reason."""
        state = TrialState.COMPLETE
        if reason:
            value, state = None, TrialState.FAIL
            with contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError):
                trial.set_user_attr('reason', reason)
        elif pruned:
            value, state = None, TrialState.PRUNED
        self._study.tell(trial, value, state, skip_if_finished=True)

    def give_back(self, trials: list[optuna.Trial]) -> None:
        """Plans trials of this process anew, which it will not finish."""
        with self._lock():
            for trial in trials:
                self._void(trial.number)
            self._plan()

    def give_back_dead(self) -> int:
        """Plans the trials of dead processes anew, and says how many."""
        with self._lock():
            running = self._all((TrialState.RUNNING,))
            beats = self._study.user_attrs
            dead = [trial for trial in running if _is_dead(trial, beats)]
            for trial in dead:
                self._void(trial.number)
            self._plan()
        return len(dead)

    def records(self) -> list[FrozenTrial]:
        """All trials by their number, without those that were planned anew."""
        return [trial for trial in self._all() if not trial.user_attrs.get('void')]

    def unfinished(self) -> int:
        """How many trials wait or run, in any process."""
        return sum(not trial.state.is_finished() for trial in self.records())

    @property
    def study(self) -> optuna.Study:
        return self._study

    def _all(self, states: tuple[TrialState, ...] | None = None) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False, states=states)

    def _claim_one(self) -> optuna.Trial | None:
        with self._lock():
            while self._all((TrialState.WAITING,)):
                trial = self._study.ask(self._distributions)
                trial.set_user_attr('worker', self.worker)
                if not self._is_surplus(trial):
                    return trial
                self._void(trial.number)
        return None

    def _is_surplus(self, trial: optuna.Trial) -> bool:
        """Whether it is nobody's plan, or one of which there is an earlier trial.

        Only where processes raced for the last waiting trial, or planned at the same time.
        """
        plan = trial.user_attrs.get('plan')
        return plan is None or any(
            other.user_attrs.get('plan') == plan and other.number < trial.number
            for other in self.records()
        )

    def _void(self, number: int) -> None:
        """Ends a trial as if it had never been; its plan is free again."""
        storage = self._storage
        study_id = storage.get_study_id_from_name(self._study.study_name)
        trial_id = storage.get_trial_id_from_study_id_trial_number(study_id, number)
        with contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError):
            storage.set_trial_user_attr(trial_id, 'void', True)
            storage.set_trial_state_values(trial_id, TrialState.FAIL)

    def _plan(self) -> None:
        """Lets a trial wait for every plan that has none."""
        trials = self._all()
        planned = {t.user_attrs.get('plan') for t in trials if not t.user_attrs.get('void')}
        before = {t.user_attrs.get('plan'): t.params for t in trials}
        for plan in range(self.trials):
            if plan not in planned:
                params = before.get(plan, {}) if self._points is None else self._points[plan]
                self._study.enqueue_trial(params, user_attrs={'plan': plan})

    def _beat(self) -> None:
        self._study.set_user_attr(f'alive {self.worker}', time.time())

    def _keep_beating(self) -> None:
        while not self._stopped.wait(BEAT_SECONDS):
            with contextlib.suppress(Exception):  # the next one may find the network again
                self._beat()


def check_study(
    space: Space, trials: int | None, sampler: str | None, pruner: str, metric: str
) -> None:
    """Raises UserError for a wrong name, or a search that would not end; see `Study`."""
    check_choice(metric, METRICS, '--metric')
    check_choice(pruner, PRUNERS, '--pruner')
    if sampler is not None:
        check_choice(sampler, SAMPLERS, '--sampler')
    points = _points(space, sampler)
    if trials is None and points is None:
        raise UserError('--trials is needed: a space of distributions has no end of its own.')


def _points(space: Space, sampler: str | None) -> tuple[Overrides, ...] | None:
    """The trials of a list, or of a grid of choices; None: they are sampled."""
    if space.points is not None:
        if sampler not in (None, 'grid'):
            raise UserError(
                f'--sampler={sampler} chooses from distributions, and get_space() lists its '
                'trials: leave the sampler out.'
            )
        return space.points
    if sampler != 'grid':
        return None
    columns = []
    for name, one in space.distributions.items():
        if isinstance(one, Choice):
            values = one.values
        elif isinstance(one, Integers) and not one.log:
            values = range(one.low, one.high + 1)
        else:
            raise UserError(f'--sampler=grid needs choices, and {name} has a range: list values.')
        columns.append(zipped({name: values}))
    return tuple(product(*columns))


def _distribution(one: Any) -> BaseDistribution:
    if isinstance(one, Choice):
        return optuna.distributions.CategoricalDistribution(one.values)
    if isinstance(one, Integers):
        return optuna.distributions.IntDistribution(one.low, one.high, log=one.log)
    return optuna.distributions.FloatDistribution(one.low, one.high, log=one.log)


def _is_dead(trial: FrozenTrial, beats: dict[str, Any]) -> bool:
    """Whether the process that runs the trial is gone, or silent for too long."""
    worker = trial.user_attrs.get('worker')
    if worker is None:  # between two lines of a claim
        started = trial.datetime_start
        return started is not None and time.time() - started.timestamp() > DEAD_SECONDS
    silence = time.time() - beats.get(f'alive {worker}', 0.0)
    return is_gone(worker) or silence > DEAD_SECONDS
