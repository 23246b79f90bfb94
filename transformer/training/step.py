"""One update and one evaluation as pure functions: what every training run and sweep executes."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from transformer.functional import (
    correct_predictions,
    cross_entropy,
    sum_over_chunks,
    weighted_sum,
)
from transformer.modules import Dropout, Transformer
from transformer.training.adapters import merge_adapters, stop_frozen
from transformer.training.objectives import EVALUATION
from transformer.training.optimizers import (
    clip_by_global_norm,
    keep_unless,
    make_optimizer,
)
from transformer.training.schedules import learning_rate
from transformer.training.state import TrainState

Batch = Mapping[str, jax.Array]
Hyperparameters = Mapping[str, Any]
MOST_LOGITS = 2**25  # that exist at a time, if a recipe does not say; 128 MiB of float32
CORRUPTION_SITE = 3  # of a row's key; dropout in the model has 0, 1 and 2


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What is fixed when the step is compiled; all other choices are numbers in `hparams`.

    Attributes:
        corruption: (batch, keys, hparams) -> batch, what the task hides; see `make_corruption`.
        optimizer, schedule: names in OPTIMIZERS and SCHEDULES.
        no_decay: regular expression of the parameter paths that are not decayed.
        frozen: of those that are not trained; '': all are.
        adapter_scale: of the adapters among the parameters, see `merge_adapters`.
        accumulation: micro-batches whose gradients are summed.
        chunk: tokens whose logits exist at a time, see `tokens_at_a_time`; 0: all.
    """

    model: Transformer
    corruption: Callable[..., Batch] | None = None
    optimizer: str = 'adamw'
    schedule: str = 'cosine'
    no_decay: str = r'(scale|bias)$'
    frozen: str = ''
    adapter_scale: float = 0.0
    accumulation: int = 1
    chunk: int | None = None


def hyperparameters(config: ConfigDict) -> dict[str, float]:
    """The numbers of an experiment that a step takes as arguments, flat.

    A Python 0.0 skips its computation; a traced value (in a sweep) never does.
    """
    optimizer = config.optimizer.to_dict()
    names = ('learning_rate', 'weight_decay', 'b1', 'b2', 'eps', 'clip_norm', 'adam_factor')
    return {name: optimizer[name] for name in names} | {
        'seed': config.seed,
        'warmup_steps': config.schedule.warmup_steps,
        'decay_steps': config.schedule.decay_steps or config.train.steps,
        'end_factor': config.schedule.end_factor,
        'label_smoothing': config.loss.label_smoothing,
        'z_loss': config.loss.z_loss,
        'dropout_attention': config.dropout.attention,
        'dropout_residual': config.dropout.residual,
        'dropout_embedding': config.dropout.embedding,
        'mask_rate': config.corruption.rate,
        'mask_replace': config.corruption.replace,
        'mask_random': config.corruption.random,
        'ema_decay': config.train.ema_decay,
    }


def train_step(
    state: TrainState,
    batch: Batch,
    hparams: Hyperparameters,
    recipe: Recipe,
    axis_name: str | None = None,
) -> tuple[TrainState, dict[str, jax.Array]]:
    """One update. Sums first, one division last: devices and micro-batches cannot bias it.

    Args:
        batch: [B, T] arrays; under pmap this device's part of the global batch.
        axis_name: of the pmap over devices, if any.

    Returns:
        The new state, and the sums of `loss_sums` over the global batch with the `learning_rate`
        and `gradient_norm` (before clipping) of this update. If the loss or the gradient is not
        finite, only `step` and `bad_step` of the state change.
    """
    grads, sums = _gradient_sums(state, batch, hparams, recipe, axis_name)
    total = jnp.maximum(sums['weight'], 1.0)
    grads = jax.tree.map(lambda g, p: (g / total).astype(p.dtype), grads, state.params)
    grads, norm = clip_by_global_norm(grads, hparams['clip_norm'])
    rate = learning_rate(recipe.schedule, state.step, hparams)
    optimizer = make_optimizer(recipe.optimizer, hparams, rate, recipe.no_decay, recipe.frozen)
    good = jnp.isfinite(norm) & jnp.isfinite(sums['objective'])
    applied = good & (sums['weight'] > 0)  # a batch without targets changes nothing
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params, applied=applied)
    params = keep_unless(applied, optax.apply_updates(state.params, updates), state.params)
    # From the parameters as they are written: of the old ones XLA would keep a copy until then.
    params = jax.lax.optimization_barrier(params)
    ema = average_params(state.ema, params, state.step, hparams['ema_decay'])
    ema = keep_unless(applied, ema, state.ema)
    first_bad = ~good & (state.bad_step < 0)
    state = TrainState(
        step=state.step + 1,
        params=params,
        opt_state=opt_state,
        bad_step=jnp.where(first_bad, state.step, state.bad_step),
        ema=ema,
    )
    return state, sums | {'learning_rate': rate, 'gradient_norm': norm}


def eval_step(
    params: Any, batch: Batch, recipe: Recipe, axis_name: str | None = None
) -> dict[str, jax.Array]:
    """The sums of `loss_sums` over the global batch, without dropout, smoothing and z-loss.

    Args:
        batch: as in `train_step`, with `row` [B], each row's number in the split, for a corruption.
    """
    if recipe.corruption is not None:
        batch = corrupted(batch, row_keys(0, 0, batch['row']), EVALUATION, recipe)
    sums = loss_sums(params, batch, {'label_smoothing': 0.0, 'z_loss': 0.0}, recipe, None)[1]
    return all_sum(sums, axis_name)


def corrupted(batch: Batch, keys: jax.Array, hparams: Hyperparameters, recipe: Recipe) -> Batch:
    """The batch as the task shows it to the model; keys [B] are those of the rows."""
    keys = jax.vmap(jax.random.fold_in, (0, None))(keys, CORRUPTION_SITE)
    return recipe.corruption(batch, keys, hparams)


def average_params(ema: Any, params: Any, step: jax.Array, decay: Any) -> Any:
    """The exponential moving average of the parameters with those of one more step; None: none.

    Early on it forgets faster, by (1 + step) / (10 + step), so that the initial parameters do not
    stay in it.
    """
    if ema is None:
        return None
    decay = jnp.minimum(decay, (1 + step) / (10 + step))
    return jax.tree.map(
        lambda old, new: old + (1 - decay).astype(old.dtype) * (new - old), ema, params
    )


def loss_sums(
    params: Any,
    batch: Batch,
    hparams: Hyperparameters,
    recipe: Recipe,
    dropout: Dropout | None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The objective summed over the batch's weighted targets, and the sums to report.

    Returns:
        The objective's sum, and the float32 sums `objective` (with label smoothing and z-loss),
        `loss` (the plain cross-entropy in nats), `correct` and `weight`.
    """
    params = merge_adapters(params, recipe.adapter_scale)
    model, targets = recipe.model, batch['targets']
    features, _ = model.apply({'params': params}, batch, dropout, method='features')
    reader, is_classifier = 'logits', model.config.head == 'classifier'
    if is_classifier:
        segment_ids = batch.get('segment_ids')
        features = model.apply({'params': params}, features, segment_ids, dropout, method='pooled')
        reader = 'class_logits'

    numbers = {name: hparams[name] for name in ('label_smoothing', 'z_loss')}
    features = features.reshape(-1, features.shape[-1])  # [B T, D]
    labels = targets.reshape(-1), batch['weights'].reshape(-1)
    size = tokens_at_a_time(recipe.chunk, targets.size, model.config.vocab_size)
    if size < targets.size and not is_classifier:
        return _chunk_sums(params, features, labels, numbers, model, size)
    logits = model.apply({'params': params}, features, method=reader)
    return _logit_sums(logits, *labels, **numbers)


def _chunk_sums(params, features, labels, numbers, model, size):
    """The sums of `loss_sums` for features [N, D], without the logits of all N tokens at once."""
    traced = {name: value for name, value in numbers.items() if isinstance(value, jax.Array)}
    bias = {'bias': params['head']['bias']} if model.config.head_bias else {}

    def sums(products, bias, labels, traced):
        logits = model.apply({'params': {'head': bias}}, products, method='logits_of_products')
        return _logit_sums(logits, *labels, **(numbers | traced))

    operands = model.apply({'params': params}, features, method='logits_operands')
    return sum_over_chunks(sums, size, *operands, bias, labels, traced)


def tokens_at_a_time(chunk: int | None, tokens: int, vocab_size: int) -> int:
    """Tokens of a micro-batch whose logits exist at a time, a divisor of their number.

    Args:
        chunk: what the user asked for, of which the largest common divisor is taken; 0: all; None:
            at most as many as have `MOST_LOGITS`, or all if no divisor comes within 4 x of that.
    """
    if chunk is not None:
        return math.gcd(chunk, tokens)  # gcd(0, n) is n
    most = min(max(MOST_LOGITS // vocab_size, 1), tokens)
    size = next(size for size in range(most, 0, -1) if tokens % size == 0)
    return size if 4 * size >= most else tokens


def _logit_sums(logits, targets, weights, label_smoothing, z_loss):
    """The objective and the sums of `loss_sums` over some tokens, of logits [N, V]."""
    losses = cross_entropy(logits, targets, label_smoothing=label_smoothing, z_loss=z_loss)
    objective, weight = weighted_sum(losses, weights)
    plain = objective
    if not _is_zero(label_smoothing) or not _is_zero(z_loss):
        plain, _ = weighted_sum(cross_entropy(jax.lax.stop_gradient(logits), targets), weights)
    correct, _ = weighted_sum(correct_predictions(logits, targets), weights)
    return objective, {'objective': objective, 'loss': plain, 'correct': correct, 'weight': weight}


def row_keys(seed: Any, step: jax.Array, rows: jax.Array) -> jax.Array:
    """[B] keys, each a function of (seed, step, global row) and of nothing else."""
    key = jax.random.fold_in(jax.random.key(seed), step)
    return jax.vmap(jax.random.fold_in, (None, 0))(key, rows)


def all_sum(tree: Any, axis_name: str | None) -> Any:
    """The sum over the devices of a pmap; of a single device or outside of one, the argument."""
    # Not left to XLA, which copies what one device adds up.
    alone = axis_name is None or jax.lax.axis_size(axis_name) == 1
    return tree if alone else jax.lax.psum(tree, axis_name)


def _gradient_sums(state, batch, hparams, recipe, axis_name):
    """Gradients and sums over all micro-batches and devices."""
    local_rows = batch['tokens'].shape[0]
    rows = jnp.arange(local_rows)
    if axis_name is not None:
        rows += jax.lax.axis_index(axis_name) * local_rows

    def gradient(batch, rows):
        keys = row_keys(hparams['seed'], state.step, rows)
        if recipe.corruption is not None:
            batch = corrupted(batch, keys, hparams, recipe)
        dropout = _dropout(hparams, keys)

        def objective(params):
            trained = stop_frozen(params, recipe.frozen)
            return loss_sums(trained, batch, hparams, recipe, dropout)

        return jax.grad(objective, has_aux=True)(state.params)

    if recipe.accumulation == 1:
        result = gradient(batch, rows)
    else:
        micro = jax.tree.map(
            lambda a: a.reshape(recipe.accumulation, -1, *a.shape[1:]), (dict(batch), rows)
        )
        first = jax.eval_shape(gradient, *jax.tree.map(lambda a: a[0], micro))
        zeros = jax.tree.map(
            lambda a: jnp.zeros(a.shape, jnp.promote_types(a.dtype, jnp.float32)), first
        )
        result, _ = jax.lax.scan(
            lambda total, part: (jax.tree.map(jnp.add, total, gradient(*part)), None), zeros, micro
        )
    return all_sum(result, axis_name)


def _dropout(hparams, keys):
    rates = {
        rate: hparams[f'dropout_{rate}']
        for rate in ('attention', 'residual', 'embedding')
        if not _is_zero(hparams[f'dropout_{rate}'])
    }
    return Dropout(keys, **rates) if rates else None


def _is_zero(value):
    """Whether a number is 0 when the step is traced, so that its use can be left out."""
    return isinstance(value, (int, float)) and value == 0
