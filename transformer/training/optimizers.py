"""Optimizers from optax by name, alike for scanned and looped layers."""

import functools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from transformer.errors import UserError
from transformer.modules.axes import is_scanned, map_parameters, parameter_axes, path_name


def make_optimizer(
    name: str, hparams: Mapping[str, Any], learning_rate: Any, no_decay: str, frozen: str = ''
) -> optax.GradientTransformation:
    """The optimizer of this name with its numbers, which may be traced, filled in.

    Its `update` takes `applied` too: where that is False the state stays as it is.

    Args:
        learning_rate: of this update.
        no_decay: regular expression; parameters whose path it finds are not decayed.
        frozen: regular expression; those whose path it finds stay as they are; '' finds none.
    """

    def decays(params):
        return map_parameters(lambda path, _: re.search(no_decay, path) is None, params)

    optimizer = OPTIMIZERS[name](hparams, learning_rate, decays)
    if not frozen:
        return optimizer

    def labels(params):
        return map_parameters(
            lambda path, _: 'frozen' if re.search(frozen, path) else 'trained', params
        )

    return optax.partition({'trained': optimizer, 'frozen': optax.set_to_zero()}, labels)


def check_pattern(pattern: str, field: str) -> None:
    """Raises UserError unless the value of a field is a regular expression."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise UserError(f'{field} {pattern!r} is no regular expression: {error}.') from None


def clip_by_global_norm(grads: Any, limit: Any) -> tuple[Any, jax.Array]:
    """Gradients scaled down to a global norm of at most `limit`, and their norm before, in float32.

    A Python 0 as the limit clips nothing.
    """
    norm = optax.tree.norm(jax.tree.map(lambda g: g.astype(jnp.float32), grads))
    if isinstance(limit, (int, float)) and limit == 0:
        return grads, norm
    factor = jnp.minimum(1.0, limit / jnp.maximum(norm, jnp.finfo(jnp.float32).tiny))
    return jax.tree.map(lambda g: g * factor.astype(g.dtype), grads), norm


def _adamw(hparams, learning_rate, decays):
    return optax.chain(
        _scale_by_adam(hparams['b1'], hparams['b2'], hparams['eps']),
        optax.add_decayed_weights(hparams['weight_decay'], mask=decays),
        optax.scale_by_learning_rate(learning_rate),
    )


def _scale_by_adam(b1, b2, eps):
    """`optax.scale_by_adam`, in place: what it returns is computed from the new moments.

    Of the old ones XLA would keep a copy, both moments once more, until the parameters are written.
    """
    adam = optax.scale_by_adam(b1, b2, eps)

    def update(grads, state, params=None, *, applied=True):
        _, new = adam.update(grads, state, params)
        kept = keep_unless(applied, new, state)
        mu, nu = jax.lax.optimization_barrier((kept.mu, kept.nu))
        means = optax.tree.bias_correction(mu, b1, new.count)
        squares = optax.tree.bias_correction(nu, b2, new.count)
        updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), means, squares)
        return updates, kept._replace(mu=mu, nu=nu)

    return optax.GradientTransformationExtraArgs(adam.init, update)


def _lion(hparams, learning_rate, decays):
    return _pausing(
        optax.lion(
            learning_rate,
            b1=hparams['b1'],
            b2=hparams['b2'],
            weight_decay=hparams['weight_decay'],
            mask=decays,
        )
    )


def _sgd(hparams, learning_rate, decays):
    return optax.chain(
        _pausing(optax.trace(decay=hparams['b1'])),
        optax.add_decayed_weights(hparams['weight_decay'], mask=decays),
        optax.scale_by_learning_rate(learning_rate),
    )


def _adafactor(hparams, learning_rate, decays):
    """Shazeer and Stern 2018, without relative step sizes; decay is decoupled, as in adamw."""
    return optax.chain(
        _pausing(
            _per_matrix(optax.adafactor(learning_rate=None, momentum=None, weight_decay_rate=None))
        ),
        optax.scale(-1.0),  # optax.adafactor descends; the next two stages expect ascent
        optax.add_decayed_weights(hparams['weight_decay'], mask=decays),
        optax.scale_by_learning_rate(learning_rate),
    )


def _muon(hparams, learning_rate, decays):
    """Muon for the matrices of the stacks, AdamW for the rest (Jordan et al. 2024).

    Updates are scaled to AdamW's usual size, so one learning rate and decay serve both
    (Liu et al. 2025, section 2.2).
    """
    matrices = optax.contrib.muon(
        learning_rate,
        beta=hparams['b1'],
        eps=hparams['eps'],
        weight_decay=hparams['weight_decay'],
        weight_decay_mask=decays,
        muon_weight_dimension_numbers=lambda params: map_parameters(_matrix_axes, params),
        consistent_rms=0.2,
    )
    rest = _adamw(hparams, learning_rate * hparams['adam_factor'], decays)

    def labels(params):
        return map_parameters(lambda path, _: 'matrix' if _is_hidden(path) else 'rest', params)

    return optax.partition({'matrix': _pausing(matrices), 'rest': rest}, labels)


def _pausing(optimizer):
    """The optimizer, whose state stays as it is where `applied` is False."""

    def update(grads, state, params=None, *, applied=True):
        updates, new = optimizer.update(grads, state, params)
        return updates, keep_unless(applied, new, state)

    return optax.GradientTransformationExtraArgs(optimizer.init, update)


def keep_unless(applied: jax.Array | bool, new: Any, old: Any) -> Any:
    """The tree `new`, or where `applied`, a scalar, is False the tree `old`."""
    return jax.tree.map(lambda a, b: jnp.where(applied, a, b), new, old)


OPTIMIZERS: dict[str, Callable[..., optax.GradientTransformation]] = {
    'adamw': _adamw,
    'adafactor': _adafactor,
    'lion': _lion,
    'sgd': _sgd,
    'muon': _muon,
}


def _is_hidden(path):
    """Whether a parameter is a matrix inside the layers."""
    return re.search('kernel(_[ab])?$', path) and not path.startswith(
        ('embedding_projection/', 'head/', 'pooler/', 'classifier/')
    )


def _matrix_axes(path, leaf):
    contracted, produced = parameter_axes(path)
    first = leaf.ndim - len(contracted) - len(produced)  # 1 if scanned: layers are a batch
    middle = first + len(contracted)
    return optax.contrib.MuonDimensionNumbers(
        tuple(range(first, middle)), tuple(range(middle, leaf.ndim))
    )


def _per_matrix(transform: optax.GradientTransformation) -> optax.GradientTransformation:
    """`transform` applied to each projection as the one matrix it is.

    Heads are merged, and layers of scanned parameters are taken one by one as if they were looped.
    """

    def mapped(name, function):
        return jax.vmap(function) if is_scanned(name) else function

    def matrix(name, leaf):
        contracted, _ = parameter_axes(name)
        rows = math.prod(leaf.shape[: len(contracted)])
        return leaf.reshape(rows, -1) if contracted else leaf

    def init(params):
        return map_parameters(
            lambda name, leaf: mapped(name, lambda leaf: transform.init(matrix(name, leaf)))(leaf),
            params,
        )

    def update(updates, state, params):
        def update_leaf(name, update, state, param):
            new, state = transform.update(matrix(name, update), state, matrix(name, param))
            return new.reshape(update.shape), state

        leaves, tree = jax.tree_util.tree_flatten_with_path(updates)
        names = [path_name(path) for path, _ in leaves]
        parts = (tree.flatten_up_to(part) for part in (updates, state, params))
        results = [
            mapped(name, functools.partial(update_leaf, name))(*leaf)
            for name, *leaf in zip(names, *parts, strict=True)
        ]
        return tuple(tree.unflatten(part) for part in zip(*results, strict=True))

    return optax.GradientTransformation(init, update)
