"""Eight virtual CPU devices against one, in child processes."""

import json
import pathlib

import jax
import pytest
from parallel_run import make_config, norms

from transformer.errors import UserError
from transformer.parallel import DataParallel
from transformer.training.checkpoint import Checkpoints
from transformer.training.experiment import load_experiment

SCRIPT = str(pathlib.Path(__file__).with_name('parallel_run.py'))


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp('parallel')
    lines = [json.dumps({'text': 'word ' * (n % 7 + 1)}) for n in range(150)]
    (folder / 'text.jsonl').write_text('\n'.join(lines))
    return folder


@pytest.fixture(scope='module')
def results(run_python, folder):
    def run(devices, accumulation):
        names = 'text.jsonl', 'cache', f'{devices}x{accumulation}'
        text, cache, checkpoints = (str(folder / name) for name in names)
        result = run_python(SCRIPT, text, cache, str(accumulation), checkpoints, devices=devices)
        return json.loads(result.stdout)

    return {'1x1': run(1, 1), '8x1': run(8, 1), '8x2': run(8, 2)}


@pytest.mark.parametrize('other', ['8x1', '8x2'])
def test_devices_and_accumulation_do_not_change_training(results, other):
    assert results[other]['losses'] == pytest.approx(results['1x1']['losses'], rel=1e-5)
    assert results[other]['norms'] == pytest.approx(results['1x1']['norms'], rel=1e-5)


@pytest.mark.parametrize('other', ['8x1', '8x2'])
def test_evaluation_counts_every_target_once(results, other):
    small, large = results['1x1']['metrics']
    assert small['tokens'] == large['tokens'] > 0
    for metrics in (large, *results[other]['metrics']):
        assert metrics == pytest.approx(small, rel=1e-5)


def test_checkpoints_move_between_device_counts(results, folder):
    """A state saved by eight devices goes on in this process, which has one."""
    config = make_config(str(folder / 'text.jsonl'), str(folder / 'cache'))
    state = load_experiment(config).initial_state()
    with Checkpoints(folder / '8x1') as checkpoints:
        state = checkpoints.restore(state)
    assert norms(state.params) == pytest.approx(results['8x1']['norms'], rel=1e-6)
    assert int(state.step) == 5
    assert jax.local_device_count() == 1


def test_batches_that_do_not_divide_are_refused():
    parallel = DataParallel(1)
    assert parallel.check_batch(12, accumulation=4) == 3
    with pytest.raises(UserError, match=r'data\.batch_size 10 .* multiple of 4'):
        parallel.check_batch(10, accumulation=4)
    with pytest.raises(UserError, match=r'parallel\.devices is 99'):
        DataParallel(99)
