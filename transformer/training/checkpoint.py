"""Checkpoints of a run: Orbax, written in the background, atomic, whatever the device count."""

import pathlib
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from transformer.errors import UserError
from transformer.training.state import TrainState


class Checkpoints:
    """The checkpoints in a folder, one for each step saved; a half-written one does not count.

    Parameters are an item of their own, so that evaluation and sampling read nothing else.
    """

    def __init__(self, folder: pathlib.Path, keep: int | None = None):
        """Opens the folder: to write, keeping the newest `keep`, or just to read.

        Raises:
            UserError: there is no folder to read.
        """
        if keep is None and not folder.is_dir():
            raise UserError(f'{folder} holds no checkpoint: train first.')
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, create=keep is not None)
        self._folder = folder
        self._manager = ocp.CheckpointManager(folder.absolute(), options=options)

    def __enter__(self) -> 'Checkpoints':
        return self

    def __exit__(self, *exception: Any) -> None:
        self._manager.close()

    @property
    def latest_step(self) -> int | None:
        return self._manager.latest_step()

    def require_step(self) -> int:
        """The step of the newest checkpoint; UserError if there is none."""
        if self.latest_step is None:
            raise UserError(f'{self._folder} holds no checkpoint: train first.')
        return self.latest_step

    def save(self, state: TrainState) -> None:
        """Starts to write the state; the caller may donate it to the next step at once.

        An error of the write before this one is raised here.
        """
        rest = {'step': state.step, 'opt_state': state.opt_state, 'bad_step': state.bad_step}
        items = ocp.args.Composite(
            params=ocp.args.PyTreeSave(state.params), rest=ocp.args.PyTreeSave(rest)
        )
        self._manager.save(int(state.step), args=items)

    def check_for_errors(self) -> None:
        """Raises the error of a write in the background, if there was one."""
        self._manager.check_for_errors()

    def restore(self, like: TrainState) -> TrainState:
        """The newest state, in host memory: it may come from another number of devices.

        Args:
            like: a state of arrays or `jax.ShapeDtypeStruct`s, whose values are not used.

        Raises:
            UserError: there is no checkpoint.
        """
        rest = {'step': like.step, 'opt_state': like.opt_state, 'bad_step': like.bad_step}
        items = ocp.args.Composite(params=_on_host(like.params), rest=_on_host(rest))
        restored = self._manager.restore(self.require_step(), args=items)
        return TrainState(params=restored.params, **restored.rest)

    def restore_params(self, like: Any) -> Any:
        """The newest parameters alone; see `restore`."""
        items = ocp.args.Composite(params=_on_host(like))
        return self._manager.restore(self.require_step(), args=items).params


def _on_host(tree):
    """Arguments that restore a tree of this structure as numpy arrays."""
    kind = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
    return ocp.args.PyTreeRestore(jax.tree.map(ocp.utils.to_shape_dtype_struct, tree), kind)
