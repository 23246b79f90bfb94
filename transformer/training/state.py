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
        ema: moving average of the parameters; None: not kept.
    """

    step: jax.Array
    params: Any
    opt_state: Any
    bad_step: jax.Array
    ema: Any = None

    @classmethod
    def create(cls, params: Any, optimizer: Any, keeps_ema: bool = False) -> 'TrainState':
        return cls(
            step=jnp.zeros((), jnp.int32),
            params=params,
            opt_state=optimizer.init(params),
            bad_step=jnp.full((), -1, jnp.int32),
            ema=jax.tree.map(jnp.copy, params) if keeps_ema else None,
        )

    @property
    def best_params(self) -> Any:
        """The parameters to evaluate: the moving average where it is kept."""
        return self.params if self.ema is None else self.ema
