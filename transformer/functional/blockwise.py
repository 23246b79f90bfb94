"""Attention in memory linear in the lengths: block by block, with an online softmax.

The forward pass keeps a running maximum and sum for each query (Milakov and Gimelshein 2018; Rabe
and Staats 2021). The backward pass computes every block again from the output and the log-sum-exp,
all that is kept beside the arguments (Dao et al. 2022, algorithms 1 and 4). Both go slice by slice
of rows and heads; a slice is cut into blocks, or, where all keys are few, into strips of queries.
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array, lax

from transformer.functional.attention_arguments import (
    AttentionArguments,
    join_arguments,
    split_arguments,
)
from transformer.functional.attention_strips import strips_of_diagonal
from transformer.functional.blockwise_backward import backward
from transformer.functional.blockwise_forward import forward


def blockwise_attention(arguments: AttentionArguments) -> tuple[Array, Array]:
    """Attention with no more than the logits of a block, or of a slice of heads, in memory.

    Its gradient may be differentiated in forward mode, but not in reverse mode once more.

    Returns:
        Output [B, T, N, V] and residual [B, T, N].
    """
    floats, others = split_arguments(lambda x: jnp.issubdtype(x.dtype, jnp.floating), arguments)
    integers, fixed = split_arguments(lambda x: True, others)
    # Found here: within, the positions are no longer known to be the indices.
    places = strips_of_diagonal(arguments)
    output, residual = _attention(places, fixed, integers, floats)  # [B, T, N, V], [B, T, N, 1]
    return output.astype(arguments.query.dtype), lax.stop_gradient(residual)[..., 0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attention(places, fixed, integers, floats) -> tuple[Array, Array]:
    """Output [B, T, N, V] and log-sum-exp [B, T, N, 1], in the dtype of the softmax."""
    return forward(join_arguments(floats, integers, fixed), places)


def _attention_forward(places, fixed, integers, floats):
    output, residual = forward(join_arguments(floats, integers, fixed), places)
    return (output, residual), (integers, floats, output, residual)


def _attention_backward(places, fixed, saved, gradients):
    integers, floats, output, residual = saved
    others = join_arguments(integers, fixed)
    gradients = backward(others, floats, output, residual, gradients[0], places)
    return None, jax.tree.map(_differentiable_once, gradients)


_attention.defvjp(_attention_forward, _attention_backward)


@jax.custom_jvp
def _differentiable_once(x: Array) -> Array:
    """`x`, through which no gradient flows back: the loops behind it have none."""
    return x


@_differentiable_once.defjvp
def _differentiable_once_jvp(primals, tangents):
    tangent = jax.custom_derivatives.linear_call(lambda _, x: x, _refuse, (), tangents[0])
    return primals[0], tangent


def _refuse(_, gradient):
    raise ValueError(
        'attention by blocks has no gradient of its gradient in reverse mode: use '
        "implementation='xla', or forward mode over reverse."
    )
