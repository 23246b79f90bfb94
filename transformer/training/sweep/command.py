"""What `sweep.py` does: a space checked, a study opened, trials trained, a report written."""

import contextlib
import hashlib
import json
import pathlib
from collections.abc import Sequence

from ml_collections import ConfigDict

from transformer.errors import UserError
from transformer.parallel import make_cores_devices
from transformer.ranges import flat
from transformer.training.experiment import SPELLING_TASKS, check_config
from transformer.training.reporting import print_table
from transformer.training.sweep.groups import (
    SHARED_HOST_FIELDS,
    UNUSED_FIELDS,
    check_space,
    describe_groups,
)
from transformer.training.sweep.progress import SweepProgress
from transformer.training.sweep.report import write_report
from transformer.training.sweep.results import (
    Result,
    number,
    ranked,
    repetitions,
    short_names,
    text,
    train_command,
)
from transformer.training.sweep.space import Space, load_space, make_space
from transformer.training.sweep.study import Study, check_study
from transformer.training.sweep.worker import Worker

SHOWN = 10  # rows of the last table


def sweep(
    config: ConfigDict,
    overrides: Sequence[tuple[str, str]],
    *,
    config_file: str,
    workdir: pathlib.Path,
    trials: int | None = None,
    parallel_trials: int = 16,
    sampler: str | None = None,
    pruner: str = 'none',
    storage: str | None = None,
    metric: str = 'eval/loss',
) -> None:
    """Searches the space of a config file, or joins in, and writes the report to the folder.

    Args:
        config: of the file, with the overrides, (field, text), of the command line.
        parallel_trials: trials side by side in this process, at most.
        storage: see `Study`; None: `study.db` in the folder.

    Raises:
        UserError: a mistake in the config, the space or the flags, before anything is trained.
    """
    space = make_space(load_space(config_file), config)
    _check(config, space, overrides, trials, parallel_trials, metric)
    check_study(space, trials, sampler, pruner, metric)
    check_space(space, config)
    make_cores_devices()
    name = _name(config, space, config_file, metric)
    _write_name(workdir, name)
    study = Study(
        name,
        storage or f'sqlite:///{workdir / "study.db"}',
        space,
        trials,
        sampler=sampler,
        pruner=pruner,
        metric=metric,
        rung=config.train.eval_every,
    )
    with contextlib.closing(study):
        try:
            with SweepProgress(study.metric, study.direction) as progress:
                progress.message('\n'.join([f'study {name}', *describe_groups(space, config)]))
                Worker(study, config, parallel_trials, progress, pruning=pruner != 'none').run()
        finally:
            _report(study, config, overrides, config_file, workdir)


def _report(study, config, overrides, config_file, workdir):
    results = [Result.of(trial) for trial in study.records()]
    command = ''
    if best := ranked(results, study.direction):
        seeds = {'seed': config.seed, 'data.seed': config.data.seed}
        fields = seeds | best[0].overrides
        command = train_command(config_file, overrides, fields, str(workdir / 'best'))
    write_report(study.study, results, study.metric, command, workdir)
    rows = repetitions(results, study.direction)[:SHOWN]
    if rows:
        names = short_names(rows[0].overrides)
        table = [
            {
                **{short: text(row.overrides[field]) for field, short in names.items()},
                f'{study.metric}, mean': row.mean,
                'spread': number(row.spread),
                'trials': ' '.join(str(one.number) for one in row.results),
            }
            for row in rows
        ]
        print_table('best trials, seeds taken together', table)
        print(f'the best trial, alone:\n{command}')
    print(f'report: {workdir / "report.html"}')


def _check(config, space, overrides, trials, parallel_trials, metric):
    check_config(config)
    for flag, count in ('--trials', trials), ('--parallel_trials', parallel_trials):
        if count is not None and count < 1:
            raise UserError(f'{flag} must be at least 1, not {count}.')
    for field, _ in overrides:
        if field in space.distributions:
            raise UserError(f'--config.{field} is also searched by get_space(): drop one of them.')
    if config.init_from is not None:
        raise UserError('init_from: trials of a sweep start from fresh parameters; unset it.')
    if metric == 'eval/bits_per_byte' and config.task not in SPELLING_TASKS:
        raise UserError(f'--metric={metric}: the targets of task {config.task} spell no text.')


def _name(config: ConfigDict, space: Space, config_file: str, metric: str) -> str:
    """A name that equal commands share and others do not."""
    values = flat(config.to_dict())
    for field in (*SHARED_HOST_FIELDS[1:], *UNUSED_FIELDS):  # of the machine, or of no effect
        del values[field]
    content = json.dumps([values, repr(space), metric], sort_keys=True)
    stem = pathlib.Path(config_file.split('.py')[0]).name
    return f'{stem}-{hashlib.sha256(content.encode()).hexdigest()[:8]}'


def _write_name(workdir: pathlib.Path, name: str) -> None:
    """Claims the folder for the study."""
    path = workdir / 'sweep.json'
    if path.is_file():
        before = json.loads(path.read_text())['study']
        if before != name:
            raise UserError(
                f'{workdir} holds another sweep ({before}; the config, the space or the metric was '
                'different): give another --workdir, or the same command to go on.'
            )
        return
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({'study': name}) + '\n')
    except OSError as error:
        raise UserError(f'--workdir {workdir} cannot be written: {error.strerror}.') from error
