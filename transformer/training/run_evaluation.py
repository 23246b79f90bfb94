"""A trained run evaluated on a whole split: the loss of its targets, and its own answers."""

import json
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from transformer.data import Pair, Tokenizer
from transformer.data.progress import progress
from transformer.errors import UserError
from transformer.interop import load_pretrained, read_pretrained
from transformer.interop.pretrained import Description
from transformer.training.adapters import merge_adapters
from transformer.training.checkpoint import Checkpoints
from transformer.training.evaluation import evaluate, means
from transformer.training.experiment import Experiment, check_config, load_experiment
from transformer.training.pretrained import (
    COMPUTING,
    adopt_architecture,
    require_tokenizer,
)
from transformer.training.run_folder import (
    check_labels,
    read_source_tokenizer,
    read_tokenizer,
)
from transformer.training.translation import Search, text_metrics, translate


class Evaluation(NamedTuple):
    """What `evaluate_run` found.

    Attributes:
        metrics: of the split.
        pairs, hypotheses: of a seq2seq run, every pair and what was decoded from its source.
    """

    metrics: dict[str, Any]
    pairs: list[Pair]
    hypotheses: list[str]


def evaluate_run(
    config: ConfigDict,
    workdir: pathlib.Path,
    split: str = 'validation',
    average: int = 1,
    search: Search | None = None,
) -> Evaluation:
    """Evaluates the newest checkpoint in a run's folder on a whole split.

    Args:
        split: 'validation' or 'test'.
        average: of so many of the newest checkpoints, the mean of the parameters.
        search: how a seq2seq run decodes; by default greedily.

    Raises:
        UserError: there is no such checkpoint or split, or the config or data do not fit.
    """
    check_config(config)
    with Checkpoints(workdir / 'checkpoints') as checkpoints:
        step = checkpoints.require_step()
        tokenizers = read_tokenizer(workdir), read_source_tokenizer(workdir)
        experiment = load_experiment(config, *tokenizers)
        check_labels(experiment.data, workdir)
        check_split(experiment, split)
        params = experiment.trained_params(checkpoints, average)
    evaluation = evaluate_split(experiment, params, split, search)
    return evaluation._replace(metrics={'step': step} | evaluation.metrics)


def evaluate_pretrained(
    config: ConfigDict,
    folder: pathlib.Path,
    split: str = 'validation',
    search: Search | None = None,
) -> Evaluation:
    """Evaluates a published model on a whole split of the data of a config.

    Args:
        folder: of Hugging Face's `transformers`, or a name on the hub.
        split, search: as of `evaluate_run`.

    Raises:
        UserError: as `load_pretrained` and `evaluate_run`.
    """
    config = adopt_architecture(config, folder, COMPUTING)
    check_config(config)
    computing = {name: config.model[name] for name in ('scan_layers', 'dtype', 'param_dtype')}
    described = read_pretrained(folder)
    tokenizer = as_published(config.task, described, folder)
    _, params, _ = load_pretrained(folder, **computing)
    experiment = load_experiment(config, tokenizer)
    check_split(experiment, split)
    if experiment.data.labels != described.labels:
        raise UserError(
            f'{folder} has the classes {", ".join(described.labels)}, and the data has '
            f'{", ".join(experiment.data.labels)}: fine-tune it with init_from first.'
        )
    return evaluate_split(experiment, experiment.parallel.replicate(params), split, search)


def as_published(task: str, described: Description, folder: pathlib.Path) -> Tokenizer:
    """The tokenizer of a published model, for rows that begin and end as it was trained.

    Raises:
        UserError: it has none, or our rows of this task begin or end otherwise.
    """
    tokenizer = require_tokenizer(described.tokenizer, folder)
    if task == 'seq2seq':
        return tokenizer.for_pairs(described.start_id)
    if task == 'span_corruption' and described.start_id not in (None, tokenizer.eos_id):
        raise UserError(
            f'The targets of {folder} begin with token {described.start_id}, and those of '
            'span_corruption with the end-of-text token: fine-tune it with init_from first.'
        )
    if task == 'classification' and any(tokenizer.template):
        raise UserError(
            f'{folder} reads a text between special tokens, and the rows of a split begin with the '
            'end-of-text token: fine-tune it with init_from first, or use generate.py.'
        )
    return tokenizer


def check_split(experiment: Experiment, split: str) -> None:
    """Raises UserError if the experiment's data has no such split."""
    if split == 'test' and experiment.data.test is None:
        raise UserError(
            'There is no test split: set data.test_path, or data.test_source_path and '
            'data.test_target_path.'
        )


def evaluate_split(
    experiment: Experiment, params: Any, split: str, search: Search | None
) -> Evaluation:
    """The loss on a split and, of a seq2seq experiment, its own answers; see `evaluate_run`."""
    dataset = getattr(experiment.data, split)
    task, batch_size = experiment.config.task, experiment.config.data.batch_size
    sums = evaluate(experiment.eval_step(), params, dataset, experiment.parallel, batch_size)
    metrics = means(sums, experiment.bytes_per_token(dataset))
    if task in ('masked_lm', 'classification'):
        metrics['constant_accuracy'] = constant_accuracy(dataset, batch_size)
    if task != 'seq2seq':
        return Evaluation(metrics, [], [])
    pairs = dataset.pairs()
    with progress('decoding', len(pairs)) as advance:
        hypotheses = decode(experiment, params, pairs, search or Search(), advance)
    references = [pair.target for pair in pairs]
    metrics |= {'pairs': len(pairs)} | text_metrics(hypotheses, references)
    return Evaluation(metrics, pairs, hypotheses)


def decode(
    experiment: Experiment,
    params: Any,
    pairs: list[Pair],
    search: Search,
    advance: Callable[[int], None] = lambda count: None,
) -> list[str]:
    """What a seq2seq experiment's model makes of the sources of some pairs; see `translate`."""
    data = experiment.data
    return translate(
        experiment.recipe.model,
        merge_adapters(params, experiment.recipe.adapter_scale),
        [pair.source for pair in pairs],
        data.tokenizer,
        data.source_tokenizer,
        search,
        advance,
    )


def decoding_metrics(experiment: Experiment, params: Any, count: int) -> dict[str, float]:
    """The numbers of `text_metrics` for `count` validation pairs, spread over all, read greedily.

    They cost a search each, so that training looks at a part only.
    """
    pairs = experiment.data.validation.pairs()
    count = min(count, len(pairs))
    pairs = [pairs[number * len(pairs) // count] for number in range(count)]
    search = Search(max_new_tokens=experiment.config.data.length)
    hypotheses = decode(experiment, jax.device_get(params), pairs, search)
    metrics = text_metrics(hypotheses, [pair.target for pair in pairs])
    return {name: value for name, value in metrics.items() if type(value) is float}


def constant_accuracy(dataset: Any, batch_size: int) -> float:
    """The accuracy of the best answer that never changes: the share of the commonest target."""
    counts = np.zeros(1)
    for batch in dataset.evaluation_batches(batch_size):
        more = np.bincount(batch['targets'].ravel(), batch['weights'].ravel())
        size = max(len(counts), len(more))
        counts = np.pad(counts, (0, size - len(counts))) + np.pad(more, (0, size - len(more)))
    return float(counts.max() / max(counts.sum(), 1))


def write_decoded(path: pathlib.Path, evaluation: Evaluation) -> None:
    """Writes every source, reference and hypothesis, one JSON object a line."""
    with open(path, 'w', encoding='utf-8') as file:
        for pair, hypothesis in zip(evaluation.pairs, evaluation.hypotheses, strict=True):
            record = {'source': pair.source, 'reference': pair.target, 'hypothesis': hypothesis}
            file.write(json.dumps(record, ensure_ascii=False) + '\n')
