"""What every layer of a stack shares in one call: who sits where, biases, memory, dropout."""

from collections.abc import Callable
from typing import Any

import jax
from flax import struct

from transformer.functional import dropout


@struct.dataclass
class Dropout:
    """Dropout rates and the randomness they use. A rate that is None drops nothing, statically.

    Attributes:
        keys: [B] jax keys, one for each row, each a function of (seed, step, global row), so that
            masks do not depend on devices, accumulation or resumption.
        attention, residual, embedding: probabilities, floats or traced scalars.
    """

    keys: jax.Array
    attention: Any = None
    residual: Any = None
    embedding: Any = None

    def fold(self, number: int | jax.Array) -> 'Dropout':
        """The same rates with keys of the part of the model that has this number."""
        return self.replace(keys=jax.vmap(jax.random.fold_in, (0, None))(self.keys, number))


def drop(x: jax.Array, rates: Dropout | None, rate: str, site: int) -> jax.Array:
    """x [B, ...] with dropout at the rate of this name; `site` tells places of one part apart."""
    if rates is None or getattr(rates, rate) is None:
        return x
    return dropout(x, getattr(rates, rate), rates.fold(site).keys)


@struct.dataclass
class Context:
    """Arguments that all layers of a stack share.

    Attributes:
        positions: [B, T] index of each token inside its own sequence.
        segment_ids: [B, T] 1, 2, ... inside a packed row, 0 = padding; None: one segment a row.
        mask: [B, T, S] bool, True = may attend, if nothing else forbids it: in self-attention, S
            the slots of the cache or, without one, T.
        bias_fn, bias_params: the structured bias of self-attention, see `dot_product_attention`.
        memory: [B, S, D] an encoder's output, if layers have to project it themselves.
        memory_segment_ids: [B, S] segments of the memory, which pair with `segment_ids`.
        dropout: rates and keys; None: nothing is dropped.
    """

    positions: jax.Array
    segment_ids: jax.Array | None
    mask: jax.Array | None = None
    bias_params: Any = None
    memory: jax.Array | None = None
    memory_segment_ids: jax.Array | None = None
    dropout: Dropout | None = None
    bias_fn: Callable | None = struct.field(pytree_node=False, default=None)

    @property
    def bias(self) -> tuple[Callable, Any] | None:
        return None if self.bias_fn is None else (self.bias_fn, self.bias_params)

    def at_site(self, site: int) -> 'Context':
        """The same context with the dropout keys of another place in the layer."""
        return self if self.dropout is None else self.replace(dropout=self.dropout.fold(site))
