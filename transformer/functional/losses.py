"""The losses of language models, one number a token; sums come with the sum of their weights.

Means are left to the caller, who adds the sums over micro-batches and devices and divides once.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike


def cross_entropy(
    logits: Array,
    targets: Array,
    *,
    label_smoothing: ArrayLike = 0.0,
    z_loss: ArrayLike = 0.0,
) -> Array:
    """Negative log-likelihood of each target, in nats.

    log Z - (1 - e) logits[target] - e mean(logits) + z_loss (log Z)^2,  Z = sum exp(logits)

    With label smoothing e, every one of the V tokens gets e / V of the target distribution and
    the target 1 - e more (Szegedy et al. 2016; torch's convention, not e / (V - 1)). The z-loss
    keeps log Z near 0 (Chowdhery et al. 2022, section 5).

    Args:
        logits: [..., V].
        targets: [...] integer ids. An id outside [0, V) gives NaN; `weighted_sum` ignores it
            where the weight is 0.
        label_smoothing: in [0, 1], a number or a traced scalar. A Python 0 costs nothing.
        z_loss: coefficient, a number or a traced scalar. A Python 0 costs nothing.

    Returns:
        [...] float32, or float64 for float64 logits. Low-precision logits are summed in float32.

    Raises:
        ValueError: shapes that do not match.
    """
    if logits.shape[:-1] != targets.shape:
        raise ValueError(
            f'logits {list(logits.shape)} are not a row for each of targets {list(targets.shape)}.'
        )
    losses, lead, log_z = _row_statistics(logits, targets)
    if not _is_zero(label_smoothing):
        losses += label_smoothing * lead
    if not _is_zero(z_loss):
        # Where log Z is not finite, the loss is not either; the derivative of the square would
        # then make NaN even of a cotangent of zero.
        losses += z_loss * jnp.square(jnp.where(jnp.isfinite(log_z), log_z, jnp.nan))
    return losses


def weighted_sum(losses: Array, weights: ArrayLike) -> tuple[Array, Array]:
    """The sum of weights * losses, and the sum of the weights.

    A weight of 0 removes its loss from the sum and from every gradient, even a NaN.

    Args:
        losses: [...].
        weights: [...] of the same shape, numbers or booleans.

    Returns:
        Two scalars in the dtype of the losses.

    Raises:
        ValueError: shapes that differ.
    """
    weights = jnp.asarray(weights, losses.dtype)
    if weights.shape != losses.shape:
        raise ValueError(
            f'weights {list(weights.shape)} are not one for each of losses {list(losses.shape)}.'
        )
    return jnp.sum(jnp.where(weights == 0, 0, losses) * weights), jnp.sum(weights)


def correct_predictions(logits: Array, targets: Array) -> Array:
    """[...] boolean: True where the largest of the logits [..., V], the first of equals, is the
    target's; False where any of them is NaN.
    """
    # What argmax would say, in a pass of comparisons: CPUs do these several at a time.
    index, targets = jnp.arange(logits.shape[-1]), targets[..., None]
    target = _target_logits(logits, targets)
    return jnp.where(index < targets, logits < target, logits <= target).all(-1)


@jax.custom_vjp
def _row_statistics(logits: Array, targets: Array) -> tuple[Array, Array, Array]:
    """log Z - target's logit, target's logit - mean logit, and log Z, of each row.

    The derivative is written by hand because it then takes one pass, which reads the logits and
    writes their gradient; XLA's own stores the exponentials and scatters into them.
    """
    return _row_statistics_fwd(logits, targets)[0]


def _row_statistics_fwd(logits, targets):
    x = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))  # [..., V]
    target = _target_logits(x, targets[..., None])  # [..., 1]
    # With the target's logit the maximum is what it was, but waits for that to be read: then the
    # exponentials can be written over the logits. It is subtracted twice below, so XLA does not
    # join it, with a subtraction, to the product behind the logits, which then takes 1.7 x as long.
    largest = jnp.fmax(jnp.max(x, axis=-1, keepdims=True), target)  # [..., 1]
    total = jnp.sum(jnp.exp(x - largest), axis=-1, keepdims=True)  # [..., 1]
    log_total = jnp.log(total)
    statistics = (
        log_total - (target - largest),  # an offset of all logits costs no digits
        target - jnp.mean(x, axis=-1, keepdims=True),
        log_total + largest,
    )
    return tuple(a[..., 0] for a in statistics), (logits, targets, largest, total)


def _row_statistics_bwd(residuals, cotangents):
    logits, targets, largest, total = residuals
    d_loss, d_lead, d_log_z = (d[..., None] for d in cotangents)  # [..., 1]
    # The exponentials of above, which XLA does not make again where both are of one program.
    exponentials = jnp.exp(logits.astype(total.dtype) - largest)
    gradient = (d_loss + d_log_z) / total * exponentials - d_lead / logits.shape[-1]
    is_target = jnp.arange(logits.shape[-1]) == targets[..., None]
    gradient += jnp.where(is_target, d_lead - d_loss, 0)
    # A row that nothing depends on has a zero gradient, though its logits be NaN.
    gradient = jnp.where((d_loss == 0) & (d_lead == 0) & (d_log_z == 0), 0, gradient)
    return gradient.astype(logits.dtype), np.zeros(targets.shape, jax.dtypes.float0)


_row_statistics.defvjp(_row_statistics_fwd, _row_statistics_bwd)


def _target_logits(logits: Array, targets: Array) -> Array:
    """[..., 1] of logits [..., V] those of targets [..., 1]; NaN for an id outside [0, V)."""
    valid = (targets >= 0) & (targets < logits.shape[-1])
    return jnp.where(valid, jnp.take_along_axis(logits, targets, axis=-1, mode='clip'), jnp.nan)


def _is_zero(rate: ArrayLike) -> bool:
    return isinstance(rate, int | float) and rate == 0
