"""A tiny experiment for sweeps."""

import pytest

from configs import base


@pytest.fixture(scope='session')
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp('corpus')
    path = folder / 'text.txt'
    path.write_text('the quick brown fox jumps over the lazy dog. ' * 100)
    return path


@pytest.fixture(scope='module')
def config(corpus):
    config = base.get_config()
    config.data.path = (str(corpus),)
    config.data.cache_dir = str(corpus.parent / 'cache')
    config.data.tokenizer = 'chars'
    config.data.length = 16
    config.data.batch_size = 4
    config.model.num_layers = 1
    config.model.embed_dim = 16
    config.model.num_heads = 2
    config.model.mlp_dim = 32
    config.model.scan_layers = False
    config.schedule.warmup_steps = 5
    config.train.steps = 12
    config.train.eval_every = 6
    config.train.eval_batches = 2
    config.train.peak_flops = 1e11
    return config
