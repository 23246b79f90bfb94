"""Targets decoded from a split's sources, and how near they come to the references."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from transformer.data import Tokenizer
from transformer.decoding import beam_search, generate, unrolled
from transformer.modules import Transformer


class Search(NamedTuple):
    """How targets are decoded.

    Attributes:
        beam_size: hypotheses kept; 1 is greedy.
        length_penalty: alpha of `beam_search`.
        max_new_tokens: of a target.
        batch_size: sources at a time.
    """

    beam_size: int = 1
    length_penalty: float = 0.6
    max_new_tokens: int = 128
    batch_size: int = 32


def translate(
    model: Transformer,
    params: Any,
    texts: Sequence[str],
    tokenizer: Tokenizer,
    source_tokenizer: Tokenizer | None,
    search: Search,
    advance: Callable[[int], None] = lambda count: None,
) -> list[str]:
    """The likeliest target of each source text, by a greedy or a beam search.

    Sources of more tokens than the model's `max_length` are read up to there.

    Args:
        model, params: an encoder_decoder.
        tokenizer: of the targets, and of the sources if `source_tokenizer` is None.
        advance: called with the number of sources done since the call before.
    """
    encoder = source_tokenizer or tokenizer
    limit = model.config.max_length
    sources = [[*ids, encoder.eos_id][:limit] for ids in encoder.encode_batch(texts)]
    model, params = unrolled(model, params)
    options = {
        'max_new_tokens': min(search.max_new_tokens, limit - 1),
        'eos_id': tokenizer.eos_id,
        'vocab_limit': tokenizer.vocab_size,
    }
    # Sources of a length together, so that little is padding.
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    results = [''] * len(sources)
    for start in range(0, len(order), search.batch_size):
        numbers = order[start : start + search.batch_size]
        batch = [sources[i] for i in numbers]
        prompts = [[tokenizer.start_id]] * len(batch)
        if search.beam_size == 1:
            rows = generate(model, params, prompts, sources=batch, **options)
        else:
            found = beam_search(
                model,
                params,
                prompts,
                batch,
                beam_size=search.beam_size,
                length_penalty=search.length_penalty,
                **options,
            )
            rows = [hypotheses[0].tokens for hypotheses in found]
        for i, row in zip(numbers, rows, strict=True):
            results[i] = tokenizer.decode(row)
        advance(len(numbers))
    return results


def text_metrics(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """`exact_match` [0, 1], and `bleu` and `chrf` [0, 100] with sacrebleu's signatures.

    BLEU: Papineni et al. 2002, as Post 2018 fixes it; chrF: Popovic 2015.
    """
    from sacrebleu.metrics import BLEU, CHRF  # not above: other tasks need none

    same = sum(a == b for a, b in zip(hypotheses, references, strict=True))
    metrics: dict[str, Any] = {'exact_match': same / max(len(references), 1)}
    for name, metric in (('bleu', BLEU()), ('chrf', CHRF())):
        metrics[name] = metric.corpus_score(list(hypotheses), [list(references)]).score
        metrics[f'{name}_signature'] = str(metric.get_signature())
    return metrics
