"""Corrupted inputs for denoising objectives: BERT's masked tokens and T5's masked spans.

What happens to a row is a function of its own key and tokens: neither the other rows of the batch
nor padding at its end change it. Give these functions keys that nothing else draws from.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from transformer.functional.dropout import dropout_bits


def mask_tokens(
    keys: ArrayLike,
    tokens: ArrayLike,
    weights: ArrayLike,
    word_ids: ArrayLike,
    *,
    rate: ArrayLike,
    mask_id: ArrayLike,
    vocab_size: ArrayLike,
    replace: ArrayLike = 0.8,
    random: ArrayLike = 0.1,
) -> tuple[Array, Array]:
    """Masks words for BERT's objective (Devlin et al. 2019, section 3.1 and appendix A.1).

    Each word is chosen with probability `rate`, on its own. Of the tokens of chosen words a share
    `replace` becomes the mask, a share `random` a uniform id, and the rest stays as it is, which
    is decided token by token. The targets are the tokens before.

    Args:
        keys: [B] JAX keys, one for each row.
        tokens: [B, T] integer ids.
        weights: [B, T] float; a token of weight 0 is never chosen.
        word_ids: [B, T] integers, the same for the tokens of a word and for no others of the row:
            the index of the word's first token. `arange(T)` chooses single tokens.
        rate, replace, random: probabilities, Python numbers or traced scalars, resolved to 2^-24;
            `replace + random` is at most 1.
        mask_id: the id of the mask.
        vocab_size: random ids are uniform in [0, vocab_size), up to vocab_size / 2^32.

    Returns:
        The tokens after, and the weights of the chosen ones, with 0 for all others; both [B, T].

    Raises:
        ValueError: shapes or dtypes other than these, or Python numbers that are no probabilities.
    """
    tokens, weights = _check_rows(keys, tokens, weights)
    word_ids = jnp.asarray(word_ids)
    if word_ids.shape != tokens.shape or not jnp.issubdtype(word_ids.dtype, jnp.integer):
        raise ValueError(
            f'word_ids must be an integer for each of tokens {list(tokens.shape)}; '
            f'got {word_ids.dtype} {list(word_ids.shape)}.'
        )
    _check_probabilities(rate=rate, replace=replace, random=random)
    places = jnp.arange(tokens.shape[1])
    chosen = (_uniform(keys, 0, word_ids) < rate) & (weights > 0)  # [B, T]
    fate = _uniform(keys, 1, places)
    ids = (_bits(keys, 2, places) % jnp.uint32(vocab_size)).astype(tokens.dtype)
    mask = jnp.asarray(mask_id, tokens.dtype)
    new = jnp.where(fate < replace, mask, jnp.where(fate < replace + random, ids, tokens))
    return jnp.where(chosen, new, tokens), jnp.where(chosen, weights, 0)


def corrupt_spans(
    keys: ArrayLike,
    tokens: ArrayLike,
    weights: ArrayLike,
    *,
    rate: float = 0.15,
    mean_span: float = 3.0,
    sentinel_ids: Sequence[int],
    eos_id: int,
) -> dict[str, Array]:
    """Moves random spans of each row to the targets (Raffel et al. 2020, sections 3.1.4, 3.3.4).

    Of l tokens n = round(rate l) leave, in round(n / mean_span) spans, both at least 1. The lengths
    of the spans, and of what stays before each, are uniform over all divisions into parts of one
    token and more. The encoder reads what stays, with sentinel i in the place of span i; the
    targets are sentinel i and then span i for every i. Both end with eos, as in the authors' code;
    in their figure 2 the targets end with one more sentinel.

    Args:
        keys: [B] JAX keys, one for each row.
        tokens: [B, L] integer ids.
        weights: [B, L] float; what follows the last positive weight of a row is padding. A row of
            one token has no targets, and one of padding alone stays padding.
        rate, mean_span: the share of tokens that leave, and their mean number in a span.
        sentinel_ids: stand for the spans, in their order; at least one for each.
        eos_id: ends both sides, and starts the decoder's input.

    Returns:
        `encoder_tokens` and `encoder_segment_ids` [B, S]; `tokens` (the targets moved right, eos
        first), `targets`, `segment_ids` and `weights` [B, T]; S and T are `span_lengths`. Segment
        ids are 1 up to eos and 0 in the padding after it, whose tokens and weights are 0. A target
        keeps its token's weight; sentinels and eos weigh 1. Positions are `arange`.

    Raises:
        ValueError: as `span_lengths`; other shapes or dtypes, or fewer sentinels than spans.
    """
    tokens, weights = _check_rows(keys, tokens, weights)
    counts = _span_counts(tokens.shape[1], rate, mean_span)
    sentinels = _sentinels(sentinel_ids, counts)
    encoder, target, padding = _span_sources(keys, weights, counts)
    ids = _append(tokens, [*sentinels, eos_id, 0])
    weights = _append(weights, [1] * len(sentinels) + [1, 0])
    targets = jnp.take_along_axis(ids, target, axis=1)
    previous = jnp.pad(targets[:, :-1], ((0, 0), (1, 0)), constant_values=eos_id)
    return {
        'encoder_tokens': jnp.take_along_axis(ids, encoder, axis=1),
        'encoder_segment_ids': (encoder < padding).astype(jnp.int32),
        'tokens': jnp.where(target < padding, previous, 0),
        'targets': targets,
        'segment_ids': (target < padding).astype(jnp.int32),
        'weights': jnp.take_along_axis(weights, target, axis=1),
    }


def span_lengths(length: int, rate: float = 0.15, mean_span: float = 3.0) -> tuple[int, int]:
    """The lengths (S, T) of the encoder's rows and of the targets that `corrupt_spans` makes.

    Args:
        length: of the rows to corrupt, at least 2.
        rate, mean_span: as `corrupt_spans`.

    Raises:
        ValueError: rows that are too short, a rate outside (0, 1), or a mean_span below 1.
    """
    kept, noise, spans = _span_counts(length, rate, mean_span)[-1].tolist()
    return kept + spans + 1, noise + spans + 1  # 1: eos


def _span_counts(length, rate, mean_span):
    """[L + 1, 3]: of rows of 0 to L tokens, how many stay and leave, and in how many spans.

    None of the three ever falls from a row to the next longer one: the longest's lengths fit all.
    """
    if length < 2:
        raise ValueError(f'rows need 2 tokens, one to stay and one to leave; got {length}.')
    if not 0 < rate < 1:
        raise ValueError(f'rate must be above 0 and below 1, not {rate}.')
    if not mean_span >= 1:
        raise ValueError(f'mean_span must be at least 1 token, not {mean_span}.')
    lengths = np.arange(length + 1)
    noise = np.clip(np.round(lengths * rate), 1, np.maximum(lengths - 1, 0))
    kept = lengths - noise
    spans = np.clip(np.round(noise / mean_span), 1, np.minimum(kept, noise))
    return np.stack([kept, noise, spans], axis=1).astype(np.int32)


def _span_sources(keys, weights, counts):
    """Where each token of the encoder [B, S] and of the targets [B, T] comes from.

    Returns:
        The two arrays, where below L is a place in the row, L + i is sentinel i of P, and L + P
        eos; and the third result, L + P + 1, is padding.
    """
    length = weights.shape[1]
    most_kept, most_noise, most_spans = counts[-1].tolist()
    ends = jnp.where(weights > 0, jnp.arange(1, length + 1), 0)
    lengths = jnp.max(ends, axis=1, keepdims=True)  # [B, 1]
    kept, noise, spans = jnp.moveaxis(jnp.asarray(counts)[lengths], -1, 0)  # [B, 1] each
    kept_bits = _bits(keys, 0, jnp.arange(most_kept - 1))
    noise_bits = _bits(keys, 1, jnp.arange(most_noise - 1))
    kept_ends = _random_ends(kept_bits, kept, spans, most_spans)  # [B, P + 1]
    noise_ends = _random_ends(noise_bits, noise, spans, most_spans)  # [B, P + 1]
    # A sentinel comes after the part that stays; among the targets, before its span.
    order = jnp.arange(most_spans)
    after, before = kept_ends[:, 1:] + order, noise_ends[:, :-1] + order
    encoder = _sources(after, noise_ends, kept + spans, most_kept + most_spans + 1, length)
    target = _sources(before, kept_ends, noise + spans, most_noise + most_spans + 1, length)
    return encoder, target, length + most_spans + 1


def _random_ends(bits, total, parts, most_parts):
    """Divides total [B, 1] items into parts [B, 1], none empty, all divisions equally likely.

    Args:
        bits: [B, M] random, one for each gap between two of at most M + 1 items.

    Returns:
        [B, most_parts + 1]: 0, and the ends of the parts; missing parts are empty ones at the end.
    """
    is_gap = jnp.arange(bits.shape[1]) < total - 1
    # The gaps of the lowest bits; stable, so that what is no gap comes last whatever the bits.
    gaps = jnp.argsort(jnp.where(is_gap, bits, jnp.uint32(2**32 - 1)), axis=1)[:, : most_parts - 1]
    ends = jnp.where(jnp.arange(most_parts - 1) < parts - 1, gaps + 1, total)
    return jnp.hstack([jnp.zeros_like(total), jnp.sort(ends, axis=1), total])


def _sources(sentinels, others, end, size, length):
    """`_span_sources` of one side, [B, size].

    Args:
        sentinels: [B, P] their places; those of missing ones are `end` or beyond.
        others: [B, P + 1] the other side's tokens that precede a token after 0, 1, ... sentinels.
        end: [B, 1] the place of eos; 0 in rows without tokens, which get none.
        length: L.
    """
    places = jnp.arange(size)
    rows = jnp.arange(len(sentinels))[:, None]
    is_sentinel = jnp.zeros((len(sentinels), size), bool).at[rows, sentinels].set(True, mode='drop')
    seen = jnp.cumsum(is_sentinel, axis=1)  # [B, size]
    tokens = places - seen + jnp.take_along_axis(others, seen, axis=1)
    sources = jnp.where(is_sentinel, length + seen - 1, tokens)
    eos = length + sentinels.shape[1]
    after = jnp.where((places == end) & (end > 0), eos, eos + 1)
    return jnp.where(places < end, sources, after)


def _append(row, values):
    """Appends the same values to every row."""
    values = jnp.asarray(values, row.dtype)
    return jnp.hstack([row, jnp.broadcast_to(values, (row.shape[0], values.size))])


def _bits(keys, purpose, index):
    """uint32 [B, ...]: random bits of each row's key, a purpose, and index [...] or [B, ...]."""
    return dropout_bits(keys[:, None], purpose, index)


def _uniform(keys, purpose, index):
    """`_bits` as float32 multiples of 2^-24 in [0, 1)."""
    return (_bits(keys, purpose, index) >> 8).astype(jnp.float32) * 2**-24


def _sentinels(sentinel_ids, counts):
    """Those that the spans of the longest row need."""
    length, most_spans = len(counts) - 1, counts[-1, -1]
    if len(sentinel_ids) < most_spans:
        raise ValueError(
            f'rows of {length} tokens have {most_spans} spans, each with a sentinel; got '
            f'{len(sentinel_ids)} sentinel_ids: give more, or raise mean_span.'
        )
    return sentinel_ids[:most_spans]


def _check_rows(keys, tokens, weights):
    tokens, weights = jnp.asarray(tokens), jnp.asarray(weights)
    if tokens.ndim != 2 or not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise ValueError(
            f'tokens must be integers [B, T]; got {tokens.dtype} {list(tokens.shape)}.'
        )
    if weights.shape != tokens.shape or not jnp.issubdtype(weights.dtype, jnp.floating):
        raise ValueError(
            f'weights must be a float for each of tokens {list(tokens.shape)}; '
            f'got {weights.dtype} {list(weights.shape)}.'
        )
    shape = jax.random.key_data(keys).shape[:-1]
    if shape != tokens.shape[:1]:
        raise ValueError(
            f'keys must be one for each row of tokens {list(tokens.shape)}; got keys {list(shape)}.'
        )
    return tokens, weights


def _check_probabilities(**probabilities):
    """Checks those that are Python numbers."""
    known = {name: p for name, p in probabilities.items() if isinstance(p, int | float)}
    for name, p in known.items():
        if not 0 <= p <= 1:
            raise ValueError(f'{name} is a probability between 0 and 1, not {p}.')
    if known.get('replace', 0) + known.get('random', 0) > 1:
        raise ValueError(
            f'replace {known["replace"]} and random {known["random"]} are shares of the same '
            'tokens: their sum is at most 1.'
        )
