"""The training loop: batches in, updates, and every so often a log, an evaluation, a checkpoint."""

import collections
import pathlib
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
from ml_collections import ConfigDict

from transformer.errors import UserError
from transformer.flops import peak_flops, training_flops_per_token
from transformer.interop import read_pretrained
from transformer.training.checkpoint import Checkpoints
from transformer.training.evaluation import evaluate, means
from transformer.training.experiment import (
    Experiment,
    check_batch,
    check_config,
    load_experiment,
)
from transformer.training.pretrained import (
    adopt_architecture,
    is_pretrained,
    require_tokenizer,
)
from transformer.training.reporting import MetricsWriter, Progress, plot_curves
from transformer.training.run_evaluation import decoding_metrics
from transformer.training.run_folder import (
    check_run,
    read_run,
    read_source_tokenizer,
    read_tokenizer,
    write_run,
)
from transformer.training.state import TrainState
from transformer.training.warm_start import warm_start


def train(config: ConfigDict, workdir: pathlib.Path) -> dict[str, float]:
    """Trains an experiment, or resumes it where it stopped, and returns its last evaluation.

    Writes to the folder `config.json`, `tokenizer.json`, `metrics.jsonl`, `tensorboard/`,
    `curves.png` and `checkpoints/`. SIGTERM and SIGINT save a checkpoint and end the loop.

    Raises:
        UserError: a mistake in the config or data, or an update that was not finite.
    """
    if config.init_from is not None and is_pretrained(config.init_from):
        config = adopt_architecture(config, config.init_from)
    check_config(config)
    check_run(config, workdir)
    check_batch(config)
    experiment = load_experiment(config, *_earlier_tokenizers(config, workdir))
    messages = [experiment.data.describe()]
    write_run(config, experiment.data, workdir)
    keep = config.train.keep_checkpoints
    with Checkpoints(workdir / 'checkpoints', keep) as checkpoints:
        if checkpoints.latest_step is not None:
            state = experiment.restored_state(checkpoints)
        elif config.init_from is None:
            state = experiment.initial_state()
        else:
            params, message = _earlier_params(experiment)
            state = experiment.initial_state(params)
            messages.append(message)
        with (
            MetricsWriter(workdir, start_step=int(state.step)) as writer,
            Progress(config.train.steps, start=int(state.step)) as progress,
        ):
            progress.message('\n'.join(messages))
            run = Run(experiment, workdir, checkpoints, writer, progress)
            return run.until(config.train.steps, state)


def _earlier_tokenizers(config, workdir):
    """Those that the run, or the run that it starts from, was trained with; None: none was."""
    tokenizer = read_tokenizer(workdir)
    folder = workdir
    if tokenizer is None and config.init_from is not None:
        folder = pathlib.Path(config.init_from)
        if is_pretrained(folder):
            tokenizer = require_tokenizer(read_pretrained(folder).tokenizer, folder)
        else:
            tokenizer = read_run(folder, config).tokenizer
    return tokenizer, None if tokenizer is None else read_source_tokenizer(folder)


def _earlier_params(experiment):
    config = experiment.config
    fresh = jax.jit(experiment.initial_params)()
    return warm_start(fresh, experiment.model_config, pathlib.Path(config.init_from), config)


class Run:
    """A run in progress: what the loop reports to, and the numbers since the last report."""

    def __init__(
        self,
        experiment: Experiment,
        workdir: pathlib.Path,
        checkpoints: Checkpoints,
        writer: MetricsWriter,
        progress: Progress,
    ):
        self._experiment = experiment
        self._config = experiment.config
        self._workdir = workdir
        self._warned = False
        self._checkpoints = checkpoints
        self._writer = writer
        self._progress = progress
        self._eval_step = experiment.eval_step()
        self._flops = training_flops_per_token(experiment.model_config, self._config.data.length)
        self._peak = self._config.train.peak_flops or peak_flops(experiment.model_config.dtype)
        self._peak *= len(experiment.parallel.devices) * experiment.parallel.process[1]

    def until(self, steps: int, state: TrainState) -> dict[str, float]:
        """Trains up to this step and returns the last evaluation; {} if stopped before one.

        The host waits for the device only where it logs, evaluates or saves.
        """
        config, step = self._config.train, int(state.step)
        self._first_step = step
        update = self._experiment.train_step()
        evaluation, sums = {}, []
        started = time.perf_counter()  # of the steps in `sums`, pauses left out
        with _stop_signals() as stop:
            for batch in self._batches(step, steps):
                state, step_sums = update(state, batch)
                sums.append(step_sums)
                step += 1
                stopping = bool(stop)  # read once: a signal may come at any line below
                last = step == steps or stopping
                if step % config.log_every == 0 or last:
                    self._log(step, state, sums, started)
                    sums, started = [], time.perf_counter()
                evaluates = not stopping and (_due(step, config.eval_every) or last)
                saves = _due(step, config.checkpoint_every) or last
                if evaluates or saves:
                    jax.block_until_ready(state)
                    paused = time.perf_counter()
                    evaluation = self._evaluate(step, state) if evaluates else evaluation
                    if saves:
                        self._save(state)
                    started += time.perf_counter() - paused
                if stopping:
                    self._progress.message(f'stopped after step {step}; run again to resume')
                    return evaluation
        return evaluation or self._evaluate(step, state)  # none: the run was complete

    def _batches(self, start: int, stop: int) -> Iterator[dict[str, jax.Array]]:
        """Batches on the devices, one ahead of the update that reads it."""
        parallel = self._experiment.parallel
        index, count = parallel.process
        source = self._experiment.data.train.batches(start, index, count)
        ready = collections.deque()
        for _ in range(start, stop):
            ready.append(parallel.split(next(source)))
            if len(ready) == 2:
                yield ready.popleft()
        yield from ready

    def _log(self, step: int, state: TrainState, sums: list[dict[str, Any]], started: float):
        sums = jax.device_get(sums)  # waits for the device
        seconds = time.perf_counter() - started
        total = {name: sum(float(s[name]) for s in sums) for name in sums[0]}
        metrics = means(total, self._experiment.bytes_per_token(self._experiment.data.train))
        data = self._config.data
        rate = len(sums) * data.batch_size * data.length / seconds
        metrics |= {
            'learning_rate': float(sums[-1]['learning_rate']),
            'gradient_norm': float(sums[-1]['gradient_norm']),
            'tokens_per_second': rate,
            'flops_utilisation': rate * self._flops / self._peak,
        }
        self._progress.update(step, **metrics)  # first: the writer's first line imports TensorBoard
        self._writer.write(step, 'train', metrics)
        self._checkpoints.check_for_errors()
        self._check_finite(state)

    def _evaluate(self, step: int, state: TrainState) -> dict[str, float]:
        experiment, config = self._experiment, self._config
        dataset, params = experiment.data.validation, state.best_params
        sums = evaluate(
            self._eval_step,
            params,
            dataset,
            experiment.parallel,
            config.data.batch_size,
            config.train.eval_batches,
        )
        metrics = means(sums, experiment.bytes_per_token(dataset))
        if config.train.decode_pairs:
            metrics |= decoding_metrics(experiment, params, config.train.decode_pairs)
        self._writer.write(step, 'eval', metrics)
        self._progress.update(step, eval_loss=metrics['loss'])
        return metrics

    def _save(self, state: TrainState):
        self._check_finite(state)
        self._checkpoints.save(state)
        plot_curves(self._workdir)

    def _check_finite(self, state: TrainState):
        bad = int(state.bad_step)
        if bad < self._first_step:  # none, or one that an earlier process went on from
            return
        text = f'the loss or gradient of step {bad + 1} is not finite; its update was skipped'
        if self._config.train.on_nonfinite == 'stop':
            raise UserError(
                f'{text}. Lower optimizer.learning_rate, or set train.on_nonfinite=continue.'
            )
        if not self._warned:
            self._progress.message(text)
            self._warned = True


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


@contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """A list that SIGTERM or SIGINT appends itself to, instead of killing the process."""
    received: list[int] = []
    previous = {
        number: signal.signal(number, lambda number, frame: received.append(number))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
