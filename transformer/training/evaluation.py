"""A whole split evaluated, every target token counted once."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax

from transformer.parallel import DataParallel


def evaluate(
    eval_step: Callable[[Any, Any], dict[str, jax.Array]],
    params: Any,
    dataset: Any,
    parallel: DataParallel,
    batch_size: int,
    num_batches: int = 0,
) -> dict[str, float]:
    """The step's sums over the dataset's evaluation batches; see `means`.

    Args:
        eval_step: from `DataParallel.evaluate`.
        batch_size: rows over all devices of all processes, rounded up so that they divide it; the
            last batch is padded.
        num_batches: at most so many, of rows spread over the split; 0: all.
    """
    total: dict[str, float] = {}
    batch_size = parallel.round_up(batch_size)
    batches = dataset.evaluation_batches(batch_size, num_batches, *parallel.process)
    for batch in batches:
        sums = jax.device_get(eval_step(params, parallel.split(batch)))
        total = {name: total.get(name, 0.0) + float(value) for name, value in sums.items()}
    return total


def means(sums: Mapping[str, float], bytes_per_token: float | None) -> dict[str, float]:
    """Sums of a step as metrics: loss (nats a target), perplexity, accuracy, targets.

    And bits per byte, if the targets spell a text, of so many bytes a token.
    """
    weight = max(sums['weight'], 1.0)
    loss = sums['loss'] / weight
    metrics = {
        'loss': loss,
        'perplexity': math.exp(loss) if loss < 700 else math.inf,
        'accuracy': sums['correct'] / weight,
        'tokens': int(sums['weight']),
    }
    if bytes_per_token is not None:
        metrics['bits_per_byte'] = loss / math.log(2) / bytes_per_token
    return metrics
