"""The names of things: axes of the process grid, loop indices, tensors and their dimensions.

Legend (the letters of Li et al., SPAA'21, extended to three spatial dimensions and groups):
    b  sample (a row of Out in a matrix product)     N_  extent of a loop
    g  group of a grouped convolution                P_  processes along a grid axis
    d h w  output position                           W_  block of the loop that one process works on
    c  input channel of the group                    T_  tile: what one step of the schedule works on
    k  output channel of the group                   x   the composite (b, d, h, w)
    t r s  kernel position along d, h, w; never split

Every loop nest here has all seven axes; what a layer does not have has extent 1. That one convention
makes conv1d, conv2d, conv3d, grouped convolution and the matrix product one problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

Axis = Literal["b", "g", "d", "h", "w", "c", "k"]
Tensor = Literal["In", "Ker", "Out"]

AXES: tuple[Axis, ...] = ("b", "g", "d", "h", "w", "c", "k")  # row-major rank order: k varies fastest
SPATIAL: tuple[Axis, ...] = ("d", "h", "w")
X_AXES: tuple[Axis, ...] = ("b", "d", "h", "w")  # the composite index x
KERNEL_OF: dict[str, str] = {"d": "t", "h": "r", "w": "s"}
TENSORS: tuple[Tensor, ...] = ("In", "Ker", "Out")

# tensor -> its dimensions in storage order, named by the axis (or kernel index) that walks them
DIMS: dict[Tensor, tuple[str, ...]] = {
    "In": ("b", "g", "c", "d", "h", "w"),
    "Ker": ("g", "k", "c", "t", "r", "s"),
    "Out": ("b", "g", "k", "d", "h", "w"),
}

# tensor -> the composite index that its accesses lack: its slices are shared along these grid axes
LACKS: dict[Tensor, tuple[Axis, ...]] = {"In": ("k",), "Ker": X_AXES, "Out": ("c",)}

# tensor -> name of that composite index, as the literature writes it
LACKED_INDEX: dict[Tensor, str] = {"In": "k", "Ker": "x", "Out": "c"}


class PerAxis(NamedTuple):
    """One integer per axis: extents, a grid, a block, a tile, or the coordinates of a process."""

    b: int = 1
    g: int = 1
    d: int = 1
    h: int = 1
    w: int = 1
    c: int = 1
    k: int = 1

    def of(self, axes: tuple[Axis, ...]) -> int:
        """Product over some of the axes."""
        product = 1
        for axis in axes:
            product *= getattr(self, axis)
        return product

    @property
    def x(self) -> int:
        """The composite b·d·h·w."""
        return self.b * self.d * self.h * self.w

    @property
    def size(self) -> int:
        """Product over all axes."""
        return self.b * self.g * self.d * self.h * self.w * self.c * self.k

    def with_(self, axis: str, value: int) -> PerAxis:
        """A copy with one axis replaced."""
        return self._replace(**{axis: value})

    def shown(self) -> str:
        """For people: the axes that are not 1, as `b=4 x k=2`; `1` when all are."""
        parts = [f"{axis}={value}" for axis, value in zip(AXES, self, strict=True) if value != 1]
        return " x ".join(parts) or "1"


Order = tuple[Axis, ...]  # all axes as they run over the ranks; the last one varies fastest
ROW_MAJOR: Order = AXES


def strides(grid: PerAxis, order: Order) -> dict[Axis, int]:
    """Axis -> ranks from one coordinate to the next."""
    stride, result = 1, dict[Axis, int]()
    for axis in reversed(order):
        result[axis] = stride
        stride *= getattr(grid, axis)
    return result


def placement(grid: PerAxis, order: Iterable[str]) -> Order:
    """The one order that stands for all which place the ranks of a grid alike.

    `order` names the axes that are split, and may name others; row-major where that is the same.
    """
    split: list[Axis] = [axis for axis in AXES if getattr(grid, axis) > 1]
    given = sorted(split, key=list(order).index)
    return ROW_MAJOR if given == split else (*(a for a in AXES if a not in split), *given)


def per_axis(function: Callable[[Axis], int]) -> PerAxis:
    """A `PerAxis` computed axis by axis."""
    return PerAxis(*(function(axis) for axis in AXES))
