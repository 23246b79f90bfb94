"""A whole split evaluated, every target token counted once."""

import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
from ml_collections import ConfigDict

from transformer.training.checkpoint import Checkpoints
from transformer.training.experiment import check_config, load_experiment
from transformer.training.parallel import DataParallel
from transformer.training.run_folder import read_tokenizer


def evaluate_run(config: ConfigDict, workdir: pathlib.Path) -> dict[str, float]:
    """Metrics of the newest checkpoint in a run's folder on its whole validation split.

    Raises:
        UserError: there is no checkpoint, or the config or data do not fit.
    """
    check_config(config)
    with Checkpoints(workdir / 'checkpoints') as checkpoints:
        step = checkpoints.require_step()
        experiment = load_experiment(config, read_tokenizer(workdir))
        params = experiment.trained_params(checkpoints)
    dataset, batch_size = experiment.data.validation, config.data.batch_size
    metrics = evaluate(experiment.eval_step(), params, dataset, experiment.parallel, batch_size)
    return {'step': step} | metrics


def evaluate(
    eval_step: Callable[[Any, Any], dict[str, jax.Array]],
    params: Any,
    dataset: Any,
    parallel: DataParallel,
    batch_size: int,
    num_batches: int = 0,
) -> dict[str, float]:
    """Metrics of the dataset's evaluation batches, see `means`.

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
    return means(total, dataset)


def means(sums: Mapping[str, float], dataset: Any) -> dict[str, float]:
    """Sums of a step as metrics: loss (nats a token), perplexity, accuracy, bits per byte, tokens.

    Bits per byte are the loss over the dataset's own ratio of bytes to tokens.
    """
    weight = max(sums['weight'], 1.0)
    loss = sums['loss'] / weight
    bytes_per_token = max(dataset.num_bytes, 1) / dataset.num_tokens
    return {
        'loss': loss,
        'perplexity': math.exp(loss) if loss < 700 else math.inf,
        'accuracy': sums['correct'] / weight,
        'bits_per_byte': loss / math.log(2) / bytes_per_token,
        'tokens': int(sums['weight']),
    }
