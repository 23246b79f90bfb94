"""Masked tokens filled in: what an encoder thinks stands behind each mask of a row."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.config import TransformerConfig
from transformer.decoding.checks import check_filling
from transformer.decoding.generation import unrolled
from transformer.decoding.loop import layout
from transformer.decoding.padding import batches, bucket
from transformer.modules import Transformer


def fill_masks(
    model: Transformer,
    params: Any,
    rows: Sequence[Sequence[int]],
    mask_id: int,
    top_k: int,
    *,
    vocab_limit: int | None = None,
    batch_size: int = 32,
) -> list[list[list[tuple[int, float]]]]:
    """The likeliest tokens in the place of each mask, by its row alone.

    The masks of a row are filled independently: each sees the others as masks.

    Args:
        model: an encoder with head 'masked_lm' or 'lm'.
        params: its parameters.
        rows: token ids as the model was trained on, each with a mask.
        mask_id: the token that hides another; it stands for itself in no result.
        top_k: candidates for each mask, at most as many as there are ids without the mask.
        vocab_limit: ids from here on are no candidates and have no probability (the tokenizer's
            size, where the model's is larger); None: all may be.
        batch_size: rows of a bucket of length that the device takes at a time.

    Returns:
        For each row, for each of its masks from left to right, the pairs (token id, probability),
        the likeliest first.

    Raises:
        UserError: before any work, see `check_filling`.
    """
    config = model.config
    vocab_limit = vocab_limit or config.vocab_size
    check_filling(config, rows, mask_id, top_k, vocab_limit)
    model, params = unrolled(model, params)
    results = [[] for _ in rows]
    for indices, tokens, lengths in batches(rows, config.max_length, batch_size):
        count = len(indices)
        inside = np.arange(tokens.shape[1]) < lengths[:, None]
        places = np.argwhere((tokens == mask_id) & inside)  # [P, 2], row by row
        places = places[places[:, 0] < count].astype(np.int32)
        size = bucket(len(places), tokens.size)
        ids, probabilities = _candidates(
            params,
            tokens,
            lengths,
            np.pad(places, ((0, size - len(places)), (0, 0))),
            np.int32(mask_id),
            config=model.config,
            top_k=top_k,
            vocab_limit=vocab_limit,
        )
        ids, probabilities = np.asarray(ids).tolist(), np.asarray(probabilities).tolist()
        for (row, _), *candidates in zip(places, ids, probabilities, strict=False):
            results[indices[row]].append(list(zip(*candidates, strict=True)))
    return results


@functools.partial(jax.jit, static_argnames=('config', 'top_k', 'vocab_limit'))
def _candidates(
    params: Any,
    tokens: jax.Array,
    lengths: jax.Array,
    places: jax.Array,
    mask_id: jax.Array,
    *,
    config: TransformerConfig,
    top_k: int,
    vocab_limit: int,
) -> tuple[jax.Array, jax.Array]:
    """Ids and probabilities [P, top_k] at the places [P, 2] (row, column) of tokens [B, T]."""
    model, params = Transformer(config), {'params': params}
    batch = {'tokens': tokens} | layout(tokens, lengths)
    features, _ = model.apply(params, batch, method='features')
    features = features[places[:, 0], places[:, 1]]  # [P, D]
    # Logits are made at the masks alone.
    logits = model.apply(params, features[None], method='logits')[0, :, :vocab_limit]
    logits = jnp.where(jnp.arange(vocab_limit) == mask_id, -jnp.inf, logits)
    probabilities, ids = jax.lax.top_k(jax.nn.softmax(logits), top_k)
    return ids, probabilities
