"""Checkpoints that are damaged or cannot be written: one line, and what was saved stays."""

import shutil

import jax.numpy as jnp
import optax
import pytest

from transformer.errors import UserError
from transformer.training.checkpoint import Checkpoints
from transformer.training.optimizers import check_pattern
from transformer.training.state import TrainState


@pytest.fixture
def state():
    return TrainState.create({'w': jnp.ones(3)}, optax.sgd(0.1))


@pytest.fixture
def folder(state, tmp_path):
    with Checkpoints(tmp_path / 'checkpoints', keep=2) as checkpoints:
        for step in 1, 2:
            checkpoints.save(state.replace(step=jnp.int32(step)))
    return tmp_path / 'checkpoints'


def truncate(step):
    for path in step.rglob('*'):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:10])


def drop_parameters(step):
    shutil.rmtree(step / 'params')


@pytest.mark.parametrize('damage', [truncate, drop_parameters])
def test_a_damaged_checkpoint_is_named_and_the_one_before_takes_its_place(
    folder, state, damage, caplog
):
    damage(folder / '2')
    with Checkpoints(folder, keep=2) as checkpoints:
        with pytest.raises(UserError, match=r'^[^\n]*/2 cannot be read [^\n]*: move it away'):
            checkpoints.restore(state)
        assert 'ERROR' not in caplog.text
        with pytest.raises(UserError, match=r'checkpoints/2 cannot be read'):
            checkpoints.restore_params(state.params)
    (folder / '2').rename(folder.with_name('away'))
    with Checkpoints(folder, keep=2) as checkpoints:
        assert checkpoints.restore(state).step == 1


def test_a_write_that_fails_is_said_in_one_line_and_keeps_the_others(folder, state, monkeypatch):
    with Checkpoints(folder, keep=2) as checkpoints:

        def fail(*_, **__):
            raise ValueError('RESOURCE_EXHAUSTED: Failed to write\nmore')

        with monkeypatch.context() as patch:
            patch.setattr(checkpoints._manager, 'save', fail)
            with pytest.raises(UserError, match=r'written .*Failed to write\): make room'):
                checkpoints.save(state.replace(step=jnp.int32(3)))
        assert checkpoints.latest_step == 2


@pytest.mark.parametrize('keep', [None, 2])
def test_a_file_in_the_place_of_the_folder(tmp_path, keep):
    (tmp_path / 'file').write_text('mine')
    with pytest.raises(UserError, match='file is a file'):
        Checkpoints(tmp_path / 'file', keep)
    assert (tmp_path / 'file').read_text() == 'mine'


def test_what_is_no_regular_expression():
    check_pattern('(scale|bias)$', 'optimizer.no_decay')
    with pytest.raises(UserError, match=r"^train\.frozen '\(' is no regular expression"):
        check_pattern('(', 'train.frozen')


def test_an_average_is_the_mean_of_the_newest(state, tmp_path):
    with Checkpoints(tmp_path / 'checkpoints', keep=3) as checkpoints:
        for step in 1, 2, 3, 4:
            params = {'w': jnp.arange(3.0) * step**2}
            ema = {'w': jnp.full(3, float(step))}
            checkpoints.save(state.replace(step=jnp.int32(step), params=params, ema=ema))
    with Checkpoints(tmp_path / 'checkpoints') as checkpoints:
        like = state.params
        assert (checkpoints.restore_params(like)['w'] == jnp.arange(3.0) * 16).all()
        assert (checkpoints.restore_params(like, average=2)['w'] == jnp.arange(3.0) * 12.5).all()
        assert (checkpoints.restore_params(like, ema=True, average=3)['w'] == 3.0).all()
        assert checkpoints.restore(state.replace(ema=like)).ema['w'].tolist() == [4.0] * 3
        with pytest.raises(UserError, match=r'holds 3 checkpoint\(s\), too few for an average of'):
            checkpoints.restore_params(like, average=4)
