"""Causal attention, forward and backward, against its peers: time and peak memory.

    python benchmarks/attention.py --lengths 256 1024 8192

Peak memory is that of a first run beyond the inputs, the gradients included. Three parts: all
contestants at some lengths, a sliding window against full causal attention, and a long sequence,
for its memory alone.
"""

import argparse
import functools
from collections.abc import Iterator

import numpy as np
from harness import Job, Row, Worker, installed, measure, over, row, run_benchmark, time_rows
from rates import contestants, reached

NAMES = ['ours', 'ours, blockwise', 'ours, xla', 'jax.nn', 'torch']
DEFAULT = ['ours', 'jax.nn', 'torch']
TINY = {'lengths': [64], 'long': 256, 'window_length': 64, 'heads': 2, 'head_dim': 8}
PRODUCTS = 7  # of [T, T] size: two forward; backward, in memory linear in T, five
MIB = 2**20
X_NAME = 'T, tokens'


def make_attention(
    name: str, batch: int, length: int, heads: int, head_dim: int, window: int | None
) -> Job:
    """Output and gradients of attention on random float32 inputs.

    Args:
        name: one of NAMES.
        window: keys that a query sees, its own included; None: all up to its own.
    """
    make = _torch if name == 'torch' else functools.partial(_jax, name)
    # What a library allocates once, at its first run, is no memory of attention.
    make(_arrays(batch, 16, heads, head_dim), window)()
    return Job(make(_arrays(batch, length, heads, head_dim), window))


def _arrays(*shape):
    generators = map(np.random.default_rng, range(4))
    return [generator.normal(size=shape).astype(np.float32) for generator in generators]


def _jax(name, arrays, window):
    import jax
    import jax.numpy as jnp

    from transformer.functional import dot_product_attention

    arguments = {'is_causal': True, 'local_window_size': (window - 1, 0) if window else None}
    attend = jax.nn.dot_product_attention
    if name != 'jax.nn':
        _, _, implementation = name.partition(', ')
        attend = functools.partial(dot_product_attention, implementation=implementation or None)

    def outputs(query, key, value, gradient):
        output, pull = jax.vjp(lambda *qkv: attend(*qkv, **arguments), query, key, value)
        return output, pull(gradient)

    arrays = [jnp.asarray(x) for x in arrays]  # [B, T, N, H]
    compiled = jax.jit(outputs).lower(*arrays).compile()

    def run():
        jax.block_until_ready(compiled(*arrays))

    return run


def _torch(arrays, window):
    import torch

    arrays = [torch.tensor(x).transpose(1, 2).contiguous() for x in arrays]  # [B, N, T, H]
    inputs, gradient = [x.requires_grad_() for x in arrays[:3]], arrays[3]
    mask = None
    if window:
        index = torch.arange(arrays[0].shape[2])
        distance = index[:, None] - index  # [T, S]
        mask = (distance >= 0) & (distance < window)

    def run():
        output = torch.nn.functional.scaled_dot_product_attention(
            *inputs, attn_mask=mask, is_causal=mask is None
        )
        torch.autograd.grad(output, inputs, gradient)

    return run


def flops(args: argparse.Namespace, length: int, window: int | None) -> float:
    """Of the products, for the keys that are seen alone."""
    reach = min(window or length, length)
    pairs = reach * (reach + 1) / 2 + (length - reach) * reach
    return PRODUCTS * 2 * args.batch * args.heads * args.head_dim * pairs


def rows(args: argparse.Namespace) -> Iterator[Row]:
    names = [name for name in args.names if name != 'torch' or installed('torch')]
    shape = args.heads, args.head_dim
    for length in args.lengths:
        jobs = {n: (make_attention, n, args.batch, length, *shape, args.window) for n in names}
        found = measure(jobs | contestants('matmul', tiny=args.tiny), args.rounds)
        yield from length_rows(args, length, found)
    if args.window_length:
        yield from window_rows(args, shape)
    if args.long:
        worker = Worker((make_attention, 'ours', args.batch, args.long, *shape, args.window))
        worker.close()
        if worker.peak_bytes is not None:
            more = {'x': args.long, 'x_name': X_NAME}
            mib = worker.peak_bytes / MIB
            yield row(f'T={args.long}', 'ours', mib, 'MiB, peak', f'<= {2e9 / MIB:.0f}', **more)


def length_rows(args: argparse.Namespace, length: int, found: dict) -> Iterator[Row]:
    work, matmul = f'T={length}', found.pop('matmul')
    yield from time_rows(work, found, x=length, x_name=X_NAME)
    for name, one in found.items():
        if one.peak_bytes is not None:
            mib = one.peak_bytes / MIB
            yield row(work, name, mib, 'MiB, peak', x=length, x_name=X_NAME)
    if 'ours' not in found:
        return
    ours, long = found['ours'], length >= 8192
    owed = {'torch': '<= 1.4' if long else '<= 1.2', 'jax.nn': '' if long else '<= 1.0'}
    for name in found.keys() & owed.keys():
        yield row(work, f'time, ours / {name}', over(ours, found[name]), 'x', owed[name])
    if 'torch' in found and ours.peak_bytes is not None:
        ratio = ours.peak_bytes / max(found['torch'].peak_bytes, 1)
        yield row(work, 'memory, ours / torch', ratio, 'x', '<= 1.0' if long else '')
    share = reached(ours, matmul, flops(args, length, args.window))
    yield row(work, 'ours, of the matmul rate', share, 'of the best')


def window_rows(args: argparse.Namespace, shape: tuple[int, int]) -> Iterator[Row]:
    length, window = args.window_length, 16 if args.tiny else 256
    jobs = {
        'ours': (make_attention, 'ours', args.batch, length, *shape, None),
        f'ours, window {window}': (make_attention, 'ours', args.batch, length, *shape, window),
    }
    found = measure(jobs | contestants('matmul', tiny=args.tiny), args.rounds)
    matmul = found.pop('matmul')
    work, (full, local) = f'T={length}', found.values()
    yield from time_rows(work, found, x=length, x_name=X_NAME)
    yield row(work, f'time, window {window} / causal', over(local, full), 'x', '<= 0.125')
    share = reached(local, matmul, flops(args, length, window))
    yield row(work, f'ours, window {window}, of the matmul rate', share, 'of the best')


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--lengths', type=int, nargs='+', default=[256, 1024, 8192])
    parser.add_argument('--names', nargs='+', default=DEFAULT, choices=NAMES)
    parser.add_argument('--batch', type=int, default=1)
    parser.add_argument('--heads', type=int, default=8)
    parser.add_argument('--head_dim', type=int, default=64)
    parser.add_argument('--window', type=int, help='keys a query sees, its own included')
    parser.add_argument(
        '--window_length', type=int, default=16384, help='T of window against causal; 0: none'
    )
    parser.add_argument('--long', type=int, default=65536, help='T of a run for memory; 0: none')


if __name__ == '__main__':
    title = 'causal attention, float32, forward and backward'
    run_benchmark(__file__, title, rows, add_options, TINY)
