"""What is learnt from a row: the arrays that the model and the loss take."""

from dataclasses import dataclass

import numpy as np

from transformer.data.corpus import Corpus
from transformer.data.tokenizers import SENTINELS

Batch = dict[str, np.ndarray]


def causal_lm(corpus: Corpus, positions: np.ndarray) -> Batch:
    """Next-token prediction.

    Args:
        corpus: the stream.
        positions: [B, T] int64 positions in the stream; negative is padding. A row is split into
            segments where a document starts or where positions do not follow one another.

    Returns:
        All [B, T]. `tokens` and `targets` int32, 0 in padding; `weights` float32, 1 where the
        target counts, 0 in padding and in prompts; `segment_ids` int32, 1, 2, ... in a row and 0 in
        padding; `positions` int32, index inside the segment from 0, and 0 in padding.
    """
    valid = positions >= 0
    index = np.where(valid, positions, 0)
    weights = valid if corpus.counted is None else valid & (corpus.counted[index + 1] > 0)

    begins = np.ones(positions.shape, bool)
    document = np.searchsorted(corpus.starts, index, side='right')
    begins[:, 1:] = (np.diff(document) != 0) | (np.diff(positions) != 1)
    column = np.arange(positions.shape[1], dtype=np.int32)
    begin = np.maximum.accumulate(np.where(begins, column, 0), axis=1)
    return {
        'tokens': corpus.tokens[index].astype(np.int32) * valid,
        'targets': corpus.tokens[index + 1].astype(np.int32) * valid,
        'weights': weights.astype(np.float32),
        'segment_ids': np.cumsum(begins, axis=1, dtype=np.int32) * valid,
        'positions': (column - begin) * valid,
    }


def masked_lm(
    corpus: Corpus, positions: np.ndarray, eos_id: int, edges: tuple[np.ndarray, np.ndarray]
) -> Batch:
    """Masked tokens told from both sides (Devlin et al. 2019); the masking is left to the step.

    Args:
        corpus: the stream.
        positions: as of `causal_lm`.
        eos_id: of the token that begins documents and is never masked.
        edges: of the vocabulary; see `word_edges`.

    Returns:
        As of `causal_lm`, but `targets` are the tokens themselves; `weights` are 1 where a token
        may be masked, which prompts may not; and `word_ids` [B, T] int32, the column of the first
        token of the word that a token belongs to, 0 in padding.
    """
    batch = causal_lm(corpus, positions)
    tokens, segments = batch['tokens'], batch['segment_ids']
    maskable = (segments > 0) & (tokens != eos_id)
    if corpus.counted is not None:
        maskable &= corpus.counted[np.maximum(positions, 0)] > 0
    starts_inside, ends_inside = edges
    begins = np.ones(tokens.shape, bool)
    joined = ends_inside[tokens[:, :-1]] & starts_inside[tokens[:, 1:]]
    begins[:, 1:] = ~joined | (np.diff(segments) != 0)
    column = np.arange(tokens.shape[1], dtype=np.int32)
    word_ids = np.maximum.accumulate(np.where(begins, column, 0), axis=1)
    return batch | {
        'targets': tokens,
        'weights': maskable.astype(np.float32),
        'word_ids': word_ids * (segments > 0),
    }


def span_corruption(corpus: Corpus, positions: np.ndarray) -> Batch:
    """Text of which spans are to be told (Raffel et al. 2020); the step corrupts it.

    Args:
        corpus: the stream.
        positions: as of `causal_lm`; documents run on, so that a row is one segment.

    Returns:
        All [B, T]. `tokens` int32, 0 in padding; `segment_ids` int32 and `weights` float32, 1
        where there is a token, else 0.
    """
    valid = positions >= 0
    return {
        'tokens': corpus.tokens[np.where(valid, positions, 0)].astype(np.int32) * valid,
        'segment_ids': valid.astype(np.int32),
        'weights': valid.astype(np.float32),
    }


def seq2seq(
    source: Corpus, target: Corpus, sources: np.ndarray, targets: np.ndarray, start_id: int
) -> Batch:
    """Targets told from their sources.

    Args:
        source: stream of the sources.
        target: stream of the targets.
        sources: [B, S] int64 positions in `source`, as of `causal_lm`.
        targets: [B, T] int64 positions in `target`, of as many segments.
        start_id: of the token that begins a target, in the place of the stream's.

    Returns:
        As of `causal_lm` for the targets, and all [B, S] int32: `encoder_tokens`, each source and
        then its end; `encoder_segment_ids` and `encoder_positions`, as those of the targets.
    """
    # Where the stream's inputs are [eos, t1 .. tn], what follows them is [t1 .. tn, eos].
    encoder, decoder = causal_lm(source, sources), causal_lm(target, targets)
    begins = (decoder['positions'] == 0) & (decoder['segment_ids'] > 0)
    return decoder | {
        'tokens': np.where(begins, np.int32(start_id), decoder['tokens']),
        'encoder_tokens': encoder['targets'],
        'encoder_segment_ids': encoder['segment_ids'],
        'encoder_positions': encoder['positions'],
    }


def classification(corpus: Corpus, positions: np.ndarray, classes: np.ndarray) -> Batch:
    """The class of each row's text.

    Args:
        corpus: the stream of the texts.
        positions: [B, T] int64, as of `causal_lm`.
        classes: [B] integers.

    Returns:
        `tokens`, `segment_ids` and `positions` as of `causal_lm`; `targets` [B, 1] int32, the
        class, and `weights` [B, 1] float32; both 0 for a row of padding.
    """
    batch = causal_lm(corpus, positions)
    valid = batch['segment_ids'][:, :1] > 0
    return batch | {
        'targets': classes[:, None].astype(np.int32) * valid,
        'weights': valid.astype(np.float32),
    }


@dataclass(frozen=True)
class Task:
    """What a task reads.

    Attributes:
        pairs: pairs instead of documents.
        special_tokens: that a tokenizer made for it has, besides the separator.
    """

    pairs: bool = False
    special_tokens: tuple[str, ...] = ()


TASKS: dict[str, Task] = {
    'causal_lm': Task(),
    'masked_lm': Task(special_tokens=('[MASK]',)),
    'span_corruption': Task(special_tokens=SENTINELS),
    'seq2seq': Task(pairs=True),
    'classification': Task(pairs=True),
}
