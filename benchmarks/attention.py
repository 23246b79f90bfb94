"""Times attention, forward and backward, against its peers, and measures their peak memory.

    python benchmarks/attention.py --lengths 256 1024 8192 --out runs/attention.json

All take turns in one process, and each cell is a median over rounds, so that what else the machine
does falls on all alike: read ratios, not times. torch is in the table if it is installed.
"""

import argparse
import concurrent.futures
import functools
import importlib.util
import json
import multiprocessing
import pathlib
import re
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

from transformer.functional import dot_product_attention
from transformer.training.reporting import print_table

NAMES = ['blockwise', 'xla', 'auto', 'jax.nn'] + ['torch'] * bool(importlib.util.find_spec('torch'))


def attention_of_jax(name, arrays, window):
    """A function that runs attention and its gradients and waits for them."""
    arguments = {'is_causal': True, 'local_window_size': (window - 1, 0) if window else None}
    attend = jax.nn.dot_product_attention
    if name != 'jax.nn':
        attend = functools.partial(
            dot_product_attention, implementation=None if name == 'auto' else name
        )

    def outputs(query, key, value, gradient):
        output, pull = jax.vjp(lambda *qkv: attend(*qkv, **arguments), query, key, value)
        return output, pull(gradient)

    arrays = [jnp.asarray(x) for x in arrays]
    compiled = jax.jit(outputs).lower(*arrays).compile()
    return lambda: jax.block_until_ready(compiled(*arrays))


def attention_of_torch(arrays, window):
    """The same by `scaled_dot_product_attention`."""
    import torch

    query, key, value, gradient = (torch.tensor(x).transpose(1, 2).contiguous() for x in arrays)
    inputs = [x.requires_grad_() for x in (query, key, value)]
    mask = None
    if window:
        distance = torch.arange(query.shape[2])[:, None] - torch.arange(query.shape[2])
        mask = (distance >= 0) & (distance < window)

    def run():
        output = torch.nn.functional.scaled_dot_product_attention(
            *inputs, attn_mask=mask, is_causal=mask is None
        )
        return torch.autograd.grad(output, inputs, gradient)

    return run


def attention(name, length, args):
    """What runs `name` once, on random inputs of this length."""
    shape = args.batch, length, args.heads, args.head_dim
    arrays = [
        np.random.default_rng(seed).normal(size=shape).astype(np.float32) for seed in range(4)
    ]
    if name == 'torch':
        return attention_of_torch(arrays, args.window)
    return attention_of_jax(name, arrays, args.window)


def peak_memory(name, length, args):
    """MiB by which one run raises the peak of this process's resident memory (Linux only)."""
    run = attention(name, length, args)
    pathlib.Path('/proc/self/clear_refs').write_text('5')  # the peak starts anew
    before = resident('VmRSS')
    run()
    return (resident('VmHWM') - before) / 1024


def resident(field):
    """kiB."""
    status = pathlib.Path('/proc/self/status').read_text()
    return int(re.search(rf'{field}:\s+(\d+) kB', status)[1])


def median_times(length, args):
    """Seconds by name, each the median over rounds in which all take turns."""
    runs = {name: attention(name, length, args) for name in args.names}
    calls = {}
    for name, run in runs.items():
        run()
        start = time.perf_counter()
        run()
        calls[name] = max(1, int(0.05 / (time.perf_counter() - start)))
    times = {name: [] for name in runs}
    for _ in range(args.rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            for _ in range(calls[name]):
                run()
            times[name].append((time.perf_counter() - start) / calls[name])
    return {name: statistics.median(values) for name, values in times.items()}


def table_rows(length, args):
    times = median_times(length, args)
    for name, seconds in times.items():
        row = {'length': length, 'implementation': name, 'ms': seconds * 1e3}
        row['of the fastest'] = seconds / min(times.values())
        if args.memory:
            context = multiprocessing.get_context('spawn')
            with concurrent.futures.ProcessPoolExecutor(1, context) as child:
                row['peak MiB'] = child.submit(peak_memory, name, length, args).result()
        yield row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--lengths', type=int, nargs='+', default=[256, 1024, 8192])
    parser.add_argument('--names', nargs='+', default=NAMES, choices=NAMES)
    parser.add_argument('--batch', type=int, default=1)
    parser.add_argument('--heads', type=int, default=8)
    parser.add_argument('--head_dim', type=int, default=64)
    parser.add_argument('--window', type=int, help='keys a query sees, its own included')
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--memory', action='store_true', help='measure peak memory as well')
    parser.add_argument('--out', type=pathlib.Path, help='JSON file to write')
    args = parser.parse_args()
    rows = [row for length in args.lengths for row in table_rows(length, args)]
    print_table('causal attention, float32, forward and backward', rows)
    if args.out:
        args.out.write_text(json.dumps(rows, indent=2) + '\n')


if __name__ == '__main__':
    main()
