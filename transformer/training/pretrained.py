"""Published models in the place of runs: to start training from, to evaluate and to use."""

import copy
import dataclasses
import json
import pathlib
from collections.abc import Sequence

from ml_collections import ConfigDict

from transformer.config import TransformerConfig, model_fields
from transformer.data import Tokenizer
from transformer.errors import UserError
from transformer.interop import read_pretrained
from transformer.interop.hub import is_hub_name
from transformer.training.objectives import MODELS
from transformer.training.run_folder import TrainedRun

# Fields of the model that say how it computes, and those that say what is made of its features:
# both are the experiment's, not the published model's.
COMPUTING = ('dtype', 'param_dtype', 'scan_layers', 'remat', 'attention_implementation')
HEAD = ('head', 'num_classes', 'pooling', 'pooler')


def is_pretrained(path: str | pathlib.Path) -> bool:
    """Whether this names a folder of Hugging Face's `transformers`, and none of a run.

    'owner/model', where there is no folder 'owner', names a model on the hub.
    """
    folder = pathlib.Path(path).expanduser()
    if not folder.parent.exists():
        return is_hub_name(path)
    try:
        return 'model_type' in json.loads((folder / 'config.json').read_text(encoding='utf-8'))
    except (OSError, ValueError):
        return False


def adopt_architecture(
    config: ConfigDict, folder: str | pathlib.Path, own: Sequence[str] = COMPUTING + HEAD
) -> ConfigDict:
    """The config with the architecture of the published model in a folder or on the hub.

    Args:
        own: fields of the model that stay as they are.

    Raises:
        UserError: another field of the model is set to what the published model has not.
    """
    model = read_pretrained(folder).config
    config = copy.deepcopy(config)
    values = {name: v for name, v in dataclasses.asdict(model).items() if name not in own}
    _adopt(config.model, values, model_fields(TransformerConfig), folder, 'model.')
    return config


def pretrained_run(folder: pathlib.Path, config: ConfigDict) -> TrainedRun:
    """A published model as the run of a config, whose task is set to one that it does.

    Raises:
        UserError: as `read_pretrained`, or it has no tokenizer.
    """
    model, tokenizer, labels, start_id = read_pretrained(folder)
    config = copy.deepcopy(config)
    config.task = next(
        (
            task
            for task, (topology, heads) in MODELS.items()
            if topology == model.topology and model.head in heads
        ),
        config.task,
    )
    return TrainedRun(config, model, require_tokenizer(tokenizer, folder), None, labels, start_id)


def require_tokenizer(tokenizer: Tokenizer | None, folder: str | pathlib.Path) -> Tokenizer:
    """Raises UserError if it is None."""
    if tokenizer is None:
        raise UserError(f'{folder} has no tokenizer.json: save it there with the model.')
    return tokenizer


def _adopt(section, values, defaults, folder, prefix):
    for name, value in values.items():
        if isinstance(value, dict):
            _adopt(section[name], value, defaults[name], folder, f'{prefix}{name}.')
            continue
        if section[name] not in (defaults[name], value):
            raise UserError(
                f'{prefix}{name} is {value!r} in {folder}, not {section[name]!r}: leave it out of '
                'a config that starts from there.'
            )
        section[name] = value
