"""The loop nest of a layer: accesses as affine maps, footprints, and the cost of a tile-loop order.

    Out[b,g,k,d,h,w] += In[b,g,c, σd·d + δd·t - πd, σh·h + δh·r - πh, σw·w + δw·s - πw] · Ker[g,k,c,t,r,s]

Everything derived from an `Access` (footprint, lacking indices, loads under a loop order) works on integers
and on sympy symbols: integer arguments give an integer, symbols give an expression. This module does not
import sympy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from synth.layer.axes import AXES, DIMS, KERNEL_OF, SPATIAL, TENSORS, Axis, PerAxis, Tensor
from synth.layer.intervals import Block, Interval, length
from synth.layer.residue_classes import Classes, possible_counts
from synth.layer.window import Window

Scalar = Any  # an int, or a sympy expression

WORD_BYTES: dict[str, int] = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Affine:
    """One dimension of an access: `Σ coefficient·index - padding`."""

    terms: tuple[tuple[str, Scalar], ...]
    padding: Scalar = 0

    def extent(self, tile: Mapping[str, Scalar]) -> Scalar:
        """Positions from the first to the last one that a tile reads: `Σ coefficient·(T-1) + 1`.

        For an input row this is `σ(T-1) + δ(N-1) + 1`. SPAA'21 prints `σT + N - 1` (docs/errata.md).
        """
        return sum((coefficient * (tile[index] - 1) for index, coefficient in self.terms), 1)

    def __str__(self) -> str:
        text = "+".join(i if c == 1 else f"{c}{i}" for i, c in self.terms if c != 0)
        return text if self.padding == 0 else f"{text}-{self.padding}"


@dataclass(frozen=True)
class Access:
    """The access of the nest to one tensor: an affine map per dimension, in storage order."""

    tensor: Tensor
    dims: tuple[Affine, ...]

    @property
    def indices(self) -> frozenset[str]:
        """The loop indices that occur in this access."""
        return frozenset(index for dim in self.dims for index, _ in dim.terms)

    def lacking(self, loops: tuple[str, ...]) -> tuple[str, ...]:
        """Those of `loops` that do not occur in this access: its lacking indices."""
        return tuple(loop for loop in loops if loop not in self.indices)

    def footprint(self, tile: Mapping[str, Scalar]) -> Scalar:
        """Words that a tile touches, padding included. `tile` is extents by loop index, ints or symbols."""
        words: Scalar = 1
        for dim in self.dims:
            words = words * dim.extent(tile)
        return words

    def loads(self, order: tuple[str, ...], trips: Mapping[str, Scalar]) -> Scalar:
        """How often a tile of this tensor is loaded when tile loops run in `order`, outermost first.

        A loaded tile is used until a loop advances whose index occurs in this access. So the innermost
        loops over lacking indices cause no loads, and every loop around them multiplies the loads by its
        `trips`. Ints or symbols.
        """
        inner = len(order)
        while inner > 0 and order[inner - 1] not in self.indices:
            inner -= 1
        count: Scalar = 1
        for loop in order[:inner]:
            count = count * trips[loop]
        return count


def accesses(
    stride: Mapping[str, Scalar], dilation: Mapping[str, Scalar], padding: Mapping[str, Scalar]
) -> dict[Tensor, Access]:
    """The three accesses of a nest. The arguments are by spatial axis, ints or symbols."""

    def input_dim(dim: str) -> Affine:
        if dim not in SPATIAL:
            return Affine(((dim, 1),))
        return Affine(((dim, stride[dim]), (KERNEL_OF[dim], dilation[dim])), padding[dim])

    plain = {t: tuple(Affine(((dim, 1),)) for dim in DIMS[t]) for t in TENSORS}
    dims = {**plain, "In": tuple(input_dim(dim) for dim in DIMS["In"])}
    return {tensor: Access(tensor, dims[tensor]) for tensor in TENSORS}


def accessed_words(
    nest_accesses: Mapping[Tensor, Access],
    order: tuple[str, ...],
    block: Mapping[str, Scalar],
    tile: Mapping[str, Scalar],
) -> dict[Tensor, Scalar]:
    """Accessed words per tensor of one process that runs its `block` tile by tile (SPAA'21 Eq. 1 and 3).

    `order` names the tile loops, outermost first. Every tile contains the whole extent of the other
    indices. As in the paper, every visit of an Out tile counts once.
    """
    trips = {loop: block[loop] / tile[loop] for loop in order}
    whole = {**block, **{loop: tile[loop] for loop in order}}
    return {t: a.footprint(whole) * a.loads(order, trips) for t, a in nest_accesses.items()}


@dataclass(frozen=True)
class Nest:
    """The loop nest of one layer over integers. `extents.c` and `extents.k` are channels per group.

    classes: (axis, number of residue classes), where the classes of a dilation are samples; then `undivided`
        is the nest of the layer itself, see `layer.residue_classes`.
    turned: the spatial axes whose loop runs over input rows. A block then has all pairs of its input rows and
    their taps, and adds to output rows: Out is the framed tensor of that axis, and In of every other one.
    """

    extents: PerAxis
    d: Window
    h: Window
    w: Window
    dtype: str = "float32"
    turned: tuple[Axis, ...] = ()
    classes: Classes = ()
    whole: Nest | None = None  # with classes: the nest without them, not turned

    @property
    def undivided(self) -> Nest:
        """The nest without residue classes and turned axes."""
        return self.whole or self.turn(self.turned)

    def by_classes(self, classes: Classes) -> Nest:
        """The nest, of which no axis is turned, with the residue classes of some axes as samples.

        Axis b then counts samples times classes. Raises `ValueError` for numbers of classes that are not
        among `residue_classes.possible_counts`.
        """
        if not classes:
            return self
        counts, windows = dict(classes), self.windows
        if self.turned or self.classes:
            raise ValueError(f"{self} is turned along {self.turned}, or has classes {self.classes}")
        for axis, count in classes:
            if count not in possible_counts(windows[axis]):
                raise ValueError(
                    f"{count} classes along {axis} do not divide dilation {windows[axis].dilation}"
                )
        d, h, w = (w.of_class(counts[axis]) if axis in counts else w for axis, w in windows.items())
        b = self.extents.b * math.prod(counts.values())
        extents = self.extents._replace(b=b, d=d.out, h=h.out, w=w.out)
        return replace(self, extents=extents, d=d, h=h, w=w, classes=classes, whole=self)

    def turn(self, axes: Iterable[Axis]) -> Nest:
        """The same nest with other loops along some axes: over input rows, or over output rows again."""
        chosen = frozenset(axes)
        d, h, w = (w.turned if axis in chosen else w for axis, w in self.windows.items())
        extents = self.extents._replace(d=d.out, h=h.out, w=w.out)
        turned = tuple(axis for axis in SPATIAL if (axis in self.turned) != (axis in chosen))
        return replace(self, extents=extents, turned=turned, d=d, h=h, w=w)

    @cached_property
    def turnable(self) -> tuple[Axis, ...]:
        """The axes that may be turned: those along which blocks share rows."""
        windows = self.windows
        return tuple(a for a in SPATIAL if windows[a].span > windows[a].stride and windows[a].out > 1)

    def framed(self, tensor: Tensor) -> tuple[Axis, ...]:
        """The axes along which a block touches other rows of a tensor than its own: a window of them."""
        return self._framed[tensor]

    @cached_property
    def _framed(self) -> dict[Tensor, tuple[Axis, ...]]:
        rows = tuple(axis for axis in SPATIAL if axis not in self.turned)
        return {"In": rows, "Ker": (), "Out": tuple(axis for axis in SPATIAL if axis in self.turned)}

    def rows(self, axis: Axis, block: Interval) -> tuple[Interval, Interval]:
        """The rows of In and of Out along a spatial axis that a block of the loop touches."""
        reach = self.windows[axis].reach(*block)
        return (block, reach) if axis in self.turned else (reach, block)

    def pads(self, axis: Axis, block: Interval) -> tuple[int, int]:
        """Zeros before and after the rows of In of a block, as its output rows see them.

        Negative if the first or last rows of the block are read by none of these output rows.
        """
        if axis not in self.turned:
            return self.windows[axis].pads(*block)
        window, (rows, out) = self.windows[axis].turned, self.rows(axis, block)
        begin = window.stride * out[0] - window.padding
        return rows[0] - begin, begin + window.frame(length(out)) - rows[1]

    def _plain(self, axis: Axis, block: Interval) -> bool:
        """Whether the `padding=` argument of a torch convolution can express these zeros."""
        before, after = self.pads(axis, block)
        return before >= 0 and 0 <= before - after < max(
            self.windows[axis].stride, self.windows[axis].divisor
        )

    @property
    def windows(self) -> dict[str, Window]:
        """Spatial axis -> its window."""
        return {"d": self.d, "h": self.h, "w": self.w}

    @property
    def word_bytes(self) -> int:
        """Bytes of one word."""
        return WORD_BYTES[self.dtype]

    def padded_words(self, tile: Block, flat: int) -> int:
        """Words of the padded copy of an In tile. `flat` is its number of samples times channels.

        Where a window is `plain` the local kernel pads by itself: 0 if all are.
        """
        words, copied = flat, False
        for axis in SPATIAL:
            read, out = self.rows(axis, tile[axis])
            plain = self._plain(axis, tile[axis])
            rows = length(read) + (0 if plain else sum(self.pads(axis, tile[axis])))
            words, copied = words * (max(0, rows) if length(out) else 0), copied or not plain
        return words if copied else 0

    @cached_property
    def taps(self) -> int:
        """RS: kernel positions Nr·Ns(·Nt)."""
        return self.d.kernel * self.h.kernel * self.w.kernel

    @cached_property
    def strides(self) -> int:
        """S: the product σw·σh(·σd) of the reduced problem."""
        return self.d.stride * self.h.stride * self.w.stride

    @cached_property
    def accesses(self) -> dict[Tensor, Access]:
        """The three accesses of this layer."""
        windows = self.windows
        return accesses(
            {axis: windows[axis].stride for axis in SPATIAL},
            {axis: windows[axis].dilation for axis in SPATIAL},
            {axis: windows[axis].padding for axis in SPATIAL},
        )

    def loop_extents(self, block: PerAxis | None = None) -> dict[str, int]:
        """Loop index -> extent, of the whole nest or of a block."""
        sizes: dict[str, int] = dict(zip(AXES, block or self.extents, strict=True))
        sizes.update({KERNEL_OF[axis]: self.windows[axis].kernel for axis in SPATIAL})
        return sizes

    @cached_property
    def shapes(self) -> dict[Tensor, tuple[int, ...]]:
        """Tensor -> its shape in the storage order of `axes.DIMS`. In has only the rows that are read."""
        n = self.extents
        rows = {
            tensor: tuple(
                self.windows[axis].size if axis in self.framed(tensor) else getattr(n, axis)
                for axis in SPATIAL
            )
            for tensor in TENSORS
        }
        return {
            "In": (n.b, n.g, n.c, *rows["In"]),
            "Ker": (n.g, n.k, n.c, self.d.kernel, self.h.kernel, self.w.kernel),
            "Out": (n.b, n.g, n.k, *rows["Out"]),
        }

    @cached_property
    def words(self) -> dict[Tensor, int]:
        """Tensor -> its number of words."""
        return {tensor: math.prod(shape) for tensor, shape in self.shapes.items()}

    @cached_property
    def read_words(self) -> dict[Tensor, int]:
        """Tensor -> its words, of In those that some window reads: rows in gaps of a dilation are not.

        Of a nest without turned axes.
        """
        rows = math.prod(self.windows[axis].read_rows for axis in SPATIAL)
        n = self.extents
        return {**self.words, "In": n.b * n.g * n.c * rows}

    @property
    def total_words(self) -> int:
        """Words of all three tensors."""
        return sum(self.words.values())

    @cached_property
    def work(self) -> int:
        """Multiply-adds of the whole nest, including those with padding."""
        return self.extents.size * self.taps

    @cached_property
    def real_work(self) -> int:
        """Multiply-adds without those that read padding. A lower bound may count only these."""
        n = self.extents
        spatial = math.prod(self.windows[a].taps(0, getattr(n, a)) for a in SPATIAL)
        return n.b * n.g * n.c * n.k * spatial

    def __str__(self) -> str:
        return " ".join(f"N{index}={extent}" for index, extent in self.loop_extents().items() if extent != 1)
