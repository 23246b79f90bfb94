"""Axes of a published tensor as data: how they are merged, ordered and shared out.

A layout names the axes of the published tensor in order, those that are merged into one in
parentheses: `'(heads head_dim) embed'` is a matrix [N * H, D]. The axis `part`, of any size, tells
apart several parameters of ours that are published as one tensor: `'embed (part heads head_dim)'`.
All other names are those of `PARAMETER_AXES`, with `heads` for `kv_heads` too.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from transformer.modules.axes import parameter_axes

PART = 'part'


@dataclasses.dataclass(frozen=True)
class Layout:
    """The axes of one published tensor and of our parameters in it.

    Attributes:
        groups: for each axis of the published tensor, the axes that are merged in it.
        ours: the axes of each parameter.
        sizes: of all axes, by name.
    """

    groups: tuple[tuple[str, ...], ...]
    ours: tuple[str, ...]
    sizes: Mapping[str, int]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the published tensor."""
        return tuple(math.prod(self.sizes[axis] for axis in group) for group in self.groups)

    def parameter(self, tensor: np.ndarray, part: int) -> np.ndarray:
        """Our parameter in the published `tensor`, that of number `part` if there are several."""
        axes = self._axes
        tensor = tensor.reshape([self.sizes[axis] for axis in axes])
        if PART in axes:
            tensor = tensor.take(part, axes.index(PART))
            axes.remove(PART)
        return tensor.transpose([axes.index(axis) for axis in self.ours])

    def tensor(self, parameters: Sequence[np.ndarray]) -> np.ndarray:
        """The published tensor of the parameters in it, in order; inverse of `parameter`."""
        axes = self._axes
        if PART in axes:
            stacked, ours = np.stack(parameters), [PART, *self.ours]
        else:
            (stacked,), ours = parameters, self.ours
        moved = stacked.transpose([ours.index(axis) for axis in axes])
        return np.ascontiguousarray(moved.reshape(self.shape))

    @property
    def _axes(self) -> list[str]:
        return [axis for group in self.groups for axis in group]


def layout_of(name: str, shape: Sequence[int], axes: str | None, parts: int) -> Layout:
    """The layout of the tensor that holds the parameter of ours with this name and shape.

    Args:
        name: path of the parameter, not of scanned layers.
        axes: of the published kernel or table; a bias lacks those that the kernel contracts.
            None: PyTorch's, a matrix [produced, contracted] for a kernel and [contracted,
            produced] for a table.
        parts: number of parameters in the tensor.
    """
    contracted, produced = (
        tuple(axis.replace('kv_heads', 'heads') for axis in side) for side in parameter_axes(name)
    )
    ours = contracted + produced
    if axes is not None:
        kept = {PART, *ours}
        groups = [
            tuple(axis for axis in (merged or single).split() if axis in kept)
            for merged, single in re.findall(r'\(([^)]*)\)|(\w+)', axes)
        ]
    else:
        groups = [produced, contracted] if name.endswith('kernel') else [contracted, produced]
    groups = tuple(group for group in groups if group)
    return Layout(groups, ours, {PART: parts} | dict(zip(ours, shape, strict=True)))
