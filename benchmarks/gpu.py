"""What an accelerator does with this code, in at most five minutes of one device.

    python benchmarks/gpu.py --out gpu.json

Four parts, the first a check, on which the others rest:

    values      each implementation of attention here against float64, forward and backward
    attention   its TFLOP/s, forward and backward, causal, in bfloat16
    training    tokens a second and utilisation of GPT-2 124M and a 1.3B model, by the train step of
                a run from a config, on packed rows
    decoding    tokens a second of the 124M, and the share of what memory bandwidth allows

What five minutes do not suffice for is left out, and said so. --smoke runs tiny sizes, on any
device, to show that the script works.
"""

import argparse
import functools
import json
import pathlib
import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from gpu_models import decoding_rows, training_rows
from gpu_timing import Bench, Row, best_rates, fits, seconds

from transformer.functional import dot_product_attention
from transformer.functional.accelerators import KERNELS
from transformer.training.reporting import print_table

LARGEST_LOGITS = 2**31  # for which the plain implementation is still timed
ERRORS = {'float32': 1e-5, 'bfloat16': 2**-6}  # allowed, of the largest element
PRODUCTS = 7  # of [T, T] size: two forward; backward, in memory linear in T, five


def names_here() -> list[str]:
    """The implementations of attention that this device has."""
    return ['xla', 'blockwise'] + [name for name, kernel in KERNELS.items() if kernel.is_here()]


# Values.


def random_inputs(shape, dtype):
    """Query, key, value and a gradient of the output, each of the shape [B, T, N, H]."""
    random = np.random.default_rng(0)
    return [jnp.asarray(random.normal(size=shape), dtype) for _ in range(4)]


def results(implementation, arguments, query, key, value, gradient):
    """Output and the gradients of query, key and value."""
    attend = functools.partial(dot_product_attention, implementation=implementation, **arguments)
    output, pull = jax.vjp(attend, query, key, value)
    return output, *pull(gradient)


def value_rows(bench: Bench) -> Iterator[Row]:
    T = 32 if bench.smoke else 512
    ids = np.minimum(np.arange(T) * 5 // T + 1, 5) % 5  # four segments, and padding at the end
    cases = {
        'causal': {'is_causal': True},
        'packed': {'is_causal': True, 'query_segment_ids': ids},
        'window': {'is_causal': True, 'local_window_size': (T // 3, 0)},
    }

    @functools.partial(jax.jit, static_argnums=0)
    def all_results(name, *arrays):
        return [results(name, arguments, *arrays) for arguments in cases.values()]

    for dtype, allowed in ERRORS.items():
        arrays = random_inputs((2, T, 4, 64), dtype)
        with jax.enable_x64(True):
            exact = all_results('xla', *(x.astype(jnp.float64) for x in arrays))
        for name in names_here():
            if name == 'cudnn' and dtype == 'float32':
                continue  # not of its dtypes
            with jax.default_matmul_precision('highest'):
                found = all_results(name, *arrays)
            for case, mine, others in zip(cases, found, exact, strict=True):
                errors = [relative_error(x, y) for x, y in zip(mine, others, strict=True)]
                row = {'dtype': dtype, 'case': case, 'implementation': name}
                row |= {'allowed error': f'{allowed:.1e}', 'output, of it': errors[0] / allowed}
                row |= {'gradients, of it': max(errors[1:]) / allowed}
                yield row | {'right': 'yes' if max(errors) <= allowed else 'NO'}


def relative_error(x, y) -> float:
    """The largest, of the largest element of `y`."""
    x, y = np.asarray(x, np.float64), np.asarray(y)
    return float(np.abs(x - y).max() / np.abs(y).max())


# Attention.


def attention_rows(bench: Bench) -> Iterator[Row]:
    lengths = (64,) if bench.smoke else (1024, 4096, 16384)
    tokens, N, H = (128, 2, 64) if bench.smoke else (16384, 16, 128)
    for T in lengths:
        B = tokens // T
        arrays = random_inputs((B, T, N, H), 'bfloat16')
        packed = {'query_segment_ids': np.arange(T) // (T // 4) + 1}
        runs = [(name, 'one document', {}) for name in names_here()]
        runs += [(name, 'packed', packed) for name in names_here() if name in KERNELS]
        for name, rows, more in runs:
            too_large = name == 'xla' and B * N * T * T > LARGEST_LOGITS
            if too_large or not bench.in_time(f'{name}, {rows} of {T}'):
                continue
            run = jax.jit(functools.partial(results, name, {'is_causal': True, **more}))
            time_of_one = fits(functools.partial(seconds, functools.partial(run, *arrays)))
            if time_of_one is not None:
                # Of packed rows too the whole triangle counts: read their rate as a time.
                rate = PRODUCTS * B * N * H * T * (T + 1) / time_of_one
                row = {'length': T, 'batch': B, 'implementation': name, 'rows': rows}
                row |= {'ms': 1e3 * time_of_one, 'TFLOP/s': rate / 1e12}
                yield row | {'of the peak': rate / bench.flops}


# The whole.

PARTS = {
    'values': value_rows,
    'attention': attention_rows,
    'training': training_rows,
    'decoding': decoding_rows,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--parts', nargs='+', default=list(PARTS), choices=PARTS)
    parser.add_argument('--smoke', action='store_true', help='tiny sizes, on any device')
    parser.add_argument('--out', type=pathlib.Path, help='JSON file to write')
    args = parser.parse_args()
    started = time.monotonic()
    kind = jax.devices()[0].device_kind
    flops, bandwidth, source = best_rates(kind)
    bench = Bench(flops, bandwidth, args.smoke, started)
    print(f'{kind}: {flops / 1e12:.4g} TFLOP/s, {bandwidth / 1e9:.4g} GB/s, {source}', flush=True)
    report = {'device': kind, 'jax': jax.__version__, 'smoke': args.smoke}
    report |= {'peak FLOP/s': flops, 'bytes/s': bandwidth, 'peak': source, 'parts': {}}
    for part in args.parts:
        rows = report['parts'][part] = list(PARTS[part](bench))
        if rows:
            print_table(part, rows)
        print(f'{part}: done after {time.monotonic() - started:.0f} s', flush=True)
        if args.out:  # after each part, so that none is lost with a later one
            args.out.write_text(json.dumps(report, indent=2) + '\n')
    if any(row['right'] == 'NO' for row in report['parts'].get('values', ())):
        raise SystemExit('error: an implementation of attention is wrong here.')


if __name__ == '__main__':
    main()
