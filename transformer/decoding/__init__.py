"""What a trained model is used for: text drawn or searched, masks filled, rows classified."""

from transformer.decoding.beam import Hypothesis, beam_search
from transformer.decoding.checks import (
    check_beams,
    check_encoding,
    check_filling,
    check_prompts,
    check_sampling,
)
from transformer.decoding.encoding import classify, embed
from transformer.decoding.filling import fill_masks
from transformer.decoding.generation import generate, stream, unrolled

__all__ = [
    'Hypothesis',
    'beam_search',
    'check_beams',
    'check_encoding',
    'check_filling',
    'check_prompts',
    'check_sampling',
    'classify',
    'embed',
    'fill_masks',
    'generate',
    'stream',
    'unrolled',
]
