"""What the parts of gpu.py share: what the device can do at best, the clock, and the memory."""

import dataclasses
import pathlib
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

ROOT = pathlib.Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))  # for `transformer` and `configs`

# Dense bfloat16 FLOP/s and bytes/s of memory, by words in the device's name; the first that fit.
DEVICES = {
    'B200': (2250e12, 8.0e12),
    'H200': (989e12, 4.8e12),
    'H100 PCIe': (756e12, 2.0e12),
    'H100': (989e12, 3.35e12),
    'A100-SXM4-80GB': (312e12, 2.04e12),
    'A100': (312e12, 1.56e12),
    'L40S': (362e12, 0.86e12),
    'L4': (121e12, 0.3e12),
    'TPU v6 lite': (918e12, 1.64e12),
    'TPU v5 lite': (197e12, 0.82e12),
    'TPU v5': (459e12, 2.77e12),
    'TPU v4': (275e12, 1.23e12),
}
BUDGET = 240  # seconds; nothing is begun after that
LEAST_SECONDS = 0.3  # of a timing
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Bench:
    """What all parts share.

    Attributes:
        flops, bandwidth: of the device at best, in FLOP/s of bfloat16 and bytes/s.
        smoke: tiny sizes.
        started: by `time.monotonic`.
    """

    flops: float
    bandwidth: float
    smoke: bool
    started: float

    def in_time(self, what: str) -> bool:
        """Whether to begin with this; if not, says so."""
        left = time.monotonic() - self.started < BUDGET
        if not left:
            print(f'left out, for want of time: {what}', flush=True)
        return left


def seconds(run: Callable[[], Any]) -> float:
    """The time of one of many runs, queued together, after a first one that may compile."""
    jax.block_until_ready(run())
    started = time.perf_counter()
    jax.block_until_ready(run())
    count = max(1, int(LEAST_SECONDS / (time.perf_counter() - started)))
    started = time.perf_counter()
    for _ in range(count):
        results = run()
    jax.block_until_ready(results)
    return (time.perf_counter() - started) / count


def fits(run: Callable[[], Any]) -> Any:
    """What `run` returns, or None if it runs out of memory."""
    try:
        return run()
    except jax.errors.JaxRuntimeError as error:
        if 'RESOURCE_EXHAUSTED' not in str(error):
            raise
        return None


def best_rates(kind: str) -> tuple[float, float, str]:
    """FLOP/s and bytes/s of this kind of device, and whether they are its maker's or measured."""
    from transformer.flops import peak_flops

    for name, rates in DEVICES.items():
        if re.search(rf'\b{name}\b', kind):
            return *rates, 'specified'
    x = jnp.ones(2**24 if jax.default_backend() == 'cpu' else 2**28, jnp.float32)
    copy = jax.jit(lambda x: x + 1)
    return peak_flops('bfloat16'), 2 * x.nbytes / seconds(lambda: copy(x)), 'measured'
