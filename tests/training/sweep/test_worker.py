"""A process of a sweep, with trainers that compute nothing."""

import io

import pytest
from fake_trainer import Slots
from rich.console import Console

from transformer.training.sweep import worker as workers
from transformer.training.sweep.progress import SweepProgress
from transformer.training.sweep.space import choice, grid, make_space, uniform
from transformer.training.sweep.study import Study
from transformer.training.sweep.worker import Worker


@pytest.fixture
def run(config, tmp_path, monkeypatch):
    """Runs a sweep of four trials at a time, and returns its records and the trainers made."""
    made = []

    def make_trainer(overrides, config, slots, lockstep):
        made.append(Slots(slots, lockstep))
        return made[-1]

    monkeypatch.setattr(workers, 'make_trainer', make_trainer)

    def run_one(space, trials=None, **options):
        storage = str(tmp_path / 'study.journal')
        study = Study('study', storage, make_space(space, config), trials, **options)
        progress = SweepProgress('loss', 'minimize', Console(file=io.StringIO()))
        pruning = 'pruner' in options
        try:
            Worker(study, config, 4, progress, pruning).run()
            return study.records(), made
        finally:
            study.close()

    return run_one


def test_groups_run_one_after_another(run):
    space = grid({'model.num_layers': [1, 2], 'optimizer.learning_rate': [0.1, 0.2, 0.3, 0.4]})
    records, trainers = run(space)
    assert [record.value for record in records] == [
        1 / 12 + rate for rate in (0.1, 0.2, 0.3, 0.4)
    ] * 2
    assert [trainer.slots for trainer in trainers] == [4, 4]
    assert all(len(trainer.starts) == 1 for trainer in trainers)


def test_program_of_a_group_is_used_again(run):
    records, trainers = run(grid({'optimizer.learning_rate': [n / 100 for n in range(1, 12)]}))
    assert [record.state.name for record in records] == ['COMPLETE'] * 11
    assert [len(trainer.starts) for trainer in trainers] == [3]  # of 4, 4 and 3 trials


def test_slots_of_pruned_trials_take_others(run):
    rates = [n / 100 for n in range(1, 13)]
    space = grid({'optimizer.learning_rate': rates})
    records, trainers = run(space, pruner='asha', rung=6)
    states = [record.state.name for record in records]
    assert states.count('PRUNED') >= 6
    assert states[0] == 'COMPLETE'  # the best
    assert len(trainers) == 1
    assert not trainers[0].lockstep


def test_failed_trial_has_its_reason(run):
    records, _ = run(grid({'optimizer.learning_rate': [0.1, 9.0]}))
    assert [record.state.name for record in records] == ['COMPLETE', 'FAIL']
    assert records[1].user_attrs['reason'] == 'update 8 was not finite'


def test_combination_that_is_refused_late_fails_alone(run):
    space = {'model.embed_dim': choice(16), 'dropout.residual': uniform(0.1, 1.5)}
    records, _ = run(space, 12, sampler='qmc')
    reasons = [r.user_attrs.get('reason', '') for r in records if r.state.name == 'FAIL']
    assert 0 < len(reasons) < 12
    assert all('dropout.residual must be in' in reason for reason in reasons)


def test_interrupted_sweep_leaves_its_trials_to_the_next(run, monkeypatch):
    space = grid({'optimizer.learning_rate': [0.1, 0.2, 0.3]})
    with monkeypatch.context() as patch:
        patch.setattr(Slots, 'evaluate', interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(space)
    records, trainers = run(space)
    assert [record.state.name for record in records] == ['COMPLETE'] * 3
    assert len(trainers) == 2


def interrupt(trainer):
    raise KeyboardInterrupt
