"""Special tokens that a user spells out in a text."""

import pytest

from transformer.data.tokenizers import train_tokenizer
from transformer.decoding.marks import decode_marked, encode_marked

NAMES = ('[MASK]', '<extra_id_1>', '<extra_id_10>')


def make(kind):
    text = ['the cat sat on the mat, the cat sat\n'] * 20
    tokenizer = train_tokenizer(kind, text, 300, NAMES)
    end = tokenizer.vocab_size
    return tokenizer, dict(zip(NAMES, range(end - 3, end), strict=True))


@pytest.fixture(params=['bytes', 'chars', 'bpe'])
def tokenizer_and_marks(request):
    tokenizer, marks = make(request.param)
    if request.param == 'bpe':  # special tokens come first there
        marks = {name: id for id, name in enumerate(NAMES, 1)}
    assert tokenizer.decode(marks.values()) == ''
    return tokenizer, marks


def test_marks_become_their_ids_and_come_back(tokenizer_and_marks):
    tokenizer, marks = tokenizer_and_marks
    [ids] = encode_marked(tokenizer, ['[MASK]the<extra_id_10> mat[MASK]<extra_id_1>'], marks)
    assert [id for id in ids if id in marks.values()] == [
        marks[name] for name in ('[MASK]', '<extra_id_10>', '[MASK]', '<extra_id_1>')
    ]
    text = decode_marked(tokenizer, [tokenizer.eos_id, *ids], marks)
    assert text == '[MASK]the<extra_id_10> mat[MASK]<extra_id_1>'
    assert decode_marked(tokenizer, ids, {}) == tokenizer.decode(ids) == 'the mat'


def test_a_text_without_marks_is_encoded_as_it_is(tokenizer_and_marks):
    tokenizer, marks = tokenizer_and_marks
    assert encode_marked(tokenizer, ['the cat ', ''], marks) == [tokenizer.encode('the cat '), []]


@pytest.mark.parametrize('kind', ['bytes', 'chars'])
def test_a_space_that_is_a_token_stays(kind):
    tokenizer, marks = make(kind)
    [ids] = encode_marked(tokenizer, ['the [MASK] sat'], marks)
    expected = [*tokenizer.encode('the '), marks['[MASK]'], *tokenizer.encode(' sat')]
    assert ids == expected


def test_a_space_that_belongs_to_the_masked_word_goes_with_it():
    """The row of 'the cat sat' whose middle token is masked."""
    tokenizer, _ = make('bpe')
    row = tokenizer.encode('the cat sat')
    assert len(row) == 3
    row[1] = 1
    texts = ['the [MASK] sat', 'the  [MASK]']
    expected = [row, [*tokenizer.encode('the '), 1]]
    assert encode_marked(tokenizer, texts, {'[MASK]': 1}) == expected
