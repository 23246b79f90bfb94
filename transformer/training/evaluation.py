"""A whole split evaluated, every target token counted once."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax

from transformer.training.parallel import DataParallel


def evaluate(
    eval_step: Callable[[Any, Any], dict[str, jax.Array]],
    params: Any,
    dataset: Any,
    parallel: DataParallel,
    batch_size: int,
    num_batches: int = 0,
    on_batch: Callable[[int], None] = lambda done: None,
) -> dict[str, float]:
    """Metrics of the dataset's evaluation batches, see `means`.

    Args:
        eval_step: from `DataParallel.evaluate`.
        batch_size: rows over all devices of all processes; the last batch is padded.
        num_batches: of the start of the split; 0: all.
        on_batch: called with the number of batches done.
    """
    total: dict[str, float] = {}
    for done, batch in enumerate(dataset.evaluation_batches(batch_size, num_batches), 1):
        sums = jax.device_get(eval_step(params, parallel.split(parallel.own_rows(batch))))
        total = {name: total.get(name, 0.0) + float(value) for name, value in sums.items()}
        on_batch(done)
    return means(total, dataset)


def means(sums: Mapping[str, float], dataset: Any) -> dict[str, float]:
    """Sums of a step as metrics: loss (nats a token), perplexity, accuracy, bits per byte, tokens.

    Bits per byte are the loss over the dataset's own ratio of bytes to tokens.
    """
    weight = max(sums['weight'], 1.0)
    loss = sums['loss'] / weight
    bytes_per_token = dataset.num_bytes / dataset.num_tokens
    return {
        'loss': loss,
        'perplexity': math.exp(loss) if loss < 700 else math.inf,
        'accuracy': sums['correct'] / weight,
        'bits_per_byte': loss / math.log(2) / bytes_per_token,
        'tokens': int(sums['weight']),
    }
