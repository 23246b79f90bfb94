"""Whole runs: what they write, how they stop, and that resuming changes no bit."""

import json
import pathlib
import signal

import jax
import numpy as np
import pytest

from configs import base
from transformer.data.datasets import TrainingSet
from transformer.errors import UserError
from transformer.training.checkpoint import Checkpoints
from transformer.training.experiment import load_experiment
from transformer.training.loop import train
from transformer.training.reporting import Progress, read_metrics
from transformer.training.run_evaluation import evaluate_run
from transformer.training.run_folder import read_run


@pytest.fixture
def config(tmp_path):
    config = base.get_config()
    text = tmp_path / 'text.txt'
    text.write_text('the quick brown fox jumps over the lazy dog. ' * 100)
    config.data.path = (str(text),)
    config.data.cache_dir = str(tmp_path / 'cache')
    config.data.tokenizer = 'chars'
    config.data.length = 16
    config.data.batch_size = 4
    config.model.num_layers = 1
    config.model.embed_dim = 16
    config.model.num_heads = 2
    config.model.mlp_dim = 32
    config.dropout.residual = 0.1
    config.schedule.warmup_steps = 10
    config.train.steps = 100
    config.train.eval_every = 50
    config.train.eval_batches = 2
    config.train.checkpoint_every = 20
    config.train.peak_flops = 1e11
    return config


def final_state(config, workdir):
    experiment = load_experiment(config)
    with Checkpoints(workdir / 'checkpoints') as checkpoints:
        return jax.device_get(checkpoints.restore(experiment.initial_state()))


def interrupt(monkeypatch, step, action):
    """Makes the loop's data source act after it handed out the batch of this step."""
    batches = TrainingSet.batches

    def interrupted(self, start=0, *share):
        for n, batch in enumerate(batches(self, start, *share), start):
            yield batch
            if n == step:
                action()

    monkeypatch.setattr(TrainingSet, 'batches', interrupted)


def terminate():
    signal.raise_signal(signal.SIGTERM)


def crash():
    raise RuntimeError('power cut')


def train_lines(workdir):
    """What must not depend on an interruption, of every update logged."""
    names = ('step', 'loss', 'learning_rate', 'gradient_norm')
    return [
        [line[name] for name in names] for line in read_metrics(workdir) if line['split'] == 'train'
    ]


@pytest.mark.slow
def test_resumed_run_equals_uninterrupted_run_bit_for_bit(config, tmp_path, monkeypatch):
    config.train.log_every = 1
    whole = tmp_path / 'whole'
    evaluation = train(config, whole)
    expected = final_state(config, whole)
    assert int(expected.step) == 100

    for name, action, error in ('stopped', terminate, None), ('killed', crash, RuntimeError):
        workdir = tmp_path / name
        with monkeypatch.context() as patch:
            interrupt(patch, 37, action)
            if error:
                with pytest.raises(error):
                    train(config, workdir)
            else:
                train(config, workdir)
        assert 20 <= int(final_state(config, workdir).step) <= 39
        assert train(config, workdir) == evaluation
        jax.tree.map(np.testing.assert_array_equal, final_state(config, workdir), expected)
        assert train_lines(workdir) == train_lines(whole)


def test_signal_during_a_log_saves_after_the_next_update(config, tmp_path, monkeypatch):
    update = Progress.update

    def update_and_terminate(self, step, **values):
        update(self, step, **values)
        if step == 30:
            terminate()

    monkeypatch.setattr(Progress, 'update', update_and_terminate)
    train(config, tmp_path / 'run')
    assert int(final_state(config, tmp_path / 'run').step) == 31


def test_a_run_writes_everything_it_promises(config, tmp_path):
    workdir = tmp_path / 'run'
    config.train.steps = 10
    train(config, workdir)
    for name in 'config.json', 'tokenizer.json', 'metrics.jsonl', 'curves.png', 'checkpoints':
        assert (workdir / name).exists(), name
    assert list((workdir / 'tensorboard').glob('events*'))
    lines = [json.loads(line) for line in (workdir / 'metrics.jsonl').read_text().splitlines()]
    by_split = {line['split']: line for line in lines}
    common = {'step', 'split', 'loss', 'perplexity', 'accuracy', 'bits_per_byte', 'tokens'}
    assert set(by_split['eval']) == common
    rates = {'learning_rate', 'gradient_norm', 'tokens_per_second', 'flops_utilisation'}
    assert set(by_split['train']) == common | rates
    assert by_split['train']['tokens'] == 10 * 4 * 16

    metrics = evaluate_run(config, workdir).metrics
    assert metrics['step'] == 10
    assert metrics['tokens'] == load_experiment(config).data.validation.num_tokens
    config.data.batch_size = 3
    assert evaluate_run(config, workdir).metrics == pytest.approx(metrics, rel=1e-5)


def test_folder_of_another_config_is_refused_and_kept(config, tmp_path):
    config.train.steps = 2
    train(config, tmp_path / 'run')
    before = {p: p.read_bytes() for p in (tmp_path / 'run').glob('*.json*')}
    config.model.num_layers = 2
    with pytest.raises(UserError, match=r'another config \(model.num_layers differ\)'):
        train(config, tmp_path / 'run')
    assert {p: p.read_bytes() for p in (tmp_path / 'run').glob('*.json*')} == before
    (tmp_path / 'run' / 'config.json').unlink()
    with pytest.raises(UserError, match=r'checkpoints but no config\.json'):
        train(config, tmp_path / 'run')


@pytest.mark.parametrize('how', ['stop', 'continue'])
def test_update_that_is_not_finite(config, tmp_path, how, monkeypatch):
    config.train.steps = 30
    config.train.on_nonfinite = how
    batch = TrainingSet.batch

    def poisoned(self, n, **share):
        result = batch(self, n, **share)
        return result | {'targets': result['targets'] + (10**6 if n == 23 else 0)}  # loss is NaN

    monkeypatch.setattr(TrainingSet, 'batch', poisoned)
    if how == 'continue':
        train(config, tmp_path / 'run')
        state = final_state(config, tmp_path / 'run')
        assert (int(state.step), int(state.bad_step)) == (30, 23)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))
    else:
        with pytest.raises(UserError, match='step 24 is not finite'):
            train(config, tmp_path / 'run')
        assert int(final_state(config, tmp_path / 'run').step) == 20


@pytest.mark.slow
def test_more_steps_need_a_decay_of_their_own(config, tmp_path):
    """Going on past the end must not change the learning rates of the steps behind."""
    config.train.steps = 4
    train(config, tmp_path / 'run')
    config.train.steps = 6
    with pytest.raises(UserError, match=r'schedule\.decay_steps=4'):
        train(config, tmp_path / 'run')
    config.schedule.decay_steps = 6
    config.train.steps = 4
    train(config, tmp_path / 'other')
    config.train.steps = 6
    train(config, tmp_path / 'other')
    assert int(final_state(config, tmp_path / 'other').step) == 6


def test_mistake_leaves_no_trace(config, tmp_path):
    """A config that is refused must not claim the folder: the mended one shall run there."""
    config.data.batch_size = 5
    config.train.accumulation = 2
    with pytest.raises(UserError, match='multiple of 2'):
        train(config, tmp_path / 'run')
    assert not (tmp_path / 'run').exists()


def test_workdir_that_is_a_file(config, tmp_path):
    file = tmp_path / 'file'
    file.write_text('mine')
    with pytest.raises(UserError, match='is a file'):
        train(config, pathlib.Path(file))
    assert file.read_text() == 'mine'


def test_overrides_that_change_the_parameters_are_refused(config, tmp_path):
    config.train.steps = 2
    train(config, tmp_path / 'run')
    read = read_run(tmp_path / 'run', base.get_config(), [('data.batch_size', '3')])
    assert read.config.data.batch_size == 3
    with pytest.raises(UserError, match=r'--config\.model\.embed_dim: the parameters'):
        read_run(tmp_path / 'run', base.get_config(), [('model.embed_dim', '32')])


def test_evaluation_of_a_folder_without_checkpoint(config, tmp_path):
    with pytest.raises(UserError, match='no checkpoint'):
        evaluate_run(config, tmp_path / 'nothing')
    assert not (tmp_path / 'nothing').exists()
