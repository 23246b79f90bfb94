"""Training that starts from the parameters of an earlier run or of a published model."""

import pathlib
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from ml_collections import ConfigDict

from transformer.config import TransformerConfig
from transformer.errors import UserError
from transformer.interop import load_pretrained
from transformer.modules import stack_layers, unstack_layers
from transformer.training.pretrained import is_pretrained
from transformer.training.run_folder import read_run, restore_run


def warm_start(
    params: Any, model: TransformerConfig, folder: pathlib.Path, template: ConfigDict
) -> tuple[Any, str]:
    """Fresh parameters with those of a run in their place, wherever it has one of that name.

    Scanned and looped layers are the same parameters. A parameter that the run lacks (a new head)
    stays fresh; one that only the run has (an old head) is left out.

    Args:
        params: fresh ones of `model`.
        folder: of the earlier run, whose newest checkpoint is read, or of a published model.
        template: see `read_config`.

    Returns:
        The parameters, in host memory, and a line that says what came from where.

    Raises:
        UserError: no run is there, or its parameters are of other shapes.
    """
    if is_pretrained(folder):
        _, trained, _ = load_pretrained(folder, param_dtype=model.param_dtype)
        origin = str(folder)
    else:
        run = read_run(folder, template)
        step, trained = restore_run(folder, run)
        trained, origin = unstack_layers(trained, run.model), f'{folder}, step {step}'
    trained = flatten_dict(trained, sep='/')
    fresh = flatten_dict(unstack_layers(params, model), sep='/')
    shared = fresh.keys() & trained.keys()
    for name in sorted(shared):
        if fresh[name].shape != trained[name].shape:
            raise UserError(
                f'init_from {folder}: {name} is {list(trained[name].shape)} there and '
                f'{list(fresh[name].shape)} here: give the model its sizes.'
            )
    if not shared:
        raise UserError(f'init_from {folder} has no parameter in common with the model.')
    taken = {name: np.asarray(trained[name], fresh[name].dtype) for name in shared}
    merged = unflatten_dict(fresh | taken, sep='/')
    if model.scan_layers:
        merged = stack_layers(merged, model)
    text = f'{len(shared)} parameters of {origin}'
    for names, what in (
        (sorted(fresh.keys() - shared), 'fresh'),
        (sorted(trained.keys() - shared), 'left out'),
    ):
        text += f'; {what}: {", ".join(names)}' if names else ''
    return merged, text
