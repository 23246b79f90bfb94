"""Trains five steps on all devices, evaluates, saves; prints what came out as JSON.

parallel_run.py TEXT CACHE ACCUMULATION CHECKPOINTS: run by test_parallel.py in child processes with
different numbers of devices.
"""

import json
import pathlib
import sys

import jax
import numpy as np

from configs import base
from transformer.training.checkpoint import Checkpoints
from transformer.training.evaluation import evaluate, means
from transformer.training.experiment import load_experiment


def make_config(text, cache, accumulation=1):
    """A model with dropout on rows with very different numbers of targets."""
    config = base.get_config()
    config.data.path = (text,)
    config.data.cache_dir = cache
    config.data.tokenizer = 'bytes'
    config.data.packing = 'examples'
    config.data.length = 12
    config.data.batch_size = 16
    config.model.num_layers = 1
    config.model.embed_dim = 16
    config.model.num_heads = 2
    config.model.mlp_dim = 32
    config.dropout.residual = 0.1
    config.dropout.attention = 0.1
    config.train.accumulation = accumulation
    return config


def norms(params):
    return [float(np.linalg.norm(leaf)) for leaf in jax.tree.leaves(params)]


def main(text, cache, accumulation, folder):
    experiment = load_experiment(make_config(text, cache, int(accumulation)))
    parallel, data = experiment.parallel, experiment.data
    state, update = experiment.initial_state(), experiment.train_step()
    losses = []
    for n in range(5):
        state, sums = update(state, parallel.split(data.train.batch(n)))
        losses.append(float(sums['loss'] / sums['weight']))
    for leaf in jax.tree.leaves(state):
        shards = [np.asarray(shard.data) for shard in leaf.addressable_shards]
        assert len(shards) == jax.local_device_count()
        assert all(np.array_equal(shard, shards[0]) for shard in shards), 'devices disagree'
    with Checkpoints(pathlib.Path(folder), keep=1) as checkpoints:
        checkpoints.save(state)
    step = experiment.eval_step()
    metrics = [
        means(evaluate(step, state.params, data.validation, parallel, rows), bytes_per_token=1.0)
        for rows in (8, 24)
    ]
    print(json.dumps({'losses': losses, 'norms': norms(state.params), 'metrics': metrics}))


if __name__ == '__main__':
    main(*sys.argv[1:])
