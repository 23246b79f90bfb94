"""A study in a storage: every trial once, whoever dies, restarts or joins."""

import json
import pathlib
import signal

import pytest

from configs import base
from transformer.errors import UserError
from transformer.training.sweep import study as studies
from transformer.training.sweep.space import (
    choice,
    grid,
    integers,
    log_uniform,
    make_space,
    uniform,
)
from transformer.training.sweep.study import Study, check_study

SCRIPT = str(pathlib.Path(__file__).with_name('study_run.py'))
CONFIG = base.get_config()
SAMPLED = make_space(
    {
        'optimizer.learning_rate': log_uniform(1e-4, 1e-1),
        'dropout.residual': uniform(0.0, 0.5),
        'model.num_layers': integers(1, 4),
        'model.position': choice('rope', 'alibi'),
    },
    CONFIG,
)
LISTED = make_space(grid({'seed': range(3)}), CONFIG)


@pytest.fixture
def open_study(tmp_path):
    """Opens studies in one storage, and closes them in the end."""
    opened = []

    def open_one(space=SAMPLED, trials=4, storage=f'{tmp_path}/study.journal', **options):
        opened.append(Study('study', storage, space, trials, **options))
        return opened[-1]

    yield open_one
    for study in opened:
        study.close()


@pytest.mark.parametrize('storage', ['sqlite:///{}/study.db', '{}/study.journal'])
def test_three_processes_one_of_them_killed(run_python, tmp_path, storage):
    result = json.loads(run_python(SCRIPT, storage.format(tmp_path)).stdout)
    assert result['statuses'] == [signal.SIGKILL, 0, 0]
    assert result['states'] == {'COMPLETE': 12}
    assert result['seeds'] == result['values'] == list(range(12))
    assert 1 <= result['workers'] <= 2


@pytest.mark.parametrize('sampler', ['tpe', 'random', 'cmaes', 'qmc'])
def test_samplers_fill_the_space(open_study, sampler):
    study = open_study(sampler=sampler, trials=6)
    for _ in range(2):
        for trial in study.claim(3):
            assert set(trial.params) == set(SAMPLED.distributions)
            assert 1e-4 <= trial.params['optimizer.learning_rate'] <= 1e-1
            assert trial.params['model.position'] in ('rope', 'alibi')
            study.finish(trial, trial.params['dropout.residual'])
    assert study.claim(1) == []
    values = [record.params['optimizer.learning_rate'] for record in study.records()]
    assert len(set(values)) == 6


def test_list_is_tried_in_order_and_once(open_study):
    study, other = open_study(LISTED, None), open_study(LISTED, None)
    seeds = [trial.params['seed'] for one in (study, other, study) for trial in one.claim(1)]
    assert seeds == [0, 1, 2]
    assert study.claim(1) == other.claim(1) == []


def test_grid_of_choices(open_study):
    space = make_space({'model.position': choice('rope', 'none'), 'seed': integers(0, 2)}, CONFIG)
    claimed = open_study(space, None, sampler='grid').claim(99)
    assert len({(t.params['model.position'], t.params['seed']) for t in claimed}) == 6


def test_trials_given_back_are_claimed_again_with_their_parameters(open_study):
    study = open_study(trials=2)
    first, second = study.claim(2)
    study.finish(second, 1.0)
    study.give_back([first])
    assert study.unfinished() == 1
    (again,) = open_study(trials=2).claim(5)
    assert again.params == first.params
    assert len(study.records()) == 2


def test_trials_of_a_silent_process_are_given_back(open_study, monkeypatch):
    study, other = open_study(), open_study()
    claimed = study.claim(2)
    assert other.give_back_dead() == 0
    monkeypatch.setattr(studies, 'DEAD_SECONDS', -1.0)
    assert other.give_back_dead() == 2
    monkeypatch.undo()
    assert study.report(claimed[0], 1, {'loss': 1.0})  # it should stop: it is another's now
    study.finish(claimed[0], 1.0)
    assert len(other.claim(9)) == 4
    assert [record.state.name for record in study.records()] == ['RUNNING'] * 4


def test_more_trials_later(open_study):
    assert len(open_study(trials=2).claim(9)) == 2
    assert len(open_study(trials=5).claim(9)) == 3
    assert open_study(trials=1).claim(9) == []


def test_plans_made_twice_are_run_once(open_study):
    """As when two processes open a new study at the same time."""
    study = open_study(LISTED, None)
    for plan in range(3):
        study.study.enqueue_trial({'seed': plan}, user_attrs={'plan': plan})
    assert [trial.params['seed'] for trial in study.claim(9)] == [0, 1, 2]
    assert len(study.records()) == 3


def test_pruner_stops_the_worse(open_study):
    study = open_study(LISTED, None, pruner='asha', rung=10)
    stopped = []
    for loss, trial in zip([1.0, 2.0, 3.0], study.claim(3), strict=True):
        stopped.append(study.report(trial, 10, {'loss': loss}))
        study.finish(trial, loss, pruned=stopped[-1])
    assert stopped == [False, True, True]
    assert [record.state.name for record in study.records()] == ['COMPLETE', 'PRUNED', 'PRUNED']


def test_direction_and_metric(open_study):
    study = open_study(LISTED, None, metric='eval/accuracy')
    for accuracy, trial in zip([0.1, 0.3, 0.2], study.claim(3), strict=True):
        study.report(trial, 5, {'loss': 1.0, 'accuracy': accuracy})
        study.finish(trial, accuracy)
    assert study.study.best_trial.params == {'seed': 1}
    assert study.records()[0].user_attrs['metrics'] == {'loss': 1.0, 'accuracy': 0.1}


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ((SAMPLED, None, None, 'none', 'eval/loss'), '--trials is needed'),
        ((SAMPLED, 3, 'tpo', 'none', 'eval/loss'), "Did you mean 'tpe'"),
        ((SAMPLED, 3, None, 'ash', 'eval/loss'), "Did you mean 'asha'"),
        ((SAMPLED, 3, None, 'none', 'loss'), "Did you mean 'eval/loss'"),
        ((SAMPLED, 3, 'grid', 'none', 'eval/loss'), 'grid needs choices'),
        ((LISTED, None, 'tpe', 'none', 'eval/loss'), 'lists its trials'),
    ],
)
def test_mistakes(arguments, message):
    with pytest.raises(UserError, match=message):
        check_study(*arguments)


@pytest.mark.parametrize('storage', ['nonsense://x', 'postgresql://user:secret@nowhere/db'])
def test_storage_that_cannot_be_opened(open_study, storage):
    with pytest.raises(UserError, match='cannot be opened') as error:
        open_study(storage=storage)
    assert 'secret' not in str(error.value)
