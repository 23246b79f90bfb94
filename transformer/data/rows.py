"""The rows that each task makes of a split."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from transformer.data.corpus import Corpus, load_corpus
from transformer.data.datasets import CorpusRows, Rows
from transformer.data.labels import LabelRows
from transformer.data.opening import Corpora, Documents, Pairs
from transformer.data.packing import PACKINGS, Packing
from transformer.data.pair_packing import PairRows
from transformer.data.tasks import causal_lm, masked_lm, span_corruption
from transformer.data.tokenizers import Tokenizer
from transformer.data.words import word_edges


@dataclass(frozen=True)
class RowMaker:
    """Makes the rows of any split as `config.task` wants them.

    Args:
        config: of an experiment.
        cache: folder of tokenised corpora.
        tokenizer: of the text, for pairs of the targets.
        source_tokenizer: of the sources of pairs.
    """

    config: ConfigDict
    cache: Path
    tokenizer: Tokenizer
    source_tokenizer: Tokenizer

    def __call__(self, corpora: Corpora) -> Rows:
        return ROWS[self.config.task](self, corpora)

    def corpus(self, corpora: Corpora, side: str = 'target') -> Corpus:
        """The tokenised documents of `corpora`, or of one side of its pairs."""
        tokenizer = self.source_tokenizer if side == 'source' else self.tokenizer
        return load_corpus(self.cache, *corpora.texts(side), tokenizer)

    def packing(self, corpus: Corpus) -> Packing:
        """Rows of documents."""
        return PACKINGS[self.config.data.packing](corpus, self.config.data.length)

    @cached_property
    def edges(self) -> tuple[np.ndarray, np.ndarray]:
        """Where the words of the vocabulary begin and end; see `word_edges`."""
        return word_edges(self.tokenizer)


def _causal_lm(make: RowMaker, documents: Documents) -> Rows:
    corpus = make.corpus(documents)
    return CorpusRows(corpus, make.packing(corpus), causal_lm, corpus.num_tokens)


def _masked_lm(make: RowMaker, documents: Documents) -> Rows:
    corpus = make.corpus(documents)
    task = functools.partial(masked_lm, eos_id=make.tokenizer.eos_id, edges=make.edges)
    num_tokens = corpus.num_tokens - corpus.num_documents  # their ends are no targets
    return CorpusRows(corpus, make.packing(corpus), task, num_tokens)


def _span_corruption(make: RowMaker, documents: Documents) -> Rows:
    corpus = make.corpus(documents)
    return CorpusRows(corpus, make.packing(corpus), span_corruption, corpus.num_inputs)


def _seq2seq(make: RowMaker, pairs: Pairs) -> Rows:
    data = make.config.data
    sides = make.corpus(pairs, 'source'), make.corpus(pairs, 'target')
    lengths = data.source_length or data.length, data.length
    return PairRows(*sides, lengths, data.overlong, pairs.read, make.tokenizer.start_id)


def _classification(make: RowMaker, pairs: Pairs) -> Rows:
    return LabelRows(make.corpus(pairs, 'source'), make.config.data.length, pairs.read)


ROWS: dict[str, Callable[[RowMaker, Corpora], Rows]] = {
    'causal_lm': _causal_lm,
    'masked_lm': _masked_lm,
    'span_corruption': _span_corruption,
    'seq2seq': _seq2seq,
    'classification': _classification,
}
