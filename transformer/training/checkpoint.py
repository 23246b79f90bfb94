"""Checkpoints of a run: Orbax, written in the background, atomic, whatever the device count."""

import contextlib
import logging
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from transformer.errors import UserError
from transformer.training.state import TrainState

# Orbax also logs the errors that it raises, which here become one line.
logging.getLogger('absl').setLevel(logging.CRITICAL)


class Checkpoints:
    """The checkpoints in a folder, one for each step saved; a half-written one does not count.

    Parameters are an item of their own, so that evaluation and sampling read nothing else.
    """

    def __init__(self, folder: pathlib.Path, keep: int | None = None):
        """Opens the folder: to write, keeping the newest `keep`, or just to read.

        Raises:
            UserError: there is no folder to read, or a file in its place.
        """
        if folder.exists() and not folder.is_dir():
            raise UserError(f'{folder} is a file: move it away, or give another --workdir.')
        if keep is None and not folder.is_dir():
            raise UserError(f'{folder} holds no checkpoint: train first.')
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, create=keep is not None)
        self._folder = folder
        self._manager = ocp.CheckpointManager(folder.absolute(), options=options)

    def __enter__(self) -> 'Checkpoints':
        return self

    def __exit__(self, kind: Any, *exception: Any) -> None:
        with self._writing() if kind is None else contextlib.suppress(Exception):
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

        Raises:
            UserError: this write or the one before it failed.
        """
        rest = {'step': state.step, 'opt_state': state.opt_state, 'bad_step': state.bad_step}
        items = ocp.args.Composite(
            params=ocp.args.PyTreeSave(state.params), rest=ocp.args.PyTreeSave(rest)
        )
        with self._writing():
            self._manager.save(int(state.step), args=items)

    def check_for_errors(self) -> None:
        """Raises UserError if a write in the background has failed."""
        with self._writing():
            self._manager.check_for_errors()

    def restore(self, like: TrainState) -> TrainState:
        """The newest state, in host memory: it may come from another number of devices.

        Args:
            like: a state of arrays or `jax.ShapeDtypeStruct`s, whose values are not used.

        Raises:
            UserError: there is no checkpoint, or it is damaged.
        """
        rest = {'step': like.step, 'opt_state': like.opt_state, 'bad_step': like.bad_step}
        items = ocp.args.Composite(params=_on_host(like.params), rest=_on_host(rest))
        restored = self._read(items)
        return TrainState(params=restored.params, **restored.rest)

    def restore_params(self, like: Any) -> Any:
        """The newest parameters alone; see `restore`."""
        items = ocp.args.Composite(params=_on_host(like))
        return self._read(items).params

    def _read(self, items: Any) -> Any:
        step = self.require_step()
        try:
            return self._manager.restore(step, args=items)
        except Exception as error:  # of many kinds, by what is damaged
            raise UserError(
                f'{self._folder / str(step)} cannot be read ({_first_line(error)}): move it away '
                'to go on from the checkpoint before it.'
            ) from error

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of many kinds, by what is full or forbidden
            raise UserError(
                f'{self._folder} cannot be written ({_first_line(error)}): make room and run '
                'again; the checkpoints before are kept.'
            ) from error


def _first_line(error: Exception) -> str:
    """The error's kind and the start of what it says, which may be pages."""
    line = next(iter(str(error).splitlines()), '')
    return f'{type(error).__name__}: {line[:200]}'


def _on_host(tree):
    """Arguments that restore a tree of this structure as numpy arrays."""
    kind = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
    return ocp.args.PyTreeRestore(jax.tree.map(ocp.utils.to_shape_dtype_struct, tree), kind)
