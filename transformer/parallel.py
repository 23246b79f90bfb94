"""Batches, rows or trials spread over devices with pmap: the only file that names devices."""

import contextlib
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer.errors import UserError

AXIS = 'data'


class _Spread:
    """Arrays of rows or trials, equal numbers of them on each of some devices."""

    def __init__(self, devices: Sequence[jax.Device]):
        self.devices = tuple(devices)
        mesh = Mesh(np.array(devices), (AXIS,))
        self._by_device = NamedSharding(mesh, PartitionSpec(AXIS))
        self._everywhere = NamedSharding(mesh, PartitionSpec())
        self._put = functools.partial(jax.device_put, device=self._by_device)

    @property
    def _is_single(self) -> bool:
        return len(self.devices) == 1

    def split(self, tree: Any) -> Any:
        """This process's arrays [n, ...] as [devices, n / devices, ...], a part on each device."""
        count = len(self.devices)
        return self._put(jax.tree.map(lambda a: a.reshape(count, -1, *a.shape[1:]), tree))

    def replicate(self, tree: Any) -> Any:
        """The tree on every device, shapes unchanged."""
        return jax.device_put(tree, self._everywhere)

    def gather(self, tree: Any) -> Any:
        """The inverse of `split`, in host memory."""
        return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), jax.device_get(tree))


class DataParallel(_Spread):
    """Runs steps on equal parts of a batch, one a device, with the state on every device.

    The state keeps its plain shapes: `jax.pmap` with in_axes=None and out_axes=None takes and
    returns it whole, so that checkpoints do not depend on the number of devices. That out_axes does
    not check that devices agree; what a step returns must have been summed over the axis 'data'.
    """

    def __init__(self, num_devices: int | None = None):
        """Takes the first `num_devices` devices of this process; None: all.

        Raises:
            UserError: this process has fewer devices.
        """
        devices = jax.local_devices()
        if num_devices is not None and not 1 <= num_devices <= len(devices):
            raise UserError(
                f'parallel.devices is {num_devices}, but this process has {len(devices)} '
                f'{devices[0].platform} device(s).'
            )
        super().__init__(devices[:num_devices])
        if self._is_single:  # a compiled call has a sixth of the host's work
            self._put = jax.jit(lambda parts: parts, out_shardings=self._by_device)

    @property
    def process(self) -> tuple[int, int]:
        """This process's index and the number of processes."""
        return jax.process_index(), jax.process_count()

    def check_batch(self, rows: int, accumulation: int = 1) -> int:
        """The rows of one micro-batch on one device, of a batch of `rows` over all.

        Raises:
            UserError: the batch does not divide evenly.
        """
        parts = len(self.devices) * jax.process_count() * accumulation
        if rows % parts:
            raise UserError(
                f'data.batch_size {rows} does not divide into {len(self.devices)} device(s) x '
                f'{jax.process_count()} process(es) x {accumulation} micro-batch(es): '
                f'make it a multiple of {parts}.'
            )
        return rows // parts

    def round_up(self, rows: int) -> int:
        """The least number of rows, not below this one, that all devices divide."""
        parts = len(self.devices) * jax.process_count()
        return -(-rows // parts) * parts

    def train(self, step: Callable[..., Any]) -> Callable[[Any, Any], Any]:
        """`step(state, batch, axis_name=...)` over all devices; the given state is consumed."""
        return self._map(step, donate_argnums=0)

    def evaluate(self, step: Callable[..., Any]) -> Callable[[Any, Any], Any]:
        """`step(params, batch, axis_name=...)` over all devices."""
        return self._map(step)

    def _map(self, step, **donation):
        return jax.pmap(
            lambda shared, batch: step(shared, batch, axis_name=AXIS),
            axis_name=AXIS,
            in_axes=(None, 0),
            out_axes=None,
            # Naming devices would leave out those of the other processes.
            devices=None if jax.process_count() > 1 else self.devices,
            **donation,
        )


def make_cores_devices() -> None:
    """Makes each CPU core a device of its own, where CPUs are the devices of this process.

    For programs that run side by side; one program uses all cores anyway. Nothing happens once JAX
    has found its devices, or if XLA_FLAGS sets their number.
    """
    if 'xla_force_host_platform_device_count' not in os.environ.get('XLA_FLAGS', ''):
        with contextlib.suppress(RuntimeError):
            jax.config.update('jax_num_cpu_devices', len(os.sched_getaffinity(0)))


class RowParallel(_Spread):
    """Runs programs for rows that never meet, a part of the rows on each device.

    Nothing connects the devices, so each goes at its own pace. A single one has the rows as they
    are: nothing is split or moved then, and a program is a plain call.
    """

    def __init__(self, rows: int):
        """Takes all devices of this process, or as many as there are rows."""
        super().__init__(jax.local_devices()[:rows])

    def split(self, tree: Any) -> Any:
        """Arrays [n, ...] on the devices; the last row is repeated until they divide the rows."""
        if self._is_single:
            return tree

        def filled(a):
            more = -len(a) % len(self.devices)
            return np.pad(a, [(0, more)] + [(0, 0)] * (np.ndim(a) - 1), 'edge')

        return super().split(jax.tree.map(filled, tree))

    def replicate(self, tree: Any) -> Any:
        """The tree on every device, for an argument that all rows share."""
        return tree if self._is_single else super().replicate(tree)

    def gather(self, tree: Any) -> Any:
        """Arrays [n, ...] in host memory; rows that `split` repeated come last."""
        return jax.device_get(tree) if self._is_single else super().gather(tree)

    def map(
        self,
        function: Callable[..., Any],
        in_axes: tuple[int | None, ...],
        donate: tuple[int, ...] = (),
        **static: Any,
    ) -> Callable[..., Any]:
        """`function` of some rows over all of them, compiled once for the same arguments of `map`.

        Args:
            function: compiled for a single device, with its own donations.
            in_axes: of each argument, 0: made by `split` or by such a program, or None: shared.
            donate: arguments that are consumed.
            **static: further arguments, hashable.
        """
        if self._is_single:
            return functools.partial(function, **static)
        return _mapped(function, in_axes, donate, self.devices, **static)


@functools.lru_cache
def _mapped(function, in_axes, donate, devices, **static):
    call = functools.partial(function, **static)
    return jax.pmap(call, AXIS, in_axes=in_axes, devices=devices, donate_argnums=donate)


class TrialParallel(_Spread):
    """Runs one function for many trials: equal numbers on each device, there chunk by chunk.

    Arrays of the trials are [devices, trials of a device, ...], made by `split`.
    """

    def __init__(self, trials: int, num_devices: int | None = None, chunk: int | None = None):
        """Takes as many of this process's devices as there are trials, at most `num_devices`.

        Args:
            trials: rounded up to `slots`, so that devices and chunks divide them.
            chunk: trials of a device that are computed side by side, by vmap; chunks follow one
                another in a loop of one compiled body. None: all.

        Raises:
            UserError: this process has fewer devices than `num_devices`.
        """
        devices = DataParallel(num_devices).devices[:trials]
        share = -(-trials // len(devices))
        self.chunk = min(chunk or share, share)
        self.per_device = -(-share // self.chunk) * self.chunk
        super().__init__(devices)

    @property
    def slots(self) -> int:
        """Trials that one call computes."""
        return len(self.devices) * self.per_device

    def map(
        self, function: Callable[..., Any], in_axes: tuple[int | None, ...], donate: bool = False
    ) -> Callable[..., Any]:
        """`function` of a single trial over all of them.

        Args:
            in_axes: of each argument, 0: made by `split`, or None: made by `replicate`.
            donate: the first argument is consumed.
        """

        def run(*args):
            own = [arg for arg, axis in zip(args, in_axes, strict=True) if axis == 0]

            def one(own):
                rest = iter(own)
                return function(
                    *(
                        next(rest) if axis == 0 else arg
                        for arg, axis in zip(args, in_axes, strict=True)
                    )
                )

            if self.chunk == self.per_device:
                return jax.vmap(one)(own)
            return jax.lax.map(one, own, batch_size=self.chunk if self.chunk > 1 else None)

        return jax.pmap(
            run,
            AXIS,
            in_axes=in_axes,
            devices=self.devices,
            donate_argnums=(0,) if donate else (),
        )
