"""Tokenizers of `load_data`: what they are trained on, and those that are given."""

import pytest

from transformer.data import load_data, vocabularies
from transformer.data.tokenizers import train_tokenizer
from transformer.errors import UserError


def test_bpe_is_trained_once(config, texts, monkeypatch):
    config.data.tokenizer = 'bpe'
    config.data.vocab_size = 280
    data = load_data(config)
    assert 257 < data.tokenizer.vocab_size <= 280
    monkeypatch.setattr(vocabularies, 'train_tokenizer', None)
    assert load_data(config).tokenizer.to_json() == data.tokenizer.to_json()


def test_bpe_learns_from_a_sample_of_the_training_split(config, write, monkeypatch):
    for i in range(40):
        write(f'{i}.txt', f'text {i}')
    config.data.tokenizer = 'bpe'
    config.data.vocab_size = 280
    seen = []

    def train(kind, texts, *args):
        seen.append(list(texts))
        return train_tokenizer(kind, seen[-1], *args)

    monkeypatch.setattr(vocabularies, 'train_tokenizer', train)
    data = load_data(config)
    assert len(seen[-1]) == data.train.num_documents < 40
    monkeypatch.setattr(vocabularies, 'TRAINING_SAMPLE', 100)  # of about 280 bytes
    config.data.vocab_size = 281
    load_data(config)
    assert len(seen[-1]) == pytest.approx(data.train.num_documents / 3, abs=1)


def test_chars_know_both_splits(config, write):
    config.data.path = (str(write('a.txt', 'aaaaaaaaaz')),)
    config.data.tokenizer = 'chars'
    data = load_data(config)
    assert data.tokenizer.vocab_size == 3
    assert data.tokenizer.decode(data.validation.rows.corpus.tokens) == 'aaz'


def test_given_tokenizers(config, texts, tmp_path):
    own = train_tokenizer('bytes', [])
    config.data.tokenizer = 'bpe'
    assert load_data(config, own).tokenizer is own
    config.data.tokenizer = str(own.save(tmp_path / 'saved'))
    assert load_data(config).tokenizer.to_json() == own.to_json()


def test_characters_that_a_given_vocabulary_lacks(config, texts):
    chars = train_tokenizer('chars', ['abc'])
    with pytest.raises(UserError, match=r"chars vocabulary lacks ' ' '0' '1'"):
        load_data(config, chars)
