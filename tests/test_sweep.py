"""sweep.py from end to end: trials, report, restart, and the command of the best trial."""

import json
import pathlib
import re
import shlex

import jax
import optuna
import pytest

import sweep
import train
from configs import quickstart
from transformer.config_files import load_config
from transformer.errors import UserError
from transformer.training.reporting import read_metrics
from transformer.training.sweep.groups import check_space
from transformer.training.sweep.space import make_space
from transformer.training.sweep.storage import close_storage, open_storage

CONFIG = """
from configs import base
from transformer.training.sweep import *

def get_config():
    config = base.get_config()
    config.data.path = ({corpus!r},)
    config.data.cache_dir = {cache!r}
    config.data.tokenizer = 'chars'
    config.data.length = 16
    config.data.batch_size = 4
    config.model.num_layers = 1
    config.model.embed_dim = 16
    config.model.num_heads = 2
    config.model.mlp_dim = 32
    config.train.steps = 10
    config.train.eval_every = 5
    config.train.eval_batches = 2
    config.train.peak_flops = 1e11
    return config

def get_space():
    return {space}
"""
SPACE = "zipped({'optimizer.learning_rate': [1e-3, 3e-3, 1e-2, 1e30], 'seed': range(4)})"


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    jax.devices()  # before a sweep makes several of this process's one
    return tmp_path_factory.mktemp('sweep')


@pytest.fixture
def write_config(folder):
    def write(space):
        corpus = folder / 'text.txt'
        corpus.write_text('the quick brown fox jumps over the lazy dog. ' * 100)
        path = folder / 'tiny.py'
        text = CONFIG.format(corpus=str(corpus), cache=str(folder / 'cache'), space=space)
        path.write_text(text)
        return f'--config={path}'

    return write


def records(workdir):
    name = json.loads((workdir / 'sweep.json').read_text())['study']
    storage = open_storage(f'sqlite:///{workdir}/study.db')
    trials = optuna.load_study(study_name=name, storage=storage).trials
    close_storage(storage)
    return trials


@pytest.mark.slow
def test_sweep_reports_and_its_best_trial_is_reproduced(folder, write_config, capfd):
    config, workdir = write_config(SPACE), folder / 'run'
    sweep.main([config, f'--workdir={workdir}', '--config.train.steps=12'])
    output = capfd.readouterr()
    trials = records(workdir)
    assert [trial.state.name for trial in trials] == ['COMPLETE'] * 3 + ['FAIL']
    assert [list(trial.intermediate_values) for trial in trials[:3]] == [[5, 10, 12]] * 3
    assert re.fullmatch(r'update \d+ was not finite', trials[3].user_attrs['reason'])
    assert 'varied inside one program: optimizer.learning_rate, seed' in output.err
    assert 'group of 4: the config' in output.err
    assert (workdir / 'report.html').is_file()

    command = re.search(r'^python train\.py .*$', output.out, re.MULTILINE).group()
    train.main(shlex.split(command)[2:])
    best = min(trial.value for trial in trials[:3])
    assert read_metrics(workdir / 'best')[-1]['loss'] == pytest.approx(best, rel=1e-5)

    capfd.readouterr()
    sweep.main([config, f'--workdir={workdir}', '--config.train.steps=12'])  # nothing is left
    assert 'in one program' not in capfd.readouterr().err
    assert len(records(workdir)) == 4


@pytest.mark.parametrize(
    ('space', 'flags', 'message'),
    [
        (
            "{'optimizer.lr': log_uniform(1e-4, 1e-2)}",
            ['--trials=2'],
            'optimizer.lr is not a field',
        ),
        ("{'seed': integers(0, 9)}", [], '--trials is needed'),
        (SPACE, ['--config.seed=1'], '--config.seed is also searched'),
        (SPACE, ['--config.init_from=x'], 'init_from'),
        (SPACE, ['--trials=0'], '--trials must be at least 1'),
        (SPACE, ['--metric=eval/los'], "Did you mean 'eval/loss'"),
        (SPACE, ['--prunner=asha'], '--pruner'),
    ],
)
def test_mistakes_leave_no_trace(folder, write_config, space, flags, message):
    workdir = folder / 'none'
    with pytest.raises(UserError, match=message):
        sweep.main([write_config(space), f'--workdir={workdir}', *flags])
    assert not workdir.exists()


def test_folder_of_another_sweep(folder, write_config):
    workdir = folder / 'other'
    workdir.mkdir()
    (workdir / 'sweep.json').write_text('{"study": "another-1"}')
    with pytest.raises(UserError, match=r'another sweep \(another-1'):
        sweep.main([write_config(SPACE), f'--workdir={workdir}'])


@pytest.mark.slow
def test_snippet_of_the_guide(folder, write_config, monkeypatch, capsys):
    """With a tiny experiment in the place of the quickstart."""
    path = write_config(SPACE).removeprefix('--config=')
    monkeypatch.setattr(quickstart, 'get_config', lambda: load_config(path))
    guide = pathlib.Path(sweep.__file__).parent / 'docs/sweeps.md'
    text = guide.read_text(encoding='utf-8')
    snippets = re.findall(r'```python\n(.*?)```', text, re.DOTALL)
    for number, snippet in enumerate(snippets):
        names = {}
        exec(compile(snippet, f'{guide} snippet {number}', 'exec'), names)
        if 'get_space' in names:
            config = load_config(path)
            check_space(make_space(names['get_space'](), config), config)
    assert len(snippets) == 3
    assert capsys.readouterr().out.count("'optimizer.learning_rate': 0.01") == 2
