"""Received volume: the words that every process receives and did not own, exactly, for all processes at once.

A process receives, per tensor,
    read      Σ over its panels (words of the panel - words that it carries itself). Before the pass also the
              halo: words that it carries for its group and does not own. Nothing if the slice is reused.
    written   (g - 1) partial sums per panel for each word that it carries, if g processes share the slice.
              After the pass also the halo: sums of its own words that neighbours carry.
The halo of an axis is of its framed tensor: In, or Out where blocks are cut by input rows.
`Ownership` counts them over the process grid. The simulator and the running programs count the same words one
by one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from synth.layer.axes import AXES, DIMS, SPATIAL, TENSORS, Axis, PerAxis, Tensor
from synth.schedule.distribution import Distribution
from synth.schedule.ownership import Array, Ownership
from synth.schedule.pass_plan import PassPlan, Structure
from synth.schedule.pass_program import PassProgram, Tree, pass_program

NAMES = ("In", "Ker", "Out", "halo")
WIDE = 2**61  # words from which on 64 bits may not be enough for a sum
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
        if self.classes is other.classes:
            return Received({name: self.words[name] + other.words[name] for name in NAMES}, self.classes)
        mine, others, classes = zip(*map(_joined, self.classes, other.classes), strict=True)
        words = {name: self.words[name][np.ix_(*mine)] + other.words[name][np.ix_(*others)] for name in NAMES}
        return Received(words, classes)

    def most(self) -> dict[str, int]:
        """The most words any one process receives: per tensor, as halo, and in total."""
        most = {name.lower(): int(self.words[name].max()) for name in NAMES}
        return {**most, "total": self.most_in_all()}

    def most_in_all(self) -> int:
        """The most words in total that any process receives."""
        return int(self._together().max())

    def least(self) -> int:
        """The fewest words that any process receives."""
        return int(self._together().min())

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
    rows: tuple[int, ...]  # tiles along d, h and w of the framed tensor; 1 if that is not streamed in a group

    @classmethod
    def of(cls, program: PassProgram, turned: tuple[Axis, ...] = ()) -> Visits:
        """The visits of a schedule tree of a nest with some turned axes."""
        return VisitForm.of(program, program.pass_plan.structure, turned).visits(program.pass_plan.counts)

    def twice(self, tensor: Tensor) -> Visits:
        """The visits if the panels of a tensor move twice as often. Its halo does not move again."""
        loads = (n * (1 + (each == tensor)) for each, n in zip(TENSORS, self.loads, strict=True))
        return self._replace(loads=tuple(loads))


class VisitForm(NamedTuple):
    """How tile counts decide the visits: equal for all plans with one structure.

    Axes are places in `AXES`.
    """

    written: Tensor
    reuses: frozenset[Tensor]
    repeats: tuple[tuple[int, ...], ...]  # the loops that come back to each panel, by tensor
    tiled: tuple[int | None, ...]  # the loops that count along d, h and w; None where `Visits.rows` is 1

    @classmethod
    def of(cls, tree: Tree, plan: Structure, turned: tuple[Axis, ...] = ()) -> VisitForm:
        """The form of a schedule tree of a nest with some turned axes."""
        repeats = {move.tensor: tuple(map(AXES.index, tree.repeats(move))) for move in tree.collectives()}
        framed: dict[Axis, Tensor] = {axis: "Out" if axis in turned else "In" for axis in SPATIAL}
        tiled = {axis for axis in SPATIAL if plan.streams(framed[axis]) and framed[axis] in repeats}
        rows = tuple(AXES.index(axis) if axis in tiled else None for axis in SPATIAL)
        return cls(plan.written, plan.reuses, tuple(repeats.get(t, ()) for t in TENSORS), rows)

    def visits(self, counts: PerAxis) -> Visits:
        """The visits of the plan with these tile counts."""
        loads = tuple(math.prod([counts[place] for place in places]) for places in self.repeats)
        rows = tuple(1 if place is None else counts[place] for place in self.tiled)
        return Visits(self.written, self.reuses, loads, rows)


def received(distribution: Distribution, pass_plan: PassPlan) -> Received:
    """Words that each process receives in a pass."""
    program = pass_program(distribution, pass_plan)
    return received_by(distribution, Visits.of(program, distribution.nest.turned))


@lru_cache(maxsize=2)  # what a fit asks for again and again; more would hold much memory for nothing
def received_by(distribution: Distribution, visits: Visits) -> Received:
    """Words that each process receives with some visits."""
    most = max(distribution.nest.words.values()) * distribution.grid.size
    exact = most * max(visits.loads) * math.prod(visits.rows) >= WIDE
    ownership = ownership_of(distribution, exact)
    first = classes = _every(distribution.grid)
    if distribution.grid.size > EVERY:
        first, classes = classes_of(ownership, visits)
        ownership = ownership.of_places(first)
    words = dict.fromkeys(NAMES, np.zeros([1] * len(AXES), np.int64))
    for tensor, loads in zip(TENSORS, visits.loads, strict=True):
        if tensor in visits.reuses:
            continue
        written = tensor == visits.written
        words[tensor] = (ownership.summed if written else ownership.gathered)(tensor, loads, visits.rows)
        if ownership.nest.framed(tensor):
            halo = (ownership.returned if written else ownership.fetched)(tensor)
            words["halo"] = words["halo"] + halo
    shape = tuple(map(len, first))
    return Received({name: np.broadcast_to(n, shape) for name, n in words.items()}, classes)


@lru_cache(maxsize=2)
def _every(grid: PerAxis) -> tuple[Array, ...]:
    """Per axis all coordinates: every process is a class of its own."""
    return tuple(map(np.arange, grid))


@lru_cache(maxsize=2)
def ownership_of(distribution: Distribution, exact: bool = False) -> Ownership:
    """The ownership of all ranks, shared by the visits that are compared."""
    return Ownership.of_grid(distribution, exact)


# -- classes of processes that receive equally many words: most of those along an axis of a large grid ------


FLAT: tuple[Tensor, ...] = ("Ker", "Out")
FRAMED: tuple[Tensor, ...] = ("In", "Out")  # tensors that may have a halo, Out if an axis is turned
ROWS = ("visited", "mine", "carried", "owned", "wanted")  # of a tensor with a halo; see `ownership`


def classes_of(ownership: Ownership, visits: Visits) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """Per axis: one coordinate of every class, and coordinate -> class."""
    tiles: dict[str, int] = dict(zip(SPATIAL, visits.rows, strict=True))
    named: list[tuple[Tensor, str, dict[str, int]]] = []
    for tensor in FLAT:
        named += [(tensor, name, {}) for name in ("slice", "shard")]
    for tensor in FRAMED if ownership.nest.turned else FRAMED[:1]:
        names = [name for name in ROWS if name != "wanted" or tensor == visits.written]
        named += [(tensor, name, tiles) for name in names if tensor not in visits.reuses]
    factors = [
        ownership.length(tensor, name, dim, counts.get(dim, 1))
        for tensor, name, counts in named
        for dim in DIMS[tensor]
    ]
    classes = [alike(parts, axis, factors) for axis, parts in enumerate(ownership.parts)]
    first = tuple(np.unique(each, return_index=True)[1] for each in classes)
    return first, tuple(classes)


def alike(parts: int, axis: int, factors: Iterable[Array]) -> Array:
    """Classes of the coordinates along an axis: equal in all lengths."""
    columns = [np.moveaxis(f, axis, 0).reshape(parts, -1) for f in factors if f.shape[axis] > 1]
    columns.insert(0, np.zeros((parts, 1), np.int64))
    differs = np.ones(parts, bool)  # from the coordinate before: the first of a run of equal rows
    differs[1:] = np.any([(each[1:] != each[:-1]).any(axis=1) for each in columns], axis=0)
    starts = np.flatnonzero(differs)
    numbers: dict[bytes, int] = {}
    table = np.concatenate([each[starts] for each in columns], axis=1)
    runs = [numbers.setdefault(row.tobytes(), len(numbers)) for row in table]
    return np.repeat(np.array(runs, np.int64), np.diff(np.append(starts, parts)))
