"""What each task asks of a model, and what it hides from it on the device.

Hiding is a function of the row's key, so of (seed, step, row) in training and of the row alone in
evaluation: devices, accumulation and resumption do not change it.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from transformer.config import TransformerConfig
from transformer.data import Tokenizer
from transformer.errors import UserError
from transformer.functional import corrupt_spans, mask_tokens

Batch = Mapping[str, jax.Array]

# Task: the topology and the heads that learn it.
MODELS = {
    'causal_lm': ('decoder', ('lm',)),
    'seq2seq': ('encoder_decoder', ('lm',)),
    'span_corruption': ('encoder_decoder', ('lm',)),
    'masked_lm': ('encoder', ('masked_lm', 'lm')),
    'classification': ('encoder', ('classifier',)),
}

# Evaluation masks as Devlin et al. (2019) do, whatever the rates of training: so runs compare.
EVALUATION = {'mask_rate': 0.15, 'mask_replace': 0.8, 'mask_random': 0.1}


@dataclasses.dataclass(frozen=True)
class MaskTokens:
    """Masked language modelling; see `transformer.functional.mask_tokens`.

    Attributes:
        mask_id: the token that hides another.
        num_tokens: ids below this may stand in for another.
        whole_words: the tokens of a word are chosen together.
    """

    mask_id: int
    num_tokens: int
    whole_words: bool

    def __call__(self, batch: Batch, keys: jax.Array, hparams: Mapping[str, Any]) -> Batch:
        tokens = batch['tokens']  # [B, T]
        index = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
        tokens, weights = mask_tokens(
            keys,
            tokens,
            batch['weights'],
            batch['word_ids'] if self.whole_words else index,
            rate=hparams['mask_rate'],
            replace=hparams['mask_replace'],
            random=hparams['mask_random'],
            mask_id=self.mask_id,
            vocab_size=self.num_tokens,
        )
        return {**batch, 'tokens': tokens, 'weights': weights}


@dataclasses.dataclass(frozen=True)
class CorruptSpans:
    """T5's denoising; see `transformer.functional.corrupt_spans`. Shapes depend on the rate."""

    rate: float
    mean_span: float
    sentinel_ids: tuple[int, ...]
    eos_id: int

    def __call__(self, batch: Batch, keys: jax.Array, hparams: Mapping[str, Any]) -> Batch:
        return corrupt_spans(
            keys,
            batch['tokens'],
            batch['weights'],
            rate=self.rate,
            mean_span=self.mean_span,
            sentinel_ids=self.sentinel_ids,
            eos_id=self.eos_id,
        )


def make_corruption(config: ConfigDict, tokenizer: Tokenizer) -> MaskTokens | CorruptSpans | None:
    """What `config.task` hides from the model in a step; None: nothing."""
    corruption = config.corruption
    if config.task == 'masked_lm':
        return MaskTokens(tokenizer.mask_id, tokenizer.vocab_size, corruption.whole_words)
    if config.task == 'span_corruption':
        return CorruptSpans(
            corruption.rate, corruption.mean_span, tokenizer.sentinel_ids, tokenizer.eos_id
        )
    return None


def check_objective(config: ConfigDict, model: TransformerConfig) -> None:
    """Raises UserError unless the model is of the kind that the task trains."""
    topology, heads = MODELS[config.task]
    if model.topology != topology or model.head not in heads:
        raise UserError(
            f'task {config.task} needs model.topology {topology!r} with model.head '
            f'{" or ".join(map(repr, heads))}, not {model.topology!r} with {model.head!r}.'
        )
    corruption = config.corruption
    if corruption.replace + corruption.random > 1:
        raise UserError(
            f'corruption.replace {corruption.replace} and corruption.random {corruption.random} '
            'are shares of the same tokens: together at most 1.'
        )
