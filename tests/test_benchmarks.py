"""The benchmarks run from end to end in a tiny form, and what they count is right."""

import argparse
import importlib.metadata
import json
import pathlib
import sys
import time

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / 'benchmarks'))  # last: its sweep.py must not hide the script
# What takes long to import is imported where it is used: each contestant's process reads this file.

import attention  # noqa: E402
import decoding  # noqa: E402
import gpt2  # noqa: E402
import harness  # noqa: E402
import start_up  # noqa: E402

BENCHMARKS = {
    'attention': ['ours', 'jax.nn'],
    'training_step': ['ours', 'flax.linen'],
    'decoding': ['ours'],
    'compilation': ['ours, 1 layers', 'ours, 2 layers'],
    'remat': ['none', 'full', 'time, full / none'],
    'cross_entropy': ['ours, chunked', 'full logits', 'full logits, optax'],
    'input_pipeline': ['ours, stream', 'ours, examples', 'training step'],
    'loop_overhead': ['ours, the loop', 'a bare step'],
    'start_up': ['ours, train.py to the first step'],
}


@pytest.mark.slow
@pytest.mark.parametrize('name', BENCHMARKS)
def test_tiny_benchmark(name, run_python, tmp_path):
    options = ['--tiny', '--rounds=1', f'--only={name}', f'--out={tmp_path}']
    output = run_python('benchmarks/run.py', *options).stdout
    assert 'all benchmarks' in output
    assert (tmp_path / f'{name}.png').read_bytes().startswith(b'\x89PNG')
    results = json.loads((tmp_path / f'{name}.json').read_text())
    assert results['machine']['jax'] == importlib.metadata.version('jax')
    measured = {row['measured']: row['value'] for row in results['rows']}
    assert all(value > 0 for value in measured.values())
    assert set(BENCHMARKS[name]) <= set(measured)
    for package in 'torch', 'transformers':
        missing = f'{package} is not installed'
        if missing in output:
            pytest.skip(f'{missing}: the peers that need it are left out')
    same = [value for key, value in measured.items() if key.endswith('tokens as HF generate')]
    assert all(value == 1 for value in same)
    assert bool(same) == (name == 'decoding')


def test_every_benchmark_is_tested():
    import run

    assert set(run.NAMES) == set(BENCHMARKS)


def noting(folder, name, seconds):
    """A Job that writes its name to a file each time."""

    def run():
        with open(pathlib.Path(folder, 'order'), 'a') as file:
            file.write(name)
        time.sleep(harness.LEAST_SECONDS)
        return seconds

    return harness.Job(run, {'name': name})


def failing(message):
    raise ValueError(message)


def test_contestants_take_turns(tmp_path):
    jobs = {name: (noting, tmp_path, name, float(ord(name))) for name in 'abc'}
    found = harness.measure(jobs, rounds=4)
    # Once each to warm up; then each round begins with the next one, each turn with an untimed run.
    rounds = 'aabbcc' + 'bbccaa' + 'ccaabb' + 'aabbcc'
    assert (tmp_path / 'order').read_text() == 'abc' + rounds
    assert {name: one.seconds for name, one in found.items()} == {
        name: [float(ord(name))] * 4 for name in 'abc'
    }
    assert [one.facts['name'] for one in found.values()] == ['a', 'b', 'c']


def test_failing_contestant_ends_the_benchmark():
    with pytest.raises(SystemExit, match='no such thing'):
        harness.measure({'a': (failing, 'no such thing')}, rounds=1)


def touching(megabytes):
    return harness.Job(lambda: np.ones(megabytes << 20, np.uint8).sum())


@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='/proc tells the peak')
def test_peak_memory_is_that_of_the_run():
    worker = harness.Worker((touching, 64))
    worker.close()
    assert 60 << 20 < worker.peak_bytes < 80 << 20


@pytest.mark.parametrize(
    ('values', 'owed', 'met', 'share'),
    [
        ([1.0, 9.0, 1.4], '<= 1.4', 'yes', 1.0),
        ([1.5], '<= 1.4', 'NO', 1.4 / 1.5),
        ([2.0], '>= 4', 'NO', 0.5),
        ([5.0], '>= 4', 'yes', 1.25),
    ],
)
def test_row_compares_its_median_with_what_is_owed(values, owed, met, share):
    import report

    row = harness.row('work', 'ours', values, 'x', owed)
    assert row['value'] == np.median(values)
    assert row['met'] == met
    assert report._share(row) == pytest.approx(share)


@pytest.mark.parametrize('window', [None, 1, 3, 20])
def test_attention_counts_the_pairs_seen(window):
    T, args = 7, argparse.Namespace(batch=2, heads=3, head_dim=5)
    query, key = np.indices((T, T))
    pairs = ((key <= query) & (query - key < (window or T))).sum()
    expected = 7 * 2 * 5 * pairs * args.batch * args.heads  # seven products, multiply and add
    assert attention.flops(args, T, window) == expected


def test_roofline_of_decoding_counts_weights_once_and_every_row_of_the_cache():
    shape, parameters, rows = gpt2.TINY, 5000, 3
    reads = parameters - shape.length * shape.width
    expected = sum(
        4 * (reads + rows * shape.layers * 2 * shape.width * position) / 1e9
        for position in range(shape.length // 8, shape.length)
    )
    found = decoding.least_seconds(shape, rows, parameters, read=1e9, matmul=1e30)
    assert found == pytest.approx(expected)
    flops = [
        2 * rows * (reads + shape.layers * 2 * shape.width * position)
        for position in range(shape.length // 8, shape.length)
    ]
    found = decoding.least_seconds(shape, rows, parameters, read=1e30, matmul=1e9)
    assert found == pytest.approx(sum(flops) / 1e9)


def test_first_step_is_waited_for():
    lines = iter(['data: some\n', 'step 1/500  loss 7.6\n', 'step 2/500\n'])
    start_up.until_step(lines)
    assert next(lines) == 'step 2/500\n'
    with pytest.raises(RuntimeError, match='error: no such file'):
        start_up.until_step(['error: no such file\n'])


@pytest.mark.slow
def test_linen_peer_is_the_same_model():
    import jax

    from transformer.modules import Transformer

    shape = gpt2.TINY
    experiment = gpt2.make_ours(shape)
    params = jax.tree.map(
        lambda leaf: leaf + 0.05 * np.random.default_rng(leaf.size).normal(size=leaf.shape),
        experiment.initial_params(),
    )
    tokens, _ = gpt2.make_tokens(shape)
    expected = Transformer(experiment.model_config).apply({'params': params}, {'tokens': tokens})
    logits = gpt2.make_linen(shape).apply({'params': linen_params(params)}, tokens)
    np.testing.assert_allclose(logits, expected, atol=1e-4)


def linen_params(params):
    """Those of the peer, for a model of one layer."""
    decoder, layer = params['decoder'], params['decoder']['layer_0']
    return {
        'Embed_0': {'embedding': params['embedding']['table']},
        'Embed_1': {'embedding': decoder['position']['embedding']['table']},
        'Block_0': {
            'LayerNorm_0': layer['self_attention_norm'],
            'MultiHeadDotProductAttention_0': layer['self_attention'],
            'LayerNorm_1': layer['feed_forward_norm'],
            'Dense_0': layer['feed_forward']['up'],
            'Dense_1': layer['feed_forward']['down'],
        },
        'LayerNorm_0': decoder['final_norm'],
    }
