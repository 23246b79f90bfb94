"""Text from a trained decoder: greedy or drawn, all at once or streamed."""

from transformer.decoding.generation import (
    check_prompts,
    check_sampling,
    generate,
    stream,
    unrolled,
)

__all__ = ['check_prompts', 'check_sampling', 'generate', 'stream', 'unrolled']
