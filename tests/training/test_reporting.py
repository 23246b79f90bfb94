"""What a run writes: the metrics file survives kills, events and curves follow it."""

import io
import itertools
import json
import math
import pathlib
import struct
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console
from tensorboardX.proto.event_pb2 import Event

from transformer.training import curves, reporting
from transformer.training.reporting import (
    MetricsWriter,
    Progress,
    plot_curves,
    print_table,
    read_metrics,
)


def write_run(workdir, start, stop):
    """Metrics of steps start + 1 to stop, an evaluation at every even step."""
    with MetricsWriter(workdir, start_step=start) as writer:
        for step in range(start + 1, stop + 1):
            writer.write(step, 'train', {'loss': 1 / step, 'learning_rate': 1e-3})
            if step % 2 == 0:
                writer.write(step, 'eval', {'loss': 2 / step})


def events(workdir):
    """(step, tag, value) of every scalar, and the steps from which older events are void."""
    scalars, restarts = [], []
    for path in sorted((workdir / 'tensorboard').iterdir()):
        data = path.read_bytes()
        while data:  # length, its checksum, an event, its checksum
            (length,) = struct.unpack('<Q', data[:8])
            event = Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]
            scalars += [(event.step, v.tag, v.simple_value) for v in event.summary.value]
            restarts += [event.step] if event.HasField('session_log') else []
    return scalars, restarts


def test_a_line_is_on_disk_when_write_returns_with_keys_in_a_fixed_order(tmp_path):
    with MetricsWriter(tmp_path / 'new' / 'run', start_step=0) as writer:
        metrics = {'b': 1.5, 'accuracy': 0.5, 'a': 2, 'loss': 0.1 + 0.2, 'perplexity': 3.0}
        writer.write(7, 'train', metrics)
        text = (tmp_path / 'new' / 'run' / 'metrics.jsonl').read_text()
        assert text == (
            '{"step": 7, "split": "train", "loss": 0.30000000000000004, "perplexity": 3.0, '
            '"accuracy": 0.5, "b": 1.5, "a": 2}\n'
        )


def test_what_is_not_finite_is_null_in_valid_json_and_no_event(tmp_path):
    with MetricsWriter(tmp_path, start_step=0) as writer:
        writer.write(1, 'train', {'loss': math.nan, 'perplexity': math.inf, 'accuracy': 0.5})

    def refuse(constant):
        raise AssertionError(constant)

    line = json.loads((tmp_path / 'metrics.jsonl').read_text(), parse_constant=refuse)
    assert line == {'step': 1, 'split': 'train', 'loss': None, 'perplexity': None, 'accuracy': 0.5}
    assert events(tmp_path)[0] == [(1, 'train/accuracy', 0.5)]


def test_a_resumed_run_leaves_the_file_of_an_uninterrupted_one(tmp_path):
    write_run(tmp_path / 'whole', 0, 9)
    whole = (tmp_path / 'whole' / 'metrics.jsonl').read_bytes()
    for checkpoint, killed in itertools.product((0, 1, 4), (4, 5, 8)):
        workdir = tmp_path / f'{checkpoint}-{killed}'
        write_run(workdir, 0, killed)
        write_run(workdir, checkpoint, 9)
        assert (workdir / 'metrics.jsonl').read_bytes() == whole


@pytest.mark.parametrize('torn', [b'{"step": 5, "split": "tr', b'{', b'\xff\x00', b''])
def test_a_torn_last_line_is_passed_over_and_then_dropped(tmp_path, torn):
    write_run(tmp_path, 0, 4)
    path = tmp_path / 'metrics.jsonl'
    before = path.read_bytes()
    path.write_bytes(before + torn)
    assert [line['step'] for line in read_metrics(tmp_path)] == [1, 2, 2, 3, 4, 4]
    write_run(tmp_path, 4, 4)
    assert path.read_bytes() == before


def test_a_last_line_that_lacks_only_its_newline_is_kept(tmp_path):
    write_run(tmp_path, 0, 4)
    path = tmp_path / 'metrics.jsonl'
    path.write_bytes(path.read_bytes()[:-1])
    write_run(tmp_path, 4, 5)
    assert [line['step'] for line in read_metrics(tmp_path)] == [1, 2, 2, 3, 4, 4, 5]


def test_a_finished_run_that_is_started_again_evaluates_without_a_second_line(tmp_path):
    write_run(tmp_path, 0, 4)
    before = read_metrics(tmp_path)
    with MetricsWriter(tmp_path, start_step=4) as writer:
        writer.write(4, 'eval', {'loss': 0.5})
    assert read_metrics(tmp_path) == before


def test_no_metrics_file_reads_as_no_metrics(tmp_path):
    assert read_metrics(tmp_path) == []


def test_events_have_the_scalars_and_void_those_of_later_steps(tmp_path):
    write_run(tmp_path, 0, 2)
    scalars, restarts = events(tmp_path)
    assert scalars == [
        (1, 'train/loss', 1.0),
        (1, 'train/learning_rate', np.float32(1e-3)),
        (2, 'train/loss', 0.5),
        (2, 'train/learning_rate', np.float32(1e-3)),
        (2, 'eval/loss', 1.0),
    ]
    assert restarts == [0]
    write_run(tmp_path / 'resumed', 5, 6)
    assert events(tmp_path / 'resumed')[1] == [6]


# Curves.


def test_curves_are_a_picture_and_leave_no_other_file(tmp_path):
    write_run(tmp_path, 0, 60)
    files = {path.name for path in tmp_path.iterdir()}
    plot_curves(tmp_path)
    assert (tmp_path / 'curves.png').read_bytes().startswith(b'\x89PNG')
    assert {path.name for path in tmp_path.iterdir()} == files | {'curves.png'}


def test_a_failing_plot_leaves_the_previous_picture(tmp_path, monkeypatch):
    (tmp_path / 'curves.png').write_bytes(b'previous')

    def full_disk(*_):
        raise OSError('disk full')

    monkeypatch.setattr(reporting.pathlib.Path, 'write_bytes', full_disk)
    with pytest.raises(OSError, match='disk full'):
        plot_curves(tmp_path)
    assert (tmp_path / 'curves.png').read_bytes() == b'previous'


def line(step, split='train', **metrics):
    return {'step': step, 'split': split} | metrics


@pytest.mark.parametrize(
    'lines',
    [
        [],
        [line(1, loss=None, learning_rate=0.0, gradient_norm=None), line(1, 'eval', loss=None)],
        [line(i, loss=1e30, learning_rate=1e-30, gradient_norm=0.0) for i in range(60)],
    ],
)
def test_curves_of_odd_runs_are_drawn_without_a_warning(lines):
    assert curves.draw_curves(lines, 'odd').startswith(b'\x89PNG')


def test_a_value_that_is_not_finite_is_a_gap():
    lines = [line(1, loss=1.0), line(2, loss=None), line(2, 'eval', loss=9.0), line(3, loss=2)]
    steps, values = curves._series([*lines, line(4, other=1)], 'train', 'loss')
    np.testing.assert_array_equal(steps, [1, 2, 3])
    np.testing.assert_array_equal(values, [1.0, np.nan, 2.0])


def test_smoothing_is_the_mean_of_a_window_cut_at_the_ends():
    values = np.random.default_rng(0).normal(size=150)  # radius 3
    values[40], values[60], values[100:110] = np.nan, 1e30, np.nan
    smooth = curves._smoothed(values)
    for i in range(150):
        radius = min(i, 3)
        window = values[i - radius : i + radius + 1]
        window = window[np.isfinite(window)]
        expected = window.mean() if len(window) else np.nan
        np.testing.assert_allclose(smooth[i], expected, rtol=1e-12, atol=1e-15)


def test_minor_labels_of_the_logarithmic_axis_are_1_2_3_and_5():
    ticks = [0.02, 0.04, 0.3, 0.6, 0.7, 2, 5, 8, 30, 90, 500, 3e-5]
    labels = [curves._label_1_2_3_5(tick, 0) for tick in ticks]
    assert labels == ['0.02', '', '0.3', '', '', '2', '5', '', '30', '', '500', '3e-05']


def test_training_does_not_wait_for_matplotlib_or_jax_to_be_imported():
    code = (
        'import sys, transformer.training.reporting\n'
        'print([name for name in ("matplotlib", "jax", "flax") if name in sys.modules])'
    )
    result = subprocess.run(
        [sys.executable, '-c', code],
        cwd=pathlib.Path(reporting.__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == '[]'


# The terminal.


class Terminal(io.StringIO):
    def isatty(self):
        return True


def console(file, width=80):
    return Console(file=file, width=width, _environ={'TERM': 'xterm', 'FORCE_COLOR': '1'})


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves: clock[0] is the time."""
    now = [100.0]
    monkeypatch.setattr(reporting.time, 'monotonic', lambda: now[0])
    return now


def test_without_a_terminal_there_are_plain_lines_every_few_seconds(clock):
    file = io.StringIO()
    with Progress(400, start=20, console=console(file)) as progress:
        for step in range(30, 401, 10):  # one second each
            clock[0] += 1
            progress.update(step, loss=5.0, learning_rate=1e-3, tokens_per_second=45210.3, x=1)
            if step == 200:
                progress.message('saved [bold] step 200')
        progress.update(400, eval_loss=4.5)
    lines = file.getvalue().splitlines()
    assert all(text.isprintable() for text in lines)  # no control characters
    assert lines[0] == 'step 30/400  loss 5.000  lr 1.0e-03  45,210 tok/s  0:00:01 elapsed'
    assert lines[1].endswith('0:00:06 elapsed  0:00:32 left')
    assert lines[-1] == (
        'step 400/400  loss 5.000  eval 4.500  lr 1.0e-03  45,210 tok/s  '
        '0:00:38 elapsed  0:00:00 left'
    )
    assert lines.count('saved [bold] step 200') == 1
    steps = [int(text.split()[1].split('/')[0]) for text in lines if text.startswith('step')]
    assert steps == [30, 80, 130, 180, 230, 280, 330, 380, 400, 400]


@pytest.mark.parametrize(('width', 'has_rate'), [(80, False), (120, True)])
def test_on_a_terminal_there_is_one_bar_that_fits(width, has_rate):
    file = Terminal()
    with Progress(50_000, start=10_000, console=console(file, width)) as progress:
        progress.message('corpus [/x]: 3 M tokens')
        progress.update(
            12_000, loss=5.0, eval_loss=4.5, learning_rate=1e-3, tokens_per_second=45210.3
        )
    text = file.getvalue()
    assert '\x1b[' in text
    assert '\x1b[?25h' in text  # the cursor is back
    assert 'corpus [/x]: 3 M tokens' in text
    shown = 'loss 5.000 eval 4.500 ' + 'lr 1.0e-03 ' * has_rate + '45,210 tok/s'
    assert shown in text
    assert '12000/50000' in text
    assert '…' not in text


def test_an_error_leaves_the_terminal_as_it_was():
    file = Terminal()
    with pytest.raises(ZeroDivisionError), Progress(10, console=console(file)):
        raise ZeroDivisionError
    assert file.getvalue().rindex('\x1b[?25h') > file.getvalue().rindex('\x1b[?25l')


def test_a_table_has_every_cell_and_survives_a_pipe(capsys):
    rows = [
        {'split [x]': 'eval [b]', 'loss': 3.25, 'perplexity': 1234567.8, 'tokens': 1234567},
        {'split [x]': 'a' * 90, 'loss': math.nan, 'perplexity': 2.0, 'tokens': 3},
    ]
    print_table('runs/[lm]', rows)
    out = capsys.readouterr().out
    table = [text.split() for text in out.splitlines()]
    assert table[0] == ['runs/[lm]']
    assert ['split', '[x]', 'loss', 'perplexity', 'tokens'] in table
    assert ['eval', '[b]', '3.2500', '1,234,568', '1,234,567'] in table
    assert ['a' * 90, 'nan', '2.0000', '3'] in table
    first, second = (text for text in out.splitlines() if '3.2500' in text or 'nan' in text)
    assert first.rindex('7') == second.rindex('3')  # numbers end in one column


@pytest.mark.parametrize('line', ['3', 'null', '[1]', '{"step": 1}', '{"step": "x", "split": ""}'])
def test_a_line_that_is_no_record_is_passed_over(tmp_path, line):
    good = {'step': 1, 'split': 'train', 'loss': 2.0}
    (tmp_path / 'metrics.jsonl').write_text(f'{line}\n{json.dumps(good)}\n')
    assert read_metrics(tmp_path) == [good]
    with MetricsWriter(tmp_path, start_step=1):
        assert read_metrics(tmp_path) == [good]
