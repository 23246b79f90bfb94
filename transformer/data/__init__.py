"""Corpora, tokenizers and batches; no device work, only numpy, Grain and tokenizers."""

from transformer.data.checks import check_data
from transformer.data.pairs import Pair
from transformer.data.pipeline import Data, load_data
from transformer.data.tokenizers import StreamDecoder, Tokenizer, load_tokenizer

__all__ = [
    'Data',
    'Pair',
    'StreamDecoder',
    'Tokenizer',
    'check_data',
    'load_data',
    'load_tokenizer',
]
