"""Strips of attention: some queries each, with no keys but those that they may attend to."""

import itertools
import math

from transformer.functional.attention_arguments import AttentionArguments
from transformer.functional.attention_blocks import CPU_BUDGET, CPU_SIDE, Place
from transformer.functional.cpu import on_cpu

SHORTEST = 32  # queries of a strip
# Queries of a strip of a block, and the most products query x key of a head that are cut into such:
# each strip is a part of the program.
OF_BLOCK = 128
MOST_PRODUCTS = 2**22


def is_cut(arguments: AttentionArguments) -> bool:
    """Whether there are strips: on a CPU, if the positions are known to be the indices.

    Not in half precision, in which the gradients of a key would be added up strip by strip.
    """
    a = arguments
    is_bounded = a.by_index and (a.is_causal or a.window is not None)
    is_long = a.query.shape[1] >= 2 * SHORTEST
    return is_bounded and is_long and a.query.dtype.itemsize >= 4 and on_cpu()


def strips(arguments: AttentionArguments, T: int, S: int, most: int) -> list[Place]:
    """Where each of at most `most` strips of the first T queries and S keys lies, if `is_cut`."""
    count = min(most, T // SHORTEST)
    left, right = arguments.window or (T, S)
    right = 0 if arguments.is_causal else right
    edges = [T * n // count for n in range(count + 1)]
    places = []
    for first, end in itertools.pairwise(edges):
        last_key = min(end + right, S)
        first_key = max(min(first - left, last_key - 1), 0)  # one at least, if only to mask it
        places.append({'T': (first, end - first), 'S': (first_key, last_key - first_key)})
    return places


def strips_of_diagonal(arguments: AttentionArguments) -> list[Place]:
    """The strips of each block that the diagonal crosses, or none where blocks are taken whole.

    There are several blocks, square and equal, where causality alone leaves out keys; else one.
    """
    a = arguments
    (T, N), (S, K) = a.query.shape[1:3], a.key.shape[1:3]
    if T <= OF_BLOCK or a.bias_fn is not None or not is_cut(a):
        return []
    least = -(-T // min(CPU_SIDE, math.isqrt(CPU_BUDGET // (N // K))))
    count = next((n for n in range(least, 2 * least) if T % n == 0), 1)
    if T == S and a.is_causal and a.window is None:
        T = S = T // count
    return strips(a, T, S, T // OF_BLOCK) if T * S <= MOST_PRODUCTS else []
