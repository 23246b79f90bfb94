"""Words: the same ones whatever the tokenizer, as far as its tokens can tell."""

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from transformer.data.corpus import Corpus
from transformer.data.tasks import masked_lm
from transformer.data.tokenizers import END_OF_TEXT, Tokenizer, train_tokenizer
from transformer.data.words import word_edges

TEXT = "the cat's 42nd tail, naïve हिन्दी x"


def words(tokenizer, text):
    """The words of a text as masking sees them."""
    ids = tokenizer.encode(text)
    stream = Corpus(
        folder=None,
        tokens=np.array([tokenizer.eos_id, *ids, tokenizer.eos_id]),
        starts=np.array([0]),
        counted=None,
        num_tokens=len(ids) + 1,
        num_bytes=len(text.encode()),
    )
    positions = np.arange(1, len(ids) + 1)[None]
    batch = masked_lm(stream, positions, tokenizer.eos_id, word_edges(tokenizer))
    first = batch['word_ids'][0]
    return [tokenizer.decode(np.array(ids)[first == begin]) for begin in np.unique(first)]


@pytest.mark.parametrize('kind', ['bytes', 'chars'])
def test_words_of_characters(kind):
    tokenizer = train_tokenizer(kind, [TEXT])
    parts = ['the', ' ', 'cat', "'", 's', ' ', '42nd', ' ', 'tail', ',', ' ', 'naïve', ' ']
    assert words(tokenizer, TEXT) == [*parts, 'हिन्दी', ' ', 'x']


@pytest.mark.parametrize('vocab_size', [257, 300])
def test_words_of_merged_bytes(vocab_size):
    tokenizer = train_tokenizer('bpe', [TEXT] * 9, vocab_size)
    joined = ''.join(words(tokenizer, TEXT))
    assert joined == TEXT
    found = [word.strip() for word in words(tokenizer, TEXT)]
    for word in 'the', 'cat', '42nd', 'tail', 'naïve', 'हिन्दी', 'x':
        assert word in found
    assert any(' ' in word for word in words(train_tokenizer('bpe', ['a b ' * 99], 300), 'a b'))


def test_words_of_word_pieces():
    vocab = ['[UNK]', END_OF_TEXT, '[MASK]', 'un', '##able', '##s', 'to', 'able', '.', 'go', '##1']
    backend = tokenizers.Tokenizer(
        models.WordPiece({token: id for id, token in enumerate(vocab)}, unk_token='[UNK]')
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(['[UNK]', END_OF_TEXT, '[MASK]'])
    assert words(Tokenizer(backend), 'unables to able.go1') == ['unables', 'to', 'able', '.', 'go1']


def test_words_of_sentence_pieces():
    vocab = ['</s>', '▁un', 'able', '▁to', '▁s', 's', ',']
    backend = tokenizers.Tokenizer(models.Unigram([(token, -1.0) for token in vocab], 0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    tokenizer = Tokenizer(backend)
    assert words(tokenizer, 'unables, to to s') == ['unables', ',', 'to', 'to', 's']


def test_edges():
    tokenizer = train_tokenizer('chars', ['ab 1_.-'], special_tokens=['[MASK]'])
    starts, ends = word_edges(tokenizer)
    assert starts.dtype == ends.dtype == bool
    assert starts.shape == ends.shape == (tokenizer.vocab_size,)
    inside = [tokenizer.encode(char)[0] for char in 'ab1']
    assert np.flatnonzero(starts).tolist() == np.flatnonzero(ends).tolist() == sorted(inside)
    tokenizer = train_tokenizer('chars', ['.-'])  # no letter at all
    assert not np.any(word_edges(tokenizer))
