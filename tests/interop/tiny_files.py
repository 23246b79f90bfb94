"""Tiny published models as files, whole or with some fields and tensors changed."""

import copy

from tiny_models import read_golden, write_model

from transformer.interop import FAMILIES
from transformer.interop.pretrained import read_config

MODELS, _ = read_golden()


def publish(folder, name, config=(), tensors=()):
    """The folder of a tiny model with some fields of its config.json and some tensors changed.

    None takes a field or a tensor away.
    """
    golden = copy.deepcopy(MODELS[name])
    golden['config'] |= dict(config)
    golden['tensors'] |= dict(tensors)
    for part in golden['config'], golden['tensors']:
        for key in [key for key, value in part.items() if value == 'absent']:
            del part[key]
    return write_model(folder, golden)


def published_config(name, **changes):
    """Our config of a tiny model whose config.json has some fields changed."""
    fields = MODELS[name]['config'] | changes
    fields = {key: value for key, value in fields.items() if value != 'absent'}
    return read_config(FAMILIES[fields['model_type']], fields, MODELS[name]['tensors'])
