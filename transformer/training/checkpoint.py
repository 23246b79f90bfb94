"""Checkpoints of a run: Orbax, written in the background, atomic, whatever the device count."""

import contextlib
import functools
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
        items = {'params': state.params, 'rest': rest}
        if state.ema is not None:
            items['ema'] = state.ema
        args = {name: ocp.args.PyTreeSave(item) for name, item in items.items()}
        with self._writing():
            self._manager.save(int(state.step), args=ocp.args.Composite(**args))

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
        items = {'params': like.params, 'rest': rest}
        if like.ema is not None:
            items['ema'] = like.ema
        restored = self._read(self.require_step(), items)
        return TrainState(params=restored.params, ema=restored.get('ema'), **restored.rest)

    def restore_params(self, like: Any, *, ema: bool = False, average: int = 1) -> Any:
        """Parameters to evaluate, in host memory, and nothing else of the checkpoints.

        Args:
            like: see `restore`.
            ema: read the moving average that was kept beside them.
            average: of so many of the newest checkpoints, the mean.

        Raises:
            UserError: there are fewer checkpoints, or one is damaged.
        """
        self.require_step()
        steps = sorted(self._manager.all_steps())[-average:]
        if len(steps) < average:
            raise UserError(
                f'{self._folder} holds {len(steps)} checkpoint(s), too few for an average of '
                f'{average}: train with train.keep_checkpoints at least that.'
            )
        item = 'ema' if ema else 'params'
        each = (self._read(step, {item: like})[item] for step in steps)  # one in memory at a time
        if average == 1:
            return next(each)
        total = functools.reduce(lambda a, b: jax.tree.map(np.add, a, b), map(_float32, each))
        return jax.tree.map(lambda leaf, one: (leaf / average).astype(one.dtype), total, like)

    def _read(self, step: int, items: dict[str, Any]) -> Any:
        args = {name: _on_host(item) for name, item in items.items()}
        try:
            return self._manager.restore(step, args=ocp.args.Composite(**args))
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


def _float32(params):
    return jax.tree.map(lambda leaf: leaf.astype(np.promote_types(leaf.dtype, np.float32)), params)


def _first_line(error: Exception) -> str:
    """The error's kind and the start of what it says, which may be pages."""
    line = next(iter(str(error).splitlines()), '')
    return f'{type(error).__name__}: {line[:200]}'


def _on_host(tree):
    """Arguments that restore a tree of this structure as numpy arrays."""
    kind = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
    return ocp.args.PyTreeRestore(jax.tree.map(ocp.utils.to_shape_dtype_struct, tree), kind)
