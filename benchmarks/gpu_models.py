"""The parts of gpu.py that run whole models: training steps and decoding."""

import functools
import json
import pathlib
import tempfile
import time
from collections.abc import Iterator

import jax
import numpy as np
from gpu_timing import Bench, Row, fits
from ml_collections import ConfigDict

from configs import gpt2_small
from transformer.config import transformer_config
from transformer.decoding.generation import generate, unrolled
from transformer.decoding.padding import bucket
from transformer.flops import count_parameters, training_flops_per_token
from transformer.modules import Transformer, init_cache
from transformer.training.experiment import init_params, load_experiment

# Training.


def small_config() -> ConfigDict:
    config = gpt2_small.get_config()
    config.train.accumulation = 1
    config.loss.chunk = 8192
    return config


def large_config() -> ConfigDict:
    """1.3B parameters: the sizes of GPT-3 XL (Brown et al. 2020, table 2.1), with 16 heads."""
    config = small_config()
    config.model.num_layers = 24
    config.model.embed_dim = 2048
    config.model.num_heads = 16
    config.model.mlp_dim = 8192
    config.model.remat = 'full'
    return config


def tiny_config() -> ConfigDict:
    config = small_config()
    config.model.vocab_size = 300
    config.model.num_layers = 2
    config.model.embed_dim = 64
    config.model.num_heads = 2
    config.model.mlp_dim = 128
    config.model.max_length = 128
    config.data.length = 64
    config.loss.chunk = 0
    return config


def write_corpus(path: pathlib.Path, documents: int) -> None:
    """Documents of random letters, of 200 to 4000 bytes: rows of 1024 hold parts of several."""
    random = np.random.default_rng(0)
    with path.open('w') as file:
        for size in random.integers(200, 4000, documents):
            letters = random.integers(97, 123, size, np.uint8).tobytes().decode()
            file.write(json.dumps({'text': letters}) + '\n')


def training_rows(bench: Bench) -> Iterator[Row]:
    models = {'124M': (small_config, (32, 16, 8)), '1.3B': (large_config, (16, 8, 4))}
    if bench.smoke:
        models = {'tiny': (tiny_config, (4,))}
    with tempfile.TemporaryDirectory() as folder:
        corpus = pathlib.Path(folder, 'corpus.jsonl')
        write_corpus(corpus, 100 if bench.smoke else 2000)
        for name, (make, batches) in models.items():
            config = make()
            config.data.path = (str(corpus),)
            config.data.cache_dir = folder
            config.data.tokenizer = 'bytes'
            for batch in batches:
                if not bench.in_time(f'training of the {name} model in batches of {batch}'):
                    return
                config.data.batch_size = batch
                measured = fits(functools.partial(measure_training, config, bench))
                if measured is not None:
                    yield {'model': name, **measured}
                    break


def measure_training(config: ConfigDict, bench: Bench) -> Row:
    """Updates on one device, with their batches already there."""
    config.parallel.devices = 1
    experiment = load_experiment(config)
    update, parallel = experiment.train_step(), experiment.parallel
    batches = [parallel.split(experiment.data.train.batch(n)) for n in range(4)]
    state = experiment.initial_state()
    for batch in batches[:2]:  # compiles
        state, sums = update(state, batch)
    jax.block_until_ready(state)
    count = 2 if bench.smoke else 10
    started = time.perf_counter()
    for n in range(count):
        state, sums = update(state, batches[n % len(batches)])
    loss = float(sums['loss'] / sums['weight'])
    jax.block_until_ready(state)
    time_of_one = (time.perf_counter() - started) / count
    model, length = experiment.model_config, config.data.length
    tokens = config.data.batch_size * length
    flops = training_flops_per_token(model, length)
    return {
        'parameters': count_parameters(model),
        'batch': config.data.batch_size,
        'length': length,
        'remat': model.remat,
        'ms a step': 1e3 * time_of_one,
        'tokens/s': tokens / time_of_one,
        'MFU': tokens * flops / time_of_one / bench.flops,
        'loss': loss,
    }


# Decoding.


def decoding_rows(bench: Bench) -> Iterator[Row]:
    config = tiny_config() if bench.smoke else small_config()
    model = Transformer(transformer_config(config.model))
    params = jax.jit(init_params, static_argnums=(0, 1))(model, 0)
    model, params = unrolled(model, params)
    prompt, new = (8, 16) if bench.smoke else (64, 448)
    for batch in (1, 2) if bench.smoke else (1, 32):
        if not bench.in_time(f'decoding of {batch} rows'):
            return
        prompts = [[1 + (row + i) % 50 for i in range(prompt)] for row in range(batch)]
        run = functools.partial(generate, model, params, prompts, max_new_tokens=new)
        run()  # compiles
        started = time.perf_counter()
        run()
        time_of_all = time.perf_counter() - started
        cache = jax.eval_shape(
            lambda batch=batch: init_cache(
                model.config, batch, bucket(prompt + new, model.config.max_length)
            )
        )
        # A step reads every parameter and the whole cache once.
        read = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves((params, cache)))
        rate = batch * new / time_of_all
        row = {'batch': batch, 'new tokens': new, 'MiB a step': read / 2**20}
        row |= {'ms a step': 1e3 * time_of_all / new, 'tokens/s': rate}
        yield row | {'of the bandwidth': rate * read / batch / bench.bandwidth}
