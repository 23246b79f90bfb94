"""The folder of a run: its config and tokenizer, written once and checked on return."""

import pathlib
from collections.abc import Sequence

from ml_collections import ConfigDict

from transformer.data import Tokenizer, load_tokenizer
from transformer.errors import UserError
from transformer.flags import (
    config_differences,
    config_from_json,
    config_to_json,
    override,
)
from transformer.flops import parameter_shapes
from transformer.training.experiment import model_config

# Fields that may change when a run is resumed: none of them changes what an update computes.
CHANGEABLE = (
    'train.steps',
    'train.log_every',
    'train.eval_every',
    'train.eval_batches',
    'train.checkpoint_every',
    'train.keep_checkpoints',
    'train.on_nonfinite',
    'train.peak_flops',
    'parallel.mode',
    'parallel.devices',
    'data.cache_dir',
)


def check_run(config: ConfigDict, workdir: pathlib.Path) -> None:
    """Checks that the folder can hold a run of this config; writes nothing.

    A run that was not saved yet does not claim the folder.

    Raises:
        UserError: it is no folder, or holds a run of another config.
    """
    if workdir.exists() and not workdir.is_dir():
        raise UserError(f'--workdir {workdir} is a file: give a folder, which need not exist.')
    if not _is_saved(workdir):
        return
    if not (workdir / 'config.json').is_file():
        raise UserError(
            f'{workdir} holds checkpoints but no config.json: put it back, or give another '
            '--workdir.'
        )
    before = read_config(workdir, config)
    if before.train.steps != config.train.steps and _depends_on_steps(config):
        raise UserError(
            f'{workdir} holds a run of train.steps={before.train.steps}, over which its learning '
            f'rate decays: to go on to {config.train.steps}, keep that decay with '
            f'schedule.decay_steps={before.train.steps} from the start, or give another --workdir.'
        )
    changed = [name for name in config_differences(before, config) if name not in CHANGEABLE]
    if changed:
        raise UserError(
            f'{workdir} holds a run of another config ({", ".join(changed)} differ): give '
            'another --workdir, or the same config to resume.'
        )


def write_run(config: ConfigDict, tokenizer: Tokenizer, workdir: pathlib.Path) -> None:
    """Makes the folder and writes `config.json` and `tokenizer.json`.

    Raises:
        UserError: the folder cannot be written.
    """
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        if not _is_saved(workdir):
            tokenizer.save(workdir)
        temporary = workdir / 'config.tmp'
        temporary.write_text(config_to_json(config))
        temporary.replace(workdir / 'config.json')
    except OSError as error:
        raise UserError(f'--workdir {workdir} cannot be written: {error.strerror}.') from error


def read_config(workdir: pathlib.Path, template: ConfigDict) -> ConfigDict:
    """The config of the run in a folder.

    Args:
        template: any experiment's config; it gives the fields and their types.

    Raises:
        UserError: the folder holds no run, or one of other fields.
    """
    file = workdir / 'config.json'
    if not file.is_file():
        raise UserError(f'{workdir} holds no run (no config.json): train one first.')
    try:
        return config_from_json(file.read_text(encoding='utf-8', errors='replace'), template)
    except UserError as error:
        raise UserError(f'{file}: {error}') from None


def read_run(
    workdir: pathlib.Path, template: ConfigDict, overrides: Sequence[tuple[str, str]]
) -> tuple[ConfigDict, Tokenizer]:
    """The config of a run, with some fields overridden, and its tokenizer.

    Args:
        template: see `read_config`.
        overrides: pairs of a field and a text, see `transformer.flags.override`.

    Raises:
        UserError: the folder holds no run, or the overrides do not leave its parameters as they
            are.
    """
    config = read_config(workdir, template)
    tokenizer = load_tokenizer(workdir)
    trained = model_config(config, tokenizer.vocab_size)
    for name, text in overrides:
        override(config, name, text)
    model = model_config(config, tokenizer.vocab_size)
    if model != trained and parameter_shapes(model) != parameter_shapes(trained):
        raise UserError(
            f'--config.{overrides[0][0]}: the parameters in {workdir} are of another shape; '
            'override only what leaves them as they are.'
        )
    return config, tokenizer


def read_tokenizer(workdir: pathlib.Path) -> Tokenizer | None:
    """The tokenizer of the run in a folder; None before its first checkpoint."""
    return load_tokenizer(workdir) if _is_saved(workdir) else None


def _is_saved(workdir):
    """Whether the folder holds a checkpoint, finished or half-written."""
    checkpoints = workdir / 'checkpoints'
    steps = checkpoints.iterdir() if checkpoints.is_dir() else ()
    return any(step.name[0].isdigit() for step in steps)


def _depends_on_steps(config):
    schedule = config.schedule
    return schedule.decay_steps is None and schedule.name in ('cosine', 'linear')
