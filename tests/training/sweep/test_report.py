"""What a study found: tables, pictures, the report, and the command of the best trial."""

import html.parser
import io
import re
import shlex

import matplotlib.image
import optuna
import pytest
from rich.console import Console

from transformer.flags import parse
from transformer.training.sweep.pictures import Column, draw_curves
from transformer.training.sweep.progress import SweepProgress
from transformer.training.sweep.report import write_report
from transformer.training.sweep.results import (
    Result,
    number,
    ranked,
    repetitions,
    short_names,
    train_command,
)

DISTRIBUTIONS = {
    'optimizer.learning_rate': optuna.distributions.FloatDistribution(1e-4, 1e-1, log=True),
    'model.position': optuna.distributions.CategoricalDistribution(['rope', '<none>']),
    'seed': optuna.distributions.CategoricalDistribution([0, 1]),
}


def add(study, rate, position, seed, curve, state, reason=''):
    complete = state == optuna.trial.TrialState.COMPLETE
    study.add_trial(
        optuna.create_trial(
            state=state,
            value=list(curve.values())[-1] if complete else None,
            params={'optimizer.learning_rate': rate, 'model.position': position, 'seed': seed},
            distributions=DISTRIBUTIONS,
            intermediate_values=curve,
            user_attrs={'reason': reason} if reason else {},
        )
    )


@pytest.fixture(scope='module')
def study():
    states = optuna.trial.TrialState
    study = optuna.create_study(study_name='x <&> y', direction='minimize')
    for seed, offset in (0, 0.0), (1, 0.5):
        add(study, 1e-3, 'rope', seed, {5: 3.0, 10: 2.0 + offset}, states.COMPLETE)
        add(study, 1e-2, '<none>', seed, {5: 3.0, 10: 1.9 + 2 * offset}, states.COMPLETE)
    add(study, 1e-1, 'rope', 0, {5: 9.0}, states.PRUNED)
    add(study, 1e-1, 'rope', 1, {5: float('nan')}, states.FAIL, 'update 7 was not finite')
    return study


@pytest.fixture(scope='module')
def results(study):
    return [Result.of(trial) for trial in study.trials]


def test_results_say_what_became_of_each_trial(results):
    assert [one.state for one in results] == ['complete'] * 4 + ['pruned', 'fail']
    assert [one.value for one in results] == [2.0, 1.9, 2.5, 2.9, 9.0, None]
    assert results[5].reason == 'update 7 was not finite'


def test_ranks_are_of_complete_trials(results):
    assert [one.number for one in ranked(results, 'minimize')] == [1, 0, 2, 3]
    assert [one.number for one in ranked(results, 'maximize')] == [3, 2, 0, 1]


def test_seeds_are_taken_together(results):
    """The best mean, which need not be that of the best trial, comes first."""
    rows = repetitions(results, 'minimize')
    assert [row.mean for row in rows] == [2.25, 2.4]
    assert [row.spread for row in rows] == pytest.approx([0.5 / 2**0.5, 1 / 2**0.5])
    assert rows[0].overrides == {'optimizer.learning_rate': 1e-3, 'model.position': 'rope'}
    assert repetitions(results[:1], 'minimize')[0].spread is None


def test_report_is_one_whole_file(study, results, tmp_path):
    write_report(study, results, 'loss', 'python train.py --x="<y>"', tmp_path)
    text = (tmp_path / 'report.html').read_text(encoding='utf-8')
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert text.count('data:image/png;base64,') == 4
    assert '&lt;none&gt;' in text
    assert '<none>' not in text
    assert 'x &lt;&amp;&gt; y' in text
    assert 'update 7 was not finite' in text
    assert_balanced(text)
    names = ['curves.png', 'importance.png', 'parallel.png', 'report.html', 'scatters.png']
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    for name in names[:3]:
        assert matplotlib.image.imread(tmp_path / name).std() > 0.01  # something is drawn


def assert_balanced(text):
    class Parser(html.parser.HTMLParser):
        def __init__(self):
            super().__init__()
            self.open = []

        def handle_starttag(self, tag, attributes):
            if tag not in ('meta', 'img'):
                self.open.append(tag)

        def handle_endtag(self, tag):
            assert self.open.pop() == tag

    parser = Parser()
    parser.feed(text)
    assert parser.open == []


def test_report_of_a_study_without_results(tmp_path):
    study = optuna.create_study(direction='minimize')
    write_report(study, [], 'loss', '', tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ['report.html']
    assert_balanced((tmp_path / 'report.html').read_text())


def test_curves_without_a_complete_trial(results):
    assert draw_curves(results[4:], 'loss', 'minimize').startswith(b'\x89PNG')


def test_best_command_sets_the_trial_over_the_base():
    base = [('train.steps', '5'), ('seed', '1'), ('model.layer_pattern', 'local,global')]
    fields = {'seed': 3, 'data.seed': 0, 'optimizer.learning_rate': 1 / 3, 'data.path': 'a b'}
    words = shlex.split(train_command('configs/x.py', base, fields, 'runs/best'))
    assert words[:4] == ['python', 'train.py', '--config=configs/x.py', '--workdir=runs/best']

    import argparse

    _, overrides = parse(argparse.ArgumentParser(), words[4:])
    assert overrides == [
        ('train.steps', '5'),
        ('seed', '3'),
        ('model.layer_pattern', 'local,global'),
        ('data.seed', '0'),
        ('optimizer.learning_rate', repr(1 / 3)),
        ('data.path', 'a b'),
    ]


def test_axes():
    assert Column([1e-3, 1e-2, 1e-1]).heights.tolist() == pytest.approx([0, 0.5, 1])
    assert Column([1, 2, 5]).heights.tolist() == [0, 0.25, 1]
    assert Column([1e-3, 1.0], log=False).kind == 'numbers'
    assert Column([2.0, 3.0], log=True).kind == 'logarithms'
    names = Column(['b', 'a', True])
    assert (names.kind, names.ticks) == ('names', [(0, 'a'), (0.5, 'b'), (1, 'true')])
    assert Column([4, 4]).ticks == [(0.5, '4')]
    assert Column([1, 1, 2]).few
    assert not Column([1, 2]).few


def test_numbers_and_names():
    assert [number(value) for value in (1.23456, 1e-5, 123456.0, None)] == [
        '1.235',
        '1e-05',
        '1.23e+05',
        '–',
    ]
    assert short_names(['a.x', 'b.x', 'a.y', 'seed']) == {
        'a.x': 'a.x',
        'b.x': 'b.x',
        'a.y': 'y',
        'seed': 'seed',
    }


def test_progress_as_lines_and_as_a_table(results):
    text = io.StringIO()
    with SweepProgress('loss', 'minimize', Console(file=text, width=120)) as progress:
        progress.update(results, {}, 0, 100)
        progress.update(results, {}, 50, 0)
    first, last = text.getvalue().splitlines()
    expected = '6/6 trials (1 pruned, 1 failed); best loss 1.9 (trial 1)'
    assert first == last == expected

    text = io.StringIO()
    console = Console(file=text, width=120, force_terminal=True, force_interactive=True)
    text.isatty = lambda: True
    with SweepProgress('loss', 'minimize', console) as progress:
        progress.update(results, {4: 5}, 0, 100)
        progress.update(results, {4: 6}, 50, 100)
    assert ' left' in text.getvalue()
    assert 'learning_rate' in text.getvalue()
