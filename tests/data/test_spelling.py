"""What single tokens spell, whatever kind of tokenizer they are of."""

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from transformer.data.spelling import BYTES
from transformer.data.tokenizers import END_OF_TEXT, Tokenizer, train_tokenizer

TEXT = 'The café costs $5, or 三百円.\nหนึ่ง \\n'


def test_tokens_spell_their_text():
    for kind in 'bytes', 'chars', 'bpe':
        tokenizer = train_tokenizer(kind, [TEXT] * 3, 270)
        texts = tokenizer.token_texts(tokenizer.encode(TEXT))
        joined = ''.join(texts).encode(errors='surrogateescape').decode()
        assert joined == TEXT, kind
        assert tokenizer.token_texts([tokenizer.eos_id, 999]) == [END_OF_TEXT, '#999']
    assert ' ' in texts
    assert any('\udc80' <= text[-1] <= '\udcff' for text in texts)


def test_tokens_of_other_tokenizers_spell_their_text():
    metaspace = tokenizers.Tokenizer(models.Unigram([('<unk>', 0), ('▁a', -1), ('b▁', -2)], 0))
    metaspace.decoder = decoders.Metaspace()
    wordpiece = tokenizers.Tokenizer(models.WordPiece({'a': 0, '##b': 1, '▁': 2}, unk_token='a'))
    wordpiece.decoder = decoders.WordPiece()
    # A name in the vocabulary that is not made of bytes.
    byte_level = tokenizers.Tokenizer(models.BPE(vocab={'Ġ': 0, '三': 1, 'Ã': 2}, merges=[]))
    byte_level.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()])
    for backend, expected in (
        (metaspace, ['<unk>', ' a', 'b ', '</s>']),
        (wordpiece, ['a', '##b', '▁', '</s>']),
        (byte_level, [' ', '三', '\udcc3', '</s>']),
    ):
        backend.add_special_tokens(['</s>'])
        assert Tokenizer(backend).token_texts(range(4)) == expected


def test_byte_alphabet_is_the_library_s():
    assert sorted(BYTES) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(BYTES.values()) == list(range(256))
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    text = ''.join(map(chr, [*range(0x800), *range(0x1000, 0xD800, 64)]))
    ((symbols, _),) = splitter.pre_tokenize_str(text)
    assert bytes(map(BYTES.get, symbols)) == text.encode()
