"""The folder of a run: its config and tokenizer, written once and checked on return."""

import json
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from transformer.config import TransformerConfig
from transformer.config_fields import override
from transformer.config_files import config_differences, config_from_json, config_to_json
from transformer.data import Data, Tokenizer, load_tokenizer
from transformer.errors import UserError
from transformer.flops import parameter_shapes
from transformer.training.adapters import adapter_scale, add_adapters, merge_adapters
from transformer.training.checkpoint import Checkpoints
from transformer.training.experiment import model_config

SOURCE_TOKENIZER = 'source_tokenizer.json'
LABELS = 'labels.json'

# Fields that may change when a run is resumed: none of them changes what an update computes.
CHANGEABLE = (
    'train.steps',
    'train.log_every',
    'train.eval_every',
    'train.eval_batches',
    'train.decode_pairs',
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


def write_run(config: ConfigDict, data: Data, workdir: pathlib.Path) -> None:
    """Makes the folder and writes `config.json` and what the tokens and classes mean.

    That is `tokenizer.json` and, where there are any, `source_tokenizer.json` and `labels.json`.

    Raises:
        UserError: the folder cannot be written, or its run has other classes.
    """
    check_labels(data, workdir)
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        if not _is_saved(workdir):
            data.tokenizer.save(workdir)
            if data.source_tokenizer is not None:
                text = data.source_tokenizer.to_json()
                (workdir / SOURCE_TOKENIZER).write_text(text, encoding='utf-8')
            if data.labels:
                labels = json.dumps(data.labels, ensure_ascii=False)
                (workdir / LABELS).write_text(labels, encoding='utf-8')
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


def check_labels(data: Data, workdir: pathlib.Path) -> None:
    """Raises UserError if a run was saved there whose classes are not those of the data."""
    if _is_saved(workdir) and read_labels(workdir) != data.labels:
        raise UserError(
            f'{workdir} holds a run with other classes than the data has now: bring back the data '
            'that it was trained on, or give another --workdir.'
        )


class TrainedRun(NamedTuple):
    """What a run's folder says beside its parameters."""

    config: ConfigDict
    model: TransformerConfig
    tokenizer: Tokenizer
    source_tokenizer: Tokenizer | None
    labels: tuple[str, ...]
    start_id: int | None = None  # that begins a target; None: the end-of-text token


def read_run(
    workdir: pathlib.Path, template: ConfigDict, overrides: Sequence[tuple[str, str]] = ()
) -> TrainedRun:
    """The run in a folder, with some fields of its config overridden.

    Args:
        template: see `read_config`.
        overrides: pairs of a field and a text, see `transformer.config_fields.override`.

    Raises:
        UserError: the folder holds no run, or the overrides do not leave its parameters as they
            are.
    """
    config = read_config(workdir, template)
    vocabularies = load_tokenizer(workdir), read_source_tokenizer(workdir), read_labels(workdir)
    trained = model_config(config, *vocabularies)
    for name, text in overrides:
        override(config, name, text)
    model = model_config(config, *vocabularies)
    if model != trained and parameter_shapes(model) != parameter_shapes(trained):
        raise UserError(
            f'--config.{overrides[0][0]}: the parameters in {workdir} are of another shape; '
            'override only what leaves them as they are.'
        )
    return TrainedRun(config, model, *vocabularies)


def restore_run(workdir: pathlib.Path, run: TrainedRun, average: int = 1) -> tuple[int, Any]:
    """The step of a run's newest checkpoint and its parameters, in host memory.

    Args:
        average: of so many of the newest checkpoints, the mean of the parameters.

    Raises:
        UserError: there is no such checkpoint.
    """
    config, shapes = run.config, parameter_shapes(run.model)
    like = jax.eval_shape(lambda: add_adapters(shapes, config.lora, config.seed))
    with Checkpoints(workdir / 'checkpoints') as checkpoints:
        params = checkpoints.restore_params(like, ema=config.train.ema_decay > 0, average=average)
        return checkpoints.require_step(), merge_adapters(params, adapter_scale(config.lora))


def read_tokenizer(workdir: pathlib.Path) -> Tokenizer | None:
    """The tokenizer of the run in a folder; None before its first checkpoint."""
    return load_tokenizer(workdir) if _is_saved(workdir) else None


def read_source_tokenizer(workdir: pathlib.Path) -> Tokenizer | None:
    """The tokenizer of a run's sources, if they have one of their own."""
    path = workdir / SOURCE_TOKENIZER
    return load_tokenizer(path) if path.is_file() else None


def read_labels(workdir: pathlib.Path) -> tuple[str, ...]:
    """The names of a run's classes, by their index; empty if it has none."""
    path = workdir / LABELS
    return tuple(json.loads(path.read_text(encoding='utf-8'))) if path.is_file() else ()


def _is_saved(workdir):
    """Whether the folder holds a checkpoint, finished or half-written."""
    checkpoints = workdir / 'checkpoints'
    steps = checkpoints.iterdir() if checkpoints.is_dir() else ()
    return any(step.name[0].isdigit() for step in steps)


def _depends_on_steps(config):
    schedule = config.schedule
    return schedule.decay_steps is None and schedule.name in ('cosine', 'linear')
