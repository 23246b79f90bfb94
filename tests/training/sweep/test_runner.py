"""Trials from start to end in slots: evaluations, failures, pruning, refilling."""

import numpy as np
import pytest
from fake_trainer import Slots

from transformer.training.sweep.runner import Listener, Trial, run_group, varied_fields
from transformer.training.sweep.space import with_overrides


class Recorder(Listener):
    """Stops trials whose rate is above `limit` at their first evaluation; hands out `waiting`."""

    def __init__(self, limit=np.inf, waiting=()):
        self.limit, self.waiting, self.over = limit, list(waiting), []

    def evaluated(self, trial):
        return trial.config.optimizer.learning_rate > self.limit

    def ended(self, trial):
        self.over.append(trial.number)

    def more(self, count):
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        return taken


@pytest.fixture(scope='module')
def make(config):
    def trial(number, rate, **train):
        overrides = {'optimizer.learning_rate': rate}
        overrides |= {f'train.{name}': value for name, value in train.items()}
        return Trial(number, overrides, with_overrides(config, overrides))

    return trial


def test_trials_end_at_their_own_steps(make):
    trials = [make(0, 0.5), make(1, 0.25, steps=8), make(2, 0.125, steps=200)]
    listener = Recorder()
    run_group(Slots(4), trials, listener)
    assert [[point['step'] for point in trial.curve] for trial in trials[:2]] == [[6, 12], [6, 8]]
    assert [point['step'] for point in trials[2].curve] == [*range(6, 200, 6), 200]
    assert trials[1].metrics == {'step': 8, 'loss': 1 / 8 + 0.25}
    assert listener.over == [1, 0, 2]


def test_trial_without_evaluations_on_the_way(make):
    trial = make(0, 0.5, steps=120, eval_every=0)
    run_group(Slots(1), [trial], Recorder())
    assert [point['step'] for point in trial.curve] == [120]


def test_trial_that_is_not_finite_fails_with_its_step(make):
    trials = [make(0, 9.0), make(1, 0.5), make(2, 9.5, on_nonfinite='continue')]
    run_group(Slots(3), trials, Recorder())
    assert [trial.failed_step for trial in trials] == [8, None, None]
    assert [len(trial.curve) for trial in trials] == [1, 2, 2]


def test_slots_of_pruned_trials_are_refilled(make):
    first, rest = [make(0, 0.5), make(1, 2.0)], [make(2, 3.0), make(3, 0.1), make(4, 0.2)]
    trainer, listener = Slots(2, lockstep=False), Recorder(limit=1.0, waiting=rest)
    run_group(trainer, first, listener)
    assert trainer.starts == [[0, 1], [1], [0, 1]]
    assert listener.over == [1, 0, 2, 3, 4]
    assert [trial.pruned for trial in first + rest] == [False, True, True, False, False]
    assert [point['step'] for point in rest[1].curve] == [6, 12]


def test_lockstep_takes_no_further_trials(make):
    trainer, listener = Slots(2), Recorder(limit=1.0, waiting=[make(2, 0.1)])
    run_group(trainer, [make(0, 0.5), make(1, 2.0)], listener)
    assert trainer.starts == [[0, 1]]
    assert len(listener.waiting) == 1


def test_trial_is_not_called_pruned_at_its_end(make):
    trial = make(0, 2.0, steps=6)
    run_group(Slots(1), [trial], Recorder(limit=1.0))
    assert not trial.pruned


def test_fields_that_vary_inside_a_program(config):
    overrides = [{'seed': 1, 'model.num_layers': 2}, {'data.seed': 1}]
    assert varied_fields(overrides, config) == ['seed', 'data.seed']
