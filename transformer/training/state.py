"""Everything that training changes, as one pytree."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct


@struct.dataclass
class TrainState:
    """What a checkpoint holds.

    Attributes:
        step: int32 scalar, updates made or skipped so far; also the next batch's number.
        params: of the Transformer.
        opt_state: of the optimizer.
        bad_step: int32 scalar, the first step whose gradient was not finite; -1: none.
    """

    step: jax.Array
    params: Any
    opt_state: Any
    bad_step: jax.Array

    @classmethod
    def create(cls, params: Any, optimizer: Any) -> 'TrainState':
        return cls(
            step=jnp.zeros((), jnp.int32),
            params=params,
            opt_state=optimizer.init(params),
            bad_step=jnp.full((), -1, jnp.int32),
        )
