"""What the machine can do at best: contestants that multiply, read and copy."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from harness import Job, Measurement

SIZE = 2048  # of the matrices that are multiplied
MEGABYTES = 256  # read or copied: many times what caches hold


def make_matmul(size: int) -> Job:
    """A square product in float32, by XLA or numpy's BLAS, whichever is the faster here."""
    import jax
    import jax.numpy as jnp

    a = np.random.default_rng(0).normal(size=(size, size)).astype(np.float32)
    b, product = jnp.asarray(a), jax.jit(jnp.matmul)
    ways = [lambda: product(b, b).block_until_ready(), lambda: np.matmul(a, a)]
    return Job(min(ways, key=_seconds), {'flops': 2.0 * size**3})


def make_read(megabytes: int) -> Job:
    """A product of a vector and a matrix, or a sum, that reads every byte once."""
    import jax
    import jax.numpy as jnp

    matrix = jnp.ones((1024, megabytes * 256), jnp.float32)
    vector = jnp.ones(1024)
    product, total = jax.jit(jnp.dot), jax.jit(jnp.sum)
    ways = [
        lambda: product(vector, matrix).block_until_ready(),
        lambda: total(matrix).block_until_ready(),
    ]
    return Job(min(ways, key=_seconds), {'bytes': float(matrix.nbytes)})


def make_copy(megabytes: int) -> Job:
    """Into memory that was written before; each byte is read and written."""
    source = np.ones(megabytes << 20, np.uint8)
    target = np.ones_like(source)
    return Job(lambda: np.copyto(target, source), {'bytes': 2.0 * source.nbytes})


def _seconds(run: Callable[[], Any]) -> float:
    run()
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def contestants(*names: str, tiny: bool = False) -> dict[str, tuple[Any, ...]]:
    """Those of these names: 'matmul', 'read', 'copy'."""
    made = {
        'matmul': (make_matmul, 128 if tiny else SIZE),
        'read': (make_read, 1 if tiny else MEGABYTES),
        'copy': (make_copy, 1 if tiny else MEGABYTES),
    }
    return {name: made[name] for name in names}


def rate(measurement: Measurement) -> float:
    """FLOP/s or bytes/s, the median."""
    facts = measurement.facts
    return (facts['flops'] if 'flops' in facts else facts['bytes']) / measurement.median


def reached(measurement: Measurement, best: Measurement, amount: float) -> list[float]:
    """The share of the best rate, in each round, of a run that does `amount` FLOPs or bytes."""
    most = best.facts.get('flops') or best.facts['bytes']
    return [
        (amount / seconds) / (most / least)
        for seconds, least in zip(measurement.seconds, best.seconds, strict=True)
    ]
