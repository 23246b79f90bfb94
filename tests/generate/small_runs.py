"""Folders of runs of small models, as train.py leaves them."""

import functools
import json
import pathlib

import jax
import numpy as np
import optax

from configs import base
from transformer.config_files import config_to_json
from transformer.data import load_tokenizer
from transformer.data.tokenizers import train_tokenizer
from transformer.modules import Transformer
from transformer.parallel import DataParallel
from transformer.training.checkpoint import Checkpoints
from transformer.training.experiment import init_params
from transformer.training.run_folder import read_run
from transformer.training.state import TrainState

SMALL = {'num_layers': 2, 'embed_dim': 8, 'num_heads': 2, 'mlp_dim': 16, 'max_length': 32}


def make_run(workdir, task='causal_lm', source_text=None, labels=(), special=(), **model):
    """A folder as train.py leaves it, with two checkpoints."""
    workdir = pathlib.Path(workdir)
    config = base.get_config()
    config.task = task
    config.model.update(SMALL | model)
    (workdir / 'config.json').write_text(config_to_json(config))
    train_tokenizer('bytes', [], 0, special).save(workdir)
    if source_text:
        text = train_tokenizer('chars', [source_text]).to_json()
        (workdir / 'source_tokenizer.json').write_text(text)
    if labels:
        (workdir / 'labels.json').write_text(json.dumps(labels))
    with Checkpoints(workdir / 'checkpoints', keep=2) as checkpoints:
        for step in 0, 1:
            params = make_params(make_model(workdir), seed=step)
            state = TrainState.create(params, optax.sgd(1.0)).replace(step=np.int32(step))
            checkpoints.save(DataParallel().replicate(state))


def make_model(workdir):
    return Transformer(read_run(workdir, base.get_config()).model)


@functools.cache
def make_params(model, seed):
    random = np.random.default_rng(seed)
    shapes = jax.eval_shape(lambda: init_params(model, seed=0))
    return jax.tree.map(lambda x: random.normal(0, 0.5, x.shape).astype(x.dtype), shapes)


def newest_model(workdir):
    """The model with the parameters that the script should find, and the tokenizer."""
    model = make_model(workdir)
    params = jax.device_put(make_params(model, seed=1), jax.devices()[0])
    return model, params, load_tokenizer(workdir)
