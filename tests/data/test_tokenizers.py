"""Tokenizers: lossless, saved whole, and clear about what they cannot encode."""

import random

import pytest
import tokenizers

from transformer.data.tokenizers import (
    SENTINELS,
    StreamDecoder,
    Tokenizer,
    load_tokenizer,
    train_tokenizer,
)
from transformer.errors import UserError

HARD = [
    'plain text, twice  spaced ',
    'def f(x):\n    return x\n\n\n\tx = 1  \n',
    'a\rb\r\nc\x00d\x7f\x0b\x0c\x85\u2028e',
    'naïve Ünïcödé ﬁ é',
    '中文字符 日本語 한국어 عربى',
    '\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \ufeff\ufffd\U0010ffff',
    '<|endoftext|> is spelt like this',
    ' ',
    '\n',
    '',
]


@pytest.fixture(params=['bytes', 'chars', 'bpe'])
def tokenizer(request):
    return train_tokenizer(request.param, HARD * 3, vocab_size=320)


def test_round_trip_of_any_text(tokenizer):
    for text, ids in zip(HARD, tokenizer.encode_batch(HARD), strict=True):
        assert tokenizer.decode(ids) == text
        assert tokenizer.encode(text) == ids
        assert tokenizer.eos_id not in ids  # not even from its own spelling
        assert all(0 <= id < tokenizer.vocab_size for id in ids)


def test_saved_and_loaded_are_the_same(tokenizer, tmp_path):
    path = tokenizer.save(tmp_path / 'new' / 'folder')
    assert path.name == 'tokenizer.json'
    for loaded in load_tokenizer(path), load_tokenizer(path.parent):
        assert loaded.encode_batch(HARD) == tokenizer.encode_batch(HARD)
        assert loaded.vocab_size == tokenizer.vocab_size
        assert loaded.eos_id == tokenizer.eos_id
        assert loaded.to_json() == tokenizer.to_json()
        assert loaded.unknown_characters('\u1234') == tokenizer.unknown_characters('\u1234')


def test_separator_spells_nothing(tokenizer):
    assert tokenizer.decode([tokenizer.eos_id]) == ''
    assert tokenizer.decode([tokenizer.eos_id, *tokenizer.encode('a b'), tokenizer.eos_id]) == 'a b'


def test_stream_decoder_joins_to_decode(tokenizer):
    rng = random.Random(0)
    sequences = tokenizer.encode_batch(HARD)
    sequences += [rng.choices(range(tokenizer.vocab_size), k=60) for _ in range(40)]
    for ids in sequences:
        stream = StreamDecoder(tokenizer)
        steps = [stream.step(id) for id in ids]
        assert ''.join(steps) + stream.flush() == tokenizer.decode(ids)
        assert not any(step.endswith('\ufffd') for step in steps)


def test_stream_decoder_waits_for_whole_characters():
    tokenizer = train_tokenizer('bytes', [])
    stream = StreamDecoder(tokenizer)
    assert [stream.step(id) for id in 'é\U0001f600'.encode()] == ['', 'é', '', '', '', '\U0001f600']
    assert stream.flush() == ''
    stream.step('é'.encode()[0])
    assert stream.flush() == '\ufffd'


def test_bytes_are_their_own_ids():
    tokenizer = train_tokenizer('bytes', [])
    assert tokenizer.encode('a\x00é') == list('a\x00é'.encode())
    assert (tokenizer.vocab_size, tokenizer.eos_id) == (257, 256)


def test_chars_are_sorted():
    tokenizer = train_tokenizer('chars', ['cab', 'd'])
    assert tokenizer.encode('abcd') == [0, 1, 2, 3]
    assert (tokenizer.vocab_size, tokenizer.eos_id) == (5, 4)


def test_chars_name_what_they_lack():
    tokenizer = train_tokenizer('chars', ['abc'])
    assert tokenizer.unknown_characters('zebra') == ['e', 'r', 'z']
    with pytest.raises(UserError, match=r"lacks 'e' 'r' 'z': .* bytes or bpe"):
        tokenizer.encode('zebra')
    with pytest.raises(UserError, match=r"lacks '!' .*'\(' \.\.\.:"):
        tokenizer.encode(''.join(map(chr, range(33, 60))))


def test_bpe_merges_what_is_frequent():
    tokenizer = train_tokenizer('bpe', ['hello world ' * 50], vocab_size=300)
    assert len(tokenizer.encode('hello world')) == 2
    assert tokenizer.vocab_size < 300  # no more pairs to merge
    many = train_tokenizer('bpe', [' '.join(map(str, range(3000)))], vocab_size=300)
    assert many.vocab_size == 300
    assert (
        many.to_json() == train_tokenizer('bpe', [' '.join(map(str, range(3000)))], 300).to_json()
    )


def test_foreign_tokenizer_is_used_without_its_template(tmp_path):
    words = {'[CLS]': 0, '[SEP]': 1, '[UNK]': 2, 'a': 3, 'b': 4, 'far': 9}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token='[UNK]'))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single='[CLS] $A [SEP]', special_tokens=[('[CLS]', 0), ('[SEP]', 1)]
    )
    backend.enable_truncation(2)
    backend.enable_padding(length=8)
    backend.save(str(tmp_path / 'tokenizer.json'))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode('a b a') == [3, 4, 3]
    assert tokenizer.eos_id == 1
    assert tokenizer.vocab_size == 10  # the largest id decides, not the number of entries


@pytest.mark.parametrize('kind', ['bytes', 'chars', 'bpe'])
def test_special_tokens_come_after_the_separator(kind):
    plain = train_tokenizer(kind, HARD * 3, 500)
    assert (plain.mask_id, plain.sentinel_ids) == (None, ())
    masking = train_tokenizer(kind, HARD * 3, 501, ['[MASK]'])
    assert masking.mask_id == masking.eos_id + 1
    corrupting = train_tokenizer(kind, HARD * 3, 600, SENTINELS)
    first = corrupting.eos_id + 1
    assert corrupting.sentinel_ids == tuple(range(first, first + 100))
    for tokenizer, spelt in (masking, '[MASK]'), (corrupting, '<extra_id_0>'):
        special = {tokenizer.mask_id, *tokenizer.sentinel_ids}
        text = f'text {spelt}' if kind != 'chars' else 'text'
        ids = tokenizer.encode(text)
        assert not special & set(ids)  # a text never encodes to one
        assert tokenizer.decode([*ids, max(special - {None})]) == text
    assert train_tokenizer(kind, HARD * 3, 500).to_json() == plain.to_json()


def test_special_tokens_of_foreign_tokenizers():
    words = {'</s>': 0, '<mask>': 1, '<extra_id_1>': 2, '<extra_id_0>': 3, 'a': 4}
    tokenizer = Tokenizer(tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token='a')))
    assert tokenizer.mask_id == 1
    assert tokenizer.sentinel_ids == (3, 2)  # by their numbers


def test_mistakes(tmp_path):
    with pytest.raises(UserError, match=r'no tokenizer .*nowhere: give bytes, chars, bpe'):
        load_tokenizer(tmp_path / 'nowhere')
    (tmp_path / 'tokenizer.json').write_text('{"model": 1}')
    with pytest.raises(UserError, match=r'tokenizer.json is not a tokenizer.json: '):
        load_tokenizer(tmp_path)
    with pytest.raises(UserError, match=r"one of bpe, bytes, chars; not 'wordpiece'"):
        train_tokenizer('wordpiece', [])
    with pytest.raises(UserError, match=r'data.vocab_size 256 is too small .* set at least 257'):
        train_tokenizer('bpe', ['text'], vocab_size=256)
    with pytest.raises(UserError, match=r'256 bytes and 101 special tokens: set at least 357'):
        train_tokenizer('bpe', ['text'], 356, SENTINELS)
    with pytest.raises(
        UserError, match=r'given has no token that ends a document: add one of <.endoftext'
    ):
        Tokenizer(tokenizers.Tokenizer(tokenizers.models.BPE({'a': 0}, [])), 'given')
    tokenizer = train_tokenizer('bytes', [])
    for id in 257, -1:
        with pytest.raises(UserError, match=f'Token {id} is outside the vocabulary of 257'):
            tokenizer.decode([1, id])
    with pytest.raises(UserError, match=r"'\\udc80', half a surrogate pair"):
        tokenizer.encode('from a shell: \udc80')


def framed(*after):
    """A tokenizer of bytes whose tokenizer.json puts <s> (257) before a text, and tokens after."""
    plain = train_tokenizer('bytes', [], special_tokens=['<s>']).to_json()
    backend = tokenizers.Tokenizer.from_str(plain)
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single=' '.join(['<s>', '$A', *after]),
        special_tokens=[('<s>', 257), ('<|endoftext|>', 256)],
    )
    return Tokenizer(backend)


def test_pairs_of_a_published_model_are_framed_as_its_texts():
    plain = framed('<|endoftext|>')
    assert (plain.prefix, plain.start_id) == ([], plain.eos_id)
    pairs = plain.for_pairs(3)
    assert pairs.encode_batch(['ab', '']) == [[257, *b'ab'], [257]]
    assert (pairs.start_id, pairs.eos_id) == (3, 256)
    assert plain.for_pairs(None).start_id == 256
    assert plain.encode('ab') == [*b'ab']  # which stays as it is
    assert framed().for_pairs(3).prefix == [257]
    with pytest.raises(UserError, match=r'ends a text with the tokens \[256, 257\]'):
        framed('<|endoftext|>', '<s>').for_pairs(3)
    ours = train_tokenizer('bytes', []).for_pairs(None)
    assert (ours.prefix, ours.start_id) == ([], 256)
