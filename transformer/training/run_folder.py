"""The folder of a run: its config and tokenizer, written once and checked on return."""

import pathlib

from ml_collections import ConfigDict

from transformer.data import Tokenizer, load_tokenizer
from transformer.errors import UserError
from transformer.flags import config_differences, config_from_json, config_to_json

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

    Raises:
        UserError: it is no folder, or holds a run of another config.
    """
    if workdir.exists() and not workdir.is_dir():
        raise UserError(f'--workdir {workdir} is a file: give a folder, which need not exist.')
    if not (workdir / 'config.json').exists():
        return
    changed = [
        name
        for name in config_differences(read_config(workdir, config), config)
        if name not in CHANGEABLE
    ]
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
    return config_from_json(file.read_text(), template)


def read_tokenizer(workdir: pathlib.Path) -> Tokenizer | None:
    """The tokenizer of the run in a folder; None before it has one."""
    return load_tokenizer(workdir) if (workdir / 'tokenizer.json').is_file() else None
