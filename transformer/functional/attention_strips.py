"""Strips of attention: some queries each, with no keys but those that they may attend to."""

import itertools

from transformer.functional.attention_arguments import AttentionArguments
from transformer.functional.attention_blocks import Place
from transformer.functional.cpu import on_cpu

SHORTEST = 32  # queries of a strip
# Queries of a strip of a slice, and the most products query x key of a head that are cut into such:
# each strip is a part of the program.
OF_SLICE = 128
MOST_PRODUCTS = 2**22


def is_cut(arguments: AttentionArguments) -> bool:
    """Whether there are strips: on a CPU, if the positions are known to be the indices.

    Not in half precision, in which the gradients of a key would be added up strip by strip.
    """
    a = arguments
    is_bounded = a.by_index and (a.is_causal or a.window is not None)
    is_long = a.query.shape[1] >= 2 * SHORTEST
    return is_bounded and is_long and a.query.dtype.itemsize >= 4 and on_cpu()


def strips(arguments: AttentionArguments, most: int) -> list[Place]:
    """Where queries and keys of each of at most `most` strips lie, if `is_cut`."""
    a = arguments
    T, S = a.query.shape[1], a.key.shape[1]
    count = min(most, T // SHORTEST)
    left, right = a.window or (T, S)
    right = 0 if a.is_causal else right
    edges = [T * n // count for n in range(count + 1)]
    places = []
    for first, end in itertools.pairwise(edges):
        last_key = min(end + right, S)
        first_key = max(min(first - left, last_key - 1), 0)  # one at least, if only to mask it
        places.append({'T': (first, end - first), 'S': (first_key, last_key - first_key)})
    return places


def strips_of_slices(arguments: AttentionArguments) -> list[Place]:
    """The strips into which each slice of heads is cut, or none where blocks are to be taken."""
    T, S = arguments.query.shape[1], arguments.key.shape[1]
    is_small = OF_SLICE < T and T * S <= MOST_PRODUCTS and arguments.bias_fn is None
    return strips(arguments, T // OF_SLICE) if is_small and is_cut(arguments) else []
