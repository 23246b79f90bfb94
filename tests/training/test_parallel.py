"""Eight virtual CPU devices against one, in child processes."""

import json

import pytest

from transformer.errors import UserError
from transformer.training.parallel import DataParallel

# Trains five steps with dropout on rows with uneven numbers of targets, then evaluates.
CODE = """
import json, sys
import jax, numpy as np
from configs import base
from transformer.training.experiment import load_experiment
from transformer.training.evaluation import evaluate

config = base.get_config()
config.data.path = (sys.argv[1],)
config.data.cache_dir = sys.argv[2]
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
config.train.accumulation = int(sys.argv[3])
experiment = load_experiment(config)
state, update = experiment.initial_state(), experiment.train_step()
losses = []
for n in range(5):
    batch = experiment.parallel.split(experiment.data.train.batch(n))
    state, sums = update(state, batch)
    losses.append(float(sums['loss'] / sums['weight']))
for leaf in jax.tree.leaves(state):
    shards = [np.asarray(shard.data) for shard in leaf.addressable_shards]
    assert len(shards) == jax.local_device_count()
    assert all(np.array_equal(shard, shards[0]) for shard in shards)
metrics = [
    evaluate(experiment.eval_step(), state.params, experiment.data.validation,
             experiment.parallel, size)
    for size in (8, 24)
]
norms = [float(np.linalg.norm(leaf)) for leaf in jax.tree.leaves(state.params)]
print(json.dumps({'losses': losses, 'norms': norms, 'metrics': metrics}))
"""


@pytest.fixture(scope='module')
def results(run_python, tmp_path_factory):
    folder = tmp_path_factory.mktemp('parallel')
    lines = [json.dumps({'text': 'word ' * (n % 7 + 1)}) for n in range(150)]
    (folder / 'text.jsonl').write_text('\n'.join(lines))
    arguments = str(folder / 'text.jsonl'), str(folder / 'cache')

    def run(devices, accumulation):
        result = run_python('-c', CODE, *arguments, str(accumulation), devices=devices)
        return json.loads(result.stdout)

    return {'one': run(1, 1), 'eight': run(8, 1), 'eight of two': run(8, 2)}


@pytest.mark.parametrize('other', ['eight', 'eight of two'])
def test_devices_and_accumulation_do_not_change_training(results, other):
    assert results[other]['losses'] == pytest.approx(results['one']['losses'], rel=1e-5)
    assert results[other]['norms'] == pytest.approx(results['one']['norms'], rel=1e-5)


@pytest.mark.parametrize('other', ['eight', 'eight of two'])
def test_evaluation_counts_every_target_once(results, other):
    small, large = results['one']['metrics']
    assert small['tokens'] == large['tokens'] > 0
    for metrics in (large, *results[other]['metrics']):
        assert metrics == pytest.approx(small, rel=1e-5)


def test_batches_that_do_not_divide_are_refused():
    parallel = DataParallel(1)
    assert parallel.check_batch(12, accumulation=4) == 3
    with pytest.raises(UserError, match=r'data\.batch_size 10 .* multiple of 4'):
        parallel.check_batch(10, accumulation=4)
    with pytest.raises(UserError, match=r'parallel\.devices is 99'):
        DataParallel(99)
