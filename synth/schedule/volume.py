"""Received volume: the words that every process receives and did not own, exactly, for all processes at once.

A process receives, per tensor,
    read      Σ over its panels (words of the panel - words that it carries itself). Before the pass also the
              halo: words that it carries for its group and does not own. Nothing if the slice is reused.
    written   (g - 1) partial sums per panel for each word that it carries, if g processes share the slice.
              After the pass also the halo: sums of its own words that neighbours carry.
The halo of an axis is of its framed tensor: In, or Out where blocks are cut by input rows.
All boxes are products of intervals, so the counts are products of per-dimension counts. They are computed as
arrays over the process grid. The simulator and the running programs count the same words one by one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from synth.layer.axes import AXES, DIMS, SPATIAL, TENSORS, Axis, PerAxis, Tensor
from synth.layer.interval_arrays import Spans, covered, cut, lengths, meet, widened
from synth.layer.window import Window
from synth.schedule.distribution import Distribution
from synth.schedule.pass_plan import PassPlan
from synth.schedule.pass_program import PassProgram, pass_program
from synth.schedule.reread_rows import reached, visited
from synth.schedule.shard_cuts import member_parts

Array = NDArray[Any]  # int64, or Python ints where 64 bits are not enough
Factors = dict[str, list[Array]]  # what is counted -> its lengths along the dimensions of a tensor

NAMES = ("In", "Ker", "Out", "halo")
ROWS = ("visited", "mine", "carried", "owned", "wanted")  # of a tensor with a halo; see `_framed_factors`
EVERY = 4096  # processes up to which every one is a class of its own


@dataclass(frozen=True)
class Received:
    """Words received by each process.

    On a large grid, most processes along an axis receive equally many words. Words are stored once per class
    of such processes.
    """

    words: dict[str, Array]  # "In", "Ker", "Out" and "halo" -> words over the classes, axes as in `AXES`
    classes: tuple[Array, ...]  # per axis: coordinate -> class

    @cached_property
    def by_tensor(self) -> dict[Tensor, Array]:
        """Words of every process: arrays over the process grid, axes in the order of `AXES`."""
        return {tensor: self._spread(self.words[tensor]) for tensor in TENSORS}

    @property
    def halo(self) -> Array:
        """The words among them that neighbours send as halo, over the process grid."""
        return self._spread(self.words["halo"])

    @property
    def total(self) -> Array:
        """All tensors together, over the process grid."""
        return self._spread(self._together())

    def __add__(self, other: Received) -> Received:
        """Words over two passes."""
        mine, others, classes = zip(*map(_joined, self.classes, other.classes), strict=True)
        words = {name: self.words[name][np.ix_(*mine)] + other.words[name][np.ix_(*others)] for name in NAMES}
        return Received(words, classes)

    def most(self) -> dict[str, int]:
        """The most words any one process receives: per tensor, as halo, and in total."""
        most = {name.lower(): int(self.words[name].max()) for name in NAMES}
        return {**most, "total": self.most_with()}

    def most_with(self, *twice: Tensor) -> int:
        """The most words in total when the words of some tensors count twice."""
        return int(sum((self.words[tensor] for tensor in twice), start=self._together()).max())

    def at(self, at: PerAxis) -> dict[str, int]:
        """The words of one process: per tensor, as halo, and in total."""
        place = tuple(classes[i] for classes, i in zip(self.classes, at, strict=True))
        words = {name.lower(): int(self.words[name][place]) for name in NAMES}
        return {**words, "total": words["in"] + words["ker"] + words["out"]}

    def _together(self) -> Array:
        return self.words["In"] + self.words["Ker"] + self.words["Out"]

    def _spread(self, words: Array) -> Array:
        return words[np.ix_(*self.classes)]


def _joined(one: Array, other: Array) -> tuple[Array, Array, Array]:
    """Classes of two kinds: what a pair's first and second are, and coordinate -> pair."""
    width = int(other.max()) + 1
    pairs, classes = np.unique(one * width + other, return_inverse=True)
    return pairs // width, pairs % width, classes


class Visits(NamedTuple):
    """What of a schedule tree decides the volume: equal visits move equal words."""

    written: Tensor
    reuses: frozenset[Tensor]
    loads: tuple[int, ...]  # how often each panel moves, by tensor in the order of `TENSORS`
    rows: tuple[int, ...]  # tiles along d, h and w of the framed tensor; 1 if that is not streamed

    @classmethod
    def of(cls, program: PassProgram, turned: tuple[Axis, ...] = ()) -> Visits:
        """The visits of a schedule tree of a nest with some turned axes."""
        plan = program.pass_plan
        loads = {move.tensor: program.loads(move) for move in program.collectives()}
        streams = {tensor: plan.structure.streams(tensor) for tensor in TENSORS}
        framed: dict[Axis, Tensor] = {axis: "Out" if axis in turned else "In" for axis in SPATIAL}
        rows = tuple(getattr(plan.counts, axis) if streams[framed[axis]] else 1 for axis in SPATIAL)
        return cls(plan.written, plan.reuses, tuple(loads.get(t, 1) for t in TENSORS), rows)


def received(distribution: Distribution, pass_plan: PassPlan) -> Received:
    """Words that each process receives in a pass."""
    program = pass_program(distribution, pass_plan)
    return received_by(distribution, Visits.of(program, distribution.nest.turned))


@lru_cache(maxsize=2)  # what a fit asks for again and again; more would hold much memory for nothing
def received_by(distribution: Distribution, visits: Visits) -> Received:
    """Words that each process receives with some visits."""
    counter = _Counter(distribution, visits)
    inputs, halo = counter.framed("In")
    out, returned = counter.framed("Out") if distribution.nest.turned else (counter.flat("Out"), 0)
    words = {"In": inputs, "Ker": counter.flat("Ker"), "Out": out, "halo": halo + returned}
    shape = tuple(len(first) for first in counter.first)
    return Received({name: np.broadcast_to(n, shape) for name, n in words.items()}, counter.classes)


class _Lines:
    """Blocks, slices and shards along every dimension, over the grid: equal for all pass plans.

    `classes` sorts the processes along every axis by their lengths of Ker and Out.
    """

    def __init__(self, distribution: Distribution) -> None:
        self.distribution, self.nest, self.grid = distribution, distribution.nest, distribution.grid
        self.factors: Factors = {}
        for tensor in ("Ker", "Out"):
            owned = [self.owned(tensor, dim) for dim in DIMS[tensor]]
            self.factors[f"{tensor} slice"] = [lengths(line) for line, _ in owned]
            self.factors[f"{tensor} shard"] = [lengths(own) for _, own in owned]

    @cached_property
    def classes(self) -> tuple[Array, ...]:
        """Per axis: coordinate -> class."""
        return tuple(_alike(parts, axis, self.factors) for axis, parts in enumerate(self.grid))

    def index(self, axis: str) -> Array:
        """Coordinate along a grid axis (0 where the dimension is not a grid axis)."""
        along = np.arange(getattr(self.grid, axis, 1), dtype=np.int64)
        return along.reshape([-1 if each == axis else 1 for each in AXES])

    def owned(self, tensor: Tensor, dim: str) -> tuple[Spans, Spans]:
        """The group's and the process's own interval along one dimension."""
        size = dict(zip(DIMS[tensor], self.nest.shapes[tensor], strict=True))[dim]
        line = cut(self.whole(size), getattr(self.grid, dim, 1), self.index(dim))
        return line, cut(line, *self.part(tensor, dim))

    def whole(self, size: int) -> Spans:
        """The interval [0, size), for all processes."""
        zero = self.index("")
        return zero, zero + size

    def part(self, tensor: Tensor, dim: str) -> tuple[int, Any]:
        """Shares of a slice along one dimension, and which of them each process owns."""
        member: Any = self.index("")
        for axis in self.distribution.lacked(tensor):
            member = member * getattr(self.grid, axis) + self.index(axis)
        return member_parts(self.distribution.shard_cuts[tensor], member).get(dim, (1, self.index("")))

    def work(self, axis: Axis) -> Spans:
        """The blocks along an axis."""
        extent = getattr(self.nest.extents, axis)
        return cut(self.whole(extent), getattr(self.grid, axis), self.index(axis))


@lru_cache(maxsize=2)
def _lines(distribution: Distribution) -> _Lines:
    return _Lines(distribution)


def _alike(parts: int, axis: int, factors: Factors, classes: Array | None = None) -> Array:
    """Classes of the coordinates along an axis: equal in `classes` and in all lengths."""
    columns = [
        np.moveaxis(each, axis, 0).reshape(parts, -1)
        for lines in factors.values()
        for each in lines
        if each.shape[axis] > 1
    ]
    first = np.zeros(parts, np.int64) if classes is None else classes
    table = np.concatenate([first.reshape(parts, 1), *columns], axis=1)
    starts = np.flatnonzero(np.append(True, (table[1:] != table[:-1]).any(axis=1)))  # runs of equal rows
    numbers: dict[bytes, int] = {}
    runs = [numbers.setdefault(row.tobytes(), len(numbers)) for row in table[starts]]
    return np.repeat(np.array(runs, np.int64), np.diff(np.append(starts, parts)))


class _Counter:
    """Per-dimension interval arithmetic over the whole grid. Arrays broadcast to the grid's shape.

    Lengths along a dimension are 64 bits; processes with equal lengths are one class; only the products,
    one per class, may take more.
    """

    def __init__(self, distribution: Distribution, visits: Visits) -> None:
        self.lines = _lines(distribution)
        self.distribution, self.visits, self.grid = distribution, visits, distribution.grid
        self.loads = dict(zip(TENSORS, visits.loads, strict=True))
        nest = distribution.nest
        self.nest = nest
        most = max(nest.words.values()) * self.grid.size * max(visits.loads) * math.prod(visits.rows)
        self.integer: Any = np.int64 if most < 2**61 else object
        rows = self._framed_factors("In")
        if nest.turned:
            rows |= self._framed_factors("Out")
        self.factors = {**self.lines.factors, **rows}
        classes = [self._classes(axis, rows) for axis in range(len(AXES))]
        self.first, self.classes = zip(*classes, strict=True)  # class -> a coordinate of it, and back

    def _classes(self, axis: int, rows: Factors) -> tuple[Array, Array]:
        """One coordinate per class of processes along an axis, and coordinate -> class."""
        if self.grid.size <= EVERY:
            return np.arange(self.grid[axis]), np.arange(self.grid[axis])
        classes = _alike(self.grid[axis], axis, rows, self.lines.classes[axis])
        return np.unique(classes, return_index=True)[1], classes

    def flat(self, tensor: Tensor) -> Array:
        """Words of a tensor without a halo."""
        if tensor == self.visits.written:
            partners = self.distribution.group_size(tensor) - 1
            return self.product(f"{tensor} shard") * partners * self.loads[tensor]
        if tensor in self.visits.reuses:
            return self._nothing()
        return (self.product(f"{tensor} slice") - self.product(f"{tensor} shard")) * self.loads[tensor]

    def product(self, name: str) -> Array:
        """Words of a box for every class: the product of its lengths."""
        words: Array = np.ones([1] * len(AXES), self.integer)
        for factor in self.factors[name]:
            picked = (
                f if n > 1 else np.zeros(1, np.int64) for f, n in zip(self.first, factor.shape, strict=True)
            )
            words = words * factor[np.ix_(*picked)]
        return words

    def _nothing(self) -> Array:
        return np.zeros([1] * len(AXES), self.integer)

    def framed(self, tensor: Tensor) -> tuple[Array, Array]:
        """Words of a tensor with a halo received in all, and as halo."""
        if tensor in self.visits.reuses:
            return self._nothing(), self._nothing()
        visited, mine, carried, owned, wanted = (f"{tensor} {name}" for name in ROWS)
        if tensor == self.visits.written:
            partners = self.distribution.group_size(tensor) - 1
            sums = self.product(mine) * partners * self.loads[tensor]
            halo = self.product(wanted) - self.product(owned)
            return sums + halo, halo
        halo = self.product(carried) - self.product(owned)
        gathered = (self.product(visited) - self.product(mine)) * self.loads[tensor]
        return gathered + halo, halo

    def _framed_factors(self, tensor: Tensor) -> Factors:
        """Lengths along the dimensions of a tensor with a halo.

        visited: rows that tiles read, counted per tile. mine: of those, rows that the process carries itself.
        carried: rows that it carries. owned: rows among them that it owns. wanted: rows that it owns, counted
        once for each block that reads them (for a pass that writes the tensor).
        """
        if tensor in self.visits.reuses:
            return {}
        factors: Factors = {f"{tensor} {name}": [] for name in ROWS}
        for dim in DIMS[tensor]:
            line, own = self.lines.owned(tensor, dim)
            sizes = dict.fromkeys(ROWS, lengths(own)) | {"visited": lengths(line)}
            if dim in self.nest.framed(tensor):
                sizes = self._rows(tensor, dim, own)
            for name, words in sizes.items():
                factors[f"{tensor} {name}"].append(words)
        return factors

    def _rows(self, tensor: Tensor, dim: Axis, own: Spans) -> dict[str, Array]:
        window = self.nest.windows[dim]
        block = self.lines.work(dim)
        carry = widened(own, reached(window, block), *self.lines.part(tensor, dim))
        tiles = self.visits.rows[SPATIAL.index(dim)]
        rows = {
            "visited": visited(window, block, tiles, self.lines.whole(window.size)),
            "mine": visited(window, block, tiles, carry),
            "carried": lengths(carry),
            "owned": lengths(meet(carry, own)),
        }
        return {**rows, "wanted": self._wanted(dim, window, own)} if self.visits.written == tensor else rows

    def _wanted(self, dim: Axis, window: Window, own: Spans) -> Array:
        """Rows of the own interval, counted once for every block along the dimension that reads them."""
        low, high = reached(window, self.lines.work(dim))
        return covered((low.ravel(), high.ravel()), own)
