"""Names: the axes of the process grid, the loop indices, the tensors and their dimensions.

Legend (the letters of Li et al., SPAA'21, extended to three spatial dimensions and groups):
    b  sample (a row of Out in a matrix product)     N_  extent of a loop
    g  group of a grouped convolution                P_  processes along a grid axis
    d h w  output position                           W_  block of the loop that one process works on
    c  input channel of the group                    T_  tile: what one step of the schedule works on
    k  output channel of the group                   x   the composite (b, d, h, w)
    t r s  kernel position along d, h, w; never split

Every loop nest has all seven axes. An axis that a layer lacks has extent 1. So conv1d, conv2d, conv3d,
grouped convolution and the matrix product are one problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Literal, NamedTuple

Axis = Literal["b", "g", "d", "h", "w", "c", "k"]
Tensor = Literal["In", "Ker", "Out"]

AXES: tuple[Axis, ...] = ("b", "g", "d", "h", "w", "c", "k")  # row-major rank order: k varies fastest
SPATIAL: tuple[Axis, ...] = ("d", "h", "w")
X_AXES: tuple[Axis, ...] = ("b", "d", "h", "w")  # the composite index x
KERNEL_OF: dict[str, str] = {"d": "t", "h": "r", "w": "s"}
TENSORS: tuple[Tensor, ...] = ("In", "Ker", "Out")

# tensor -> its dimensions in storage order, each named by the axis (or kernel index) that indexes it
DIMS: dict[Tensor, tuple[str, ...]] = {
    "In": ("b", "g", "c", "d", "h", "w"),
    "Ker": ("g", "k", "c", "t", "r", "s"),
    "Out": ("b", "g", "k", "d", "h", "w"),
}

# tensor -> its lacking index: processes that differ only along these grid axes need the same slice
LACKS: dict[Tensor, tuple[Axis, ...]] = {"In": ("k",), "Ker": X_AXES, "Out": ("c",)}

# tensor -> the name of its lacking index in the literature
LACKED_INDEX: dict[Tensor, str] = {"In": "k", "Ker": "x", "Out": "c"}


class PerAxis(NamedTuple):
    """One integer per axis: extents, a grid, a block, a tile, or a grid coordinate."""

    b: int = 1
    g: int = 1
    d: int = 1
    h: int = 1
    w: int = 1
    c: int = 1
    k: int = 1

    def of(self, axes: tuple[Axis, ...]) -> int:
        """Product of the values of some axes."""
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
        """Product of the values of all axes."""
        return self.b * self.g * self.d * self.h * self.w * self.c * self.k

    def with_(self, axis: str, value: int) -> PerAxis:
        """A copy with one axis replaced."""
        return self._replace(**{axis: value})

    def blocks(self, grid: Iterable[int]) -> PerAxis:
        """The largest block along each axis where a grid cuts these extents: ⌈N/P⌉."""
        return PerAxis(*(-(-n // parts) for n, parts in zip(self, grid, strict=True)))

    def shown(self) -> str:
        """Text for people: the axes whose value is not 1, as `b=4 x k=2`, or `1` if there are none."""
        parts = [f"{axis}={value}" for axis, value in zip(AXES, self, strict=True) if value != 1]
        return " x ".join(parts) or "1"


Order = tuple[Axis, ...]  # all axes in the order that numbers the ranks; the last one varies fastest
ROW_MAJOR: Order = AXES


@lru_cache(maxsize=1 << 14)
def strides(grid: PerAxis, order: Order) -> Mapping[Axis, int]:
    """Axis -> the difference in rank between neighbours along it."""
    stride, result = 1, dict[Axis, int]()
    for axis in reversed(order):
        result[axis] = stride
        stride *= getattr(grid, axis)
    return MappingProxyType(result)


def placement(grid: PerAxis, order: Iterable[str]) -> Order:
    """The canonical one of all axis orders that place the ranks of a grid alike.

    Axes with one process do not matter. `order` must name the axes with more. The result is `ROW_MAJOR`
    if row-major order places the ranks in the same way.
    """
    split: list[Axis] = [axis for axis in AXES if getattr(grid, axis) > 1]
    given = sorted(split, key=list(order).index)
    return ROW_MAJOR if given == split else (*(a for a in AXES if a not in split), *given)


def per_axis(function: Callable[[Axis], int]) -> PerAxis:
    """The `PerAxis` with the value `function(axis)` for each axis."""
    return PerAxis(*(function(axis) for axis in AXES))
