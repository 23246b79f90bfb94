"""What is learnt from a row of a corpus: the arrays that the model and the loss take."""

from collections.abc import Callable

import numpy as np

from transformer.data.corpus import Corpus

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


TASKS: dict[str, Callable[[Corpus, np.ndarray], Batch]] = {'causal_lm': causal_lm}
