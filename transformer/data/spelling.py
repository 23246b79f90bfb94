"""What single tokens spell, which their decoding, made for whole texts, does not tell."""

import json
from collections.abc import Iterable

# The characters that a byte-level tokenizer writes its bytes as: a printable byte as itself, the
# others, in order, as what follows 255 (Radford et al. 2019).
_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = sorted({*range(256)} - {*_PRINTABLE})
BYTES = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(256 + i): byte for i, byte in enumerate(_OTHERS)
}


def token_texts(tokenizer_json: str, ids: Iterable[int]) -> list[str]:
    """See `Tokenizer.token_texts`."""
    spec = json.loads(tokenizer_json)
    vocab = spec['model']['vocab']  # of a Unigram model, a list of (token, score)
    names = vocab if isinstance(vocab, dict) else {name: id for id, (name, _) in enumerate(vocab)}
    tokens = {id: name for name, id in names.items()}
    added = {token['id']: token['content'] for token in spec['added_tokens']}
    decoder = json.dumps(spec['decoder'], ensure_ascii=False)

    def text(id):
        if id in added or id not in tokens:
            return added.get(id, f'#{id}')
        if '"ByteLevel"' in decoder and BYTES.keys() >= {*tokens[id]}:
            return bytes(map(BYTES.get, tokens[id])).decode(errors='surrogateescape')
        return tokens[id].replace('▁', ' ') if '▁' in decoder else tokens[id]

    return [text(int(id)) for id in ids]
