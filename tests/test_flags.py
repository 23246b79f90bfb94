"""Command lines: what is accepted, and the one line that refuses the rest."""

import argparse
import errno
import sys

import pytest

from configs import base
from transformer.config_fields import override
from transformer.errors import UserError
from transformer.flags import EPILOG, parse, run_main


def parser():
    parser = argparse.ArgumentParser()
    parser.add_argument('--config', required=True, help='a config file')
    parser.add_argument('--workdir')
    parser.add_argument('--batches', type=int)
    return parser


def test_overrides_are_taken_in_order_with_either_spelling():
    argv = ['--config.a.b=1', '--config', 'c.py', '--config.a.b', '-2', '--workdir=w']
    args, overrides = parse(parser(), [*argv, '--config.t=x=y', '--config.s='])
    assert (args.config, args.workdir) == ('c.py', 'w')
    assert overrides == [('a.b', '1'), ('a.b', '-2'), ('t', 'x=y'), ('s', '')]


@pytest.mark.parametrize(
    ('argv', 'words'),
    [
        (['--config=c', '--wrkdir=w'], ['--wrkdir', "'--workdir'"]),
        (['--cnofig=c'], ['--cnofig', "'--config'"]),
        (['--conf=c'], ['--conf', "'--config'"]),
        (['--config=c', '--zzz'], ['--zzz', '--workdir', '--config.FIELD=VALUE']),
        (['--config=c', '--model.num_layers=4'], ['--config.model.num_layers?']),
        (['--config=c', 'stray'], ["'stray'", '--flag=value']),
        (['--config=c', 'config.seed=1'], ["'config.seed=1'"]),
        (['--config=c', '-w'], ["'-w'"]),
        (['--config=c', '--config.seed'], ['--config.seed=VALUE']),
        (['--config=c', '--config.seed', '--workdir=w'], ['--config.seed=VALUE']),
        (['--config'], ['--config', 'expected one argument']),
        (['--config=c', '--batches=foo'], ['--batches', "'foo'"]),
        ([], ['required', '--config']),
    ],
)
def test_parse_refuses_in_one_line_and_prints_nothing(argv, words, capsys, refusal):
    message = refusal(parse, parser(), argv)
    for word in words:
        assert word in message
    assert capsys.readouterr() == ('', '')


def test_help_shows_how_a_field_is_set(capsys):
    with pytest.raises(SystemExit) as caught:
        parse(parser(), ['--help'])
    assert caught.value.code == 0
    assert '--config.FIELD=VALUE' in capsys.readouterr().out


def test_the_example_of_the_help_works():
    config = base.get_config()
    examples = [word for word in EPILOG.split() if word.startswith('--config.')]
    _, overrides = parse(argparse.ArgumentParser(), [w.rstrip(',;') for w in examples[1:]])
    for name, text in overrides:
        override(config, name, text)
    assert (config.model.num_layers, config.data.path) == (4, ('a.txt', 'b.txt'))


def run(action, monkeypatch):
    monkeypatch.setattr(sys, 'argv', ['train.py', '--a', 'b'])
    seen = []

    def main(argv):
        seen.extend(argv)
        if action:
            raise action

    run_main(main)
    return seen


def test_run_main_passes_the_arguments_and_returns(monkeypatch):
    assert run(None, monkeypatch) == ['--a', 'b']


@pytest.mark.parametrize(
    ('action', 'code', 'stderr'),
    [
        (UserError('it is\nwrong'), 2, 'error: it is wrong\n'),
        (KeyboardInterrupt(), 130, ''),
        (
            OSError(errno.ENOSPC, 'No space left on device', 'runs/x'),
            2,
            'error: runs/x: No space left on device.\n',
        ),
        (
            OSError(errno.ENOSPC, 'No space left on device'),
            2,
            'error: No space left on device: make room and run again.\n',
        ),
    ],
)
def test_run_main_turns_mistakes_into_exit_codes(action, code, stderr, monkeypatch, capsys):
    with pytest.raises(SystemExit) as caught:
        run(action, monkeypatch)
    assert caught.value.code == code
    assert capsys.readouterr() == ('', stderr)


@pytest.mark.parametrize('error', [MemoryError('1 TiB'), RuntimeError('RESOURCE_EXHAUSTED: a\nb')])
def test_run_main_says_what_saves_memory(error, monkeypatch, capsys):
    with pytest.raises(SystemExit) as caught:
        run(error, monkeypatch)
    assert caught.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert 'not enough memory: lower data.batch_size' in lines[0]


def test_run_main_lets_defects_through(monkeypatch):
    with pytest.raises(ZeroDivisionError):
        run(ZeroDivisionError(), monkeypatch)
