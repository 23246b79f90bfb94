"""Whole rows read by an encoder: the probabilities of their classes, or one vector for each."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.config import TransformerConfig
from transformer.decoding.checks import check_encoding
from transformer.decoding.generation import unrolled
from transformer.decoding.loop import layout
from transformer.decoding.padding import batches
from transformer.modules import Transformer
from transformer.parallel import RowParallel


def classify(
    model: Transformer, params: Any, rows: Sequence[Sequence[int]], *, batch_size: int = 32
) -> np.ndarray:
    """The probabilities of the classes of each row: float32 [n, C].

    Args:
        model: an encoder with head 'classifier'.
        params: its parameters.
        rows: n rows of token ids as the model was trained on.
        batch_size: rows of a bucket of length that the device takes at a time.

    Raises:
        UserError: before any work, see `check_encoding`.
    """
    check_encoding(model.config, rows, ('classifier',))
    return _read(model, params, rows, batch_size, _classes)


def embed(
    model: Transformer, params: Any, rows: Sequence[Sequence[int]], *, batch_size: int = 32
) -> np.ndarray:
    """A vector of length 1 for each row: float32 [n, D], so that products are cosines.

    It is the encoder's pooled output (`model.pooling`, `model.pooler`), divided by its L2 norm.

    Args:
        model: an encoder.
        params, rows, batch_size: as in `classify`.

    Raises:
        UserError: before any work, see `check_encoding`.
    """
    check_encoding(model.config, rows)
    return _read(model, params, rows, batch_size, _vectors)


def _read(model, params, rows, batch_size, program) -> np.ndarray:
    """What the program makes of each row, [n, ...]."""
    model, params = unrolled(model, params)
    parallel = RowParallel(min(len(rows), batch_size))
    params = parallel.replicate(params)
    run = parallel.map(program, (None, 0, 0), config=model.config)
    results: list[Any] = [None] * len(rows)
    for indices, *batch in batches(rows, model.config.max_length, batch_size):
        values = parallel.gather(run(params, *parallel.split(batch)))
        for index, value in zip(indices, values, strict=False):  # what repeats a row comes last
            results[index] = value
    return np.stack(results)


@functools.partial(jax.jit, static_argnames='config')
def _classes(
    params: Any, tokens: jax.Array, lengths: jax.Array, *, config: TransformerConfig
) -> jax.Array:
    """Class probabilities, float32 [B, C]."""
    batch = {'tokens': tokens} | layout(tokens, lengths)
    logits = Transformer(config).apply({'params': params}, batch)
    return jax.nn.softmax(logits.astype(jnp.float32))


@functools.partial(jax.jit, static_argnames='config')
def _vectors(
    params: Any, tokens: jax.Array, lengths: jax.Array, *, config: TransformerConfig
) -> jax.Array:
    """Pooled outputs of length 1, float32 [B, D]."""
    model, params = Transformer(config), {'params': params}
    batch = {'tokens': tokens} | layout(tokens, lengths)
    features, _ = model.apply(params, batch, method='features')
    x = model.apply(params, features, batch['segment_ids'], method='pooled').astype(jnp.float32)
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)
