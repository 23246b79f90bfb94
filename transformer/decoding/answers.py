"""What a model answered, as text to read and as the object of a JSON line."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer.decoding.beam import Hypothesis
from transformer.decoding.marks import decode_marked


class Answer(NamedTuple):
    """An answer to a prompt.

    Attributes:
        record: for a JSON line.
        text: for a reader.
        tokens: what the stack that makes the logits read, and what it added.
        remark: for the heading above the text; '' if there is nothing to say.
    """

    record: dict[str, Any]
    text: str
    tokens: list[int]
    remark: str = ''


def written(
    tokenizer: Any,
    marks: Mapping[str, int],
    text: str,
    prompt: Sequence[int],
    new: Sequence[int] | Hypothesis,
) -> Answer:
    """A text that was made.

    Args:
        tokenizer: a `transformer.data.Tokenizer`.
        marks: special tokens to spell out, see `decode_marked`.
        text: the prompt as the user wrote it.
        prompt: the tokens that were continued.
        new: the tokens after them, or the hypothesis of a beam search.
    """
    scores = {}
    if isinstance(new, Hypothesis):
        scores = {'score': new.score, 'log_probability': new.log_probability}
        new = new.tokens
    whole = decode_marked(tokenizer, [*prompt, *new], marks)
    record = {
        'prompt': text,
        'completion': whole[len(decode_marked(tokenizer, prompt, marks)) :],
        'ended': new[-1] == tokenizer.eos_id,
    }
    remark = f'score {scores["score"]:.4f}' if scores else ''
    return Answer(record | scores, whole, [*prompt, *new], remark)


def filled(
    tokenizer: Any,
    text: str,
    row: Sequence[int],
    masks: Sequence[Sequence[tuple[int, float]]],
) -> Answer:
    """A row whose masks were filled, from what `fill_masks` returns for it."""
    likeliest = iter([candidates[0][0] for candidates in masks])
    whole = tokenizer.decode([next(likeliest) if id == tokenizer.mask_id else id for id in row])
    named = [
        [{'token': tokenizer.decode([id]), 'probability': p} for id, p in candidates]
        for candidates in masks
    ]
    lines = [whole]
    for number, candidates in enumerate(named, 1):
        shown = (f'{one["token"]!r} {one["probability"]:.4f}' for one in candidates)
        lines.append(f'mask {number}: {", ".join(shown)}')
    record = {'prompt': text, 'filled': whole, 'masks': named}
    return Answer(record, '\n'.join(lines), list(row))


def classified(
    labels: Sequence[str], text: str, row: Sequence[int], probabilities: np.ndarray
) -> Answer:
    """A row whose classes have these probabilities [C]; classes without a label are left out."""
    pairs = dict(zip(labels, probabilities[: len(labels)].tolist(), strict=True))
    ranked = sorted(pairs, key=pairs.get, reverse=True)
    record = {'prompt': text, 'label': ranked[0], 'probabilities': pairs}
    return Answer(record, '\n'.join(f'{pairs[name]:.4f} {name}' for name in ranked), list(row))
