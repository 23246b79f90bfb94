"""Corpora, tokenizers and batches; no device work, only numpy, Grain and tokenizers."""

from transformer.data.pipeline import Data, check_data, load_data
from transformer.data.tokenizers import StreamDecoder, Tokenizer, load_tokenizer

__all__ = ['Data', 'StreamDecoder', 'Tokenizer', 'check_data', 'load_data', 'load_tokenizer']
