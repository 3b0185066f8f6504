"""Exact words of the grids of layer classes, counted on one rank of every kind, many classes together.

A layer of one class receives the words of few ranks of few grids at a time, so arrays of one class are short.
Classes whose windows are equal differ in extents alone, so their grids are rows of the same arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import combinations
from typing import Any, TypeVar

import numpy as np

from synth.layer.axes import SPATIAL, TENSORS, Axis, PerAxis, Tensor
from synth.layer.nest import Nest
from synth.network.grids.grid_table import GridTable, parts_of
from synth.network.grids.layer_class import LayerClass
from synth.network.grids.owned_boxes import GridDistributions, OwnedBoxes, PlacedGrid
from synth.network.grids.rank_kinds import few_ranks, padded, ranks_of_kinds
from synth.network.grids.word_bounds import least_words, mean_words
from synth.network.request import NetworkRequest
from synth.schedule.distribution import Distribution, load_of, most_pairs
from synth.schedule.ownership import Array, side_by_side

Part = TypeVar("Part")
UNKNOWN = -1
MOST = np.iinfo(np.int64).max
TOGETHER = 1 << 15  # entries of an array, grids times ranks, that are counted at once
Turned = tuple[Axis, ...]
TURNS: list[Turned] = [turned for count in (3, 2, 1) for turned in combinations(SPATIAL, count)]
Asked = Mapping["CountedGrids", Iterable[PerAxis]]  # classes, with the grids asked for
Some = tuple["CountedGrids", Turned, Sequence[PerAxis]]  # grids of a class with the same axes turned


class KnownWords:
    """Words by place, of the places of which they are known. Those are few of all."""

    def __init__(self, size: int) -> None:
        self._slot: Array = np.full(size, UNKNOWN, np.int32)
        self._words: Array = np.full(1, UNKNOWN, np.int64)  # by slot; the last one for other places

    @property
    def places(self) -> Array:
        """The places whose words are known, ascending."""
        return np.flatnonzero(self._slot >= 0)

    def at(self, places: Array | Sequence[int]) -> Array:
        """The words of some places, or `UNKNOWN`."""
        found: Array = self._words[self._slot[places]]
        return found

    def learn(self, places: Array, words: Array) -> None:
        """Take the words of some places, each given once."""
        new = self._slot[places] < 0
        known, more = len(self._words) - 1, int(new.sum())
        self._slot[places[new]] = np.arange(known, known + more, dtype=np.int32)
        self._words = np.concatenate([self._words[:known], np.full(more + 1, UNKNOWN, np.int64)])
        self._words[self._slot[places]] = words


class CountedGrids:
    """The words of the grids of one class: lower bounds of all, and exact ones of those that were asked for.

    input_rows: whether the layer may be cut by input rows. words: grid -> the fewest words that its
    most-receiving rank receives, and cut: the turned axes with which it does, if there are any. seen: turned
    axes -> grid -> words that a few of its ranks receive at most. least: by place, lower bounds of the words
    of a grid, however it is cut; unknown until `know` is called.
    """

    def __init__(
        self,
        layer_class: LayerClass,
        request: NetworkRequest,
        input_rows: bool,
        distributions: GridDistributions | None = None,
    ) -> None:
        self.layer_class, self.request, self.nest = layer_class, request, layer_class.nest
        plain = GridDistributions(self.nest, request.resident) if distributions is None else distributions
        axes = self.nest.turnable if input_rows else ()
        self.turns = [turned for turned in TURNS if set(turned) <= set(axes)]
        self.of_turned: dict[Turned, GridDistributions] = {
            (): plain,
            **{turned: plain.turned(turned) for turned in self.turns},
        }
        self.words: dict[PerAxis, int] = {}
        self.cut: dict[PerAxis, Turned] = {}
        self.seen: dict[Turned, dict[PerAxis, int]] = {turned: {} for turned in self.of_turned}

    def take(self, table: GridTable) -> None:
        """The family of the class. It is sorted by `bounds`, which are therefore computed first."""
        self.grids = table
        self.least = KnownWords(table.size)
        self._least_turned = {turned: KnownWords(table.size) for turned in self.turns}

    def bounds(self, rows: Array) -> Array:
        """Lower bounds of the words of some grids, in closed form. They rank the grids."""
        parts = parts_of(rows)
        free = np.zeros(np.shape(parts.b), dtype=bool)
        for axis in {axis for turned in self.turns for axis in turned}:
            free |= self.may_turn(axis, getattr(parts, axis))
        return mean_words(self.layer_class, self.request, parts, free)

    def may_turn(self, axis: Axis, parts: Any) -> Any:
        """Whether an axis that is cut into so many parts may be turned."""
        return (parts > 1) & (parts <= self.nest.windows[axis].size)

    def know(self, places: Array) -> None:
        """Compute `least` of the grids at some places. Of most grids nobody asks."""
        know_words({self: places})

    def places_below(self, bound: float) -> Array:
        """The places of all grids that may receive fewer words than a bound."""
        return np.arange(np.searchsorted(self.grids.bounds[: self.grids.size], bound, "right"))

    def learn(self, turned: Turned, places: Array, words: Array) -> None:
        """Take lower bounds of the words of the grids at some places, cut with these turned axes."""
        if turned:
            self._least_turned[turned].learn(places, words)
            words = np.minimum(self.least.at(places), words)
        self.least.learn(places, words)

    def turning(self, turned: Turned, places: Array) -> Array:
        """Whether the grids at some places may be cut with these turned axes."""
        parts = parts_of(self.grids.rows[places])
        every = [self.may_turn(axis, getattr(parts, axis)) for axis in turned]
        found: Array = np.logical_and.reduce([np.ones(len(places), dtype=bool), *every])
        return found

    @cached_property
    def _works(self) -> dict[Turned, Array]:
        """Turned axes -> by place, whether a cut by these input rows is no more work for any process."""
        parts = self.grids.parts
        most = _most_loads(self.nest, parts)
        return {turned: _most_loads(self.of_turned[turned].nest, parts) <= most for turned in self.turns}

    def paying(self, turned: Turned, grids: Sequence[PerAxis], words: dict[PerAxis, int]) -> list[PerAxis]:
        """The grids that may receive fewer words with these turned axes, with no more work for any rank."""
        if turned not in self.of_turned:
            return []
        places = [self.grids.places.get(grid, -1) for grid in grids]
        known = np.array([words[grid] for grid in grids])
        least = self._least_turned[turned].at(places)
        least = np.where(least == UNKNOWN, self.grids.bounds[places], least)
        may = (least < known) & self._works[turned][places]
        outside = np.array(places) < 0
        return [
            grid
            for grid, pays, other in zip(grids, may.tolist(), outside.tolist(), strict=True)
            if (self._outside_may(turned, grid) if other else pays)
        ]

    def _outside_may(self, turned: Turned, grid: PerAxis) -> bool:
        """The same of a grid that is not of the family, whose words have no bound."""
        if not all(self.may_turn(axis, getattr(grid, axis)) for axis in turned):
            return False
        return self.of_turned[turned][grid].load <= self.nest.extents.blocks(grid).size

    def kin(self, turned: Turned) -> tuple[object, ...]:
        """What classes whose words are counted together have in common."""
        nest, kind = self.of_turned[turned].nest, self.layer_class
        return nest.d, nest.h, nest.w, nest.turned, kind.transposed, kind.gradients, kind.weighted


def know_words(asked: Mapping[CountedGrids, Array]) -> None:
    """Compute `least` of the grids at some places of several classes together."""
    new = {each: places[each.least.at(places) == UNKNOWN] for each, places in asked.items()}
    new = {each: places for each, places in new.items() if len(places)}
    for turned in ((), *TURNS):
        by_kin: dict[tuple[object, ...], list[tuple[CountedGrids, Array]]] = {}
        for each, places in new.items():
            if turned not in each.of_turned:
                continue
            may = each.turning(turned, places)
            each.learn(turned, places[~may], np.full(len(places) - int(may.sum()), MOST))
            if may.any():
                by_kin.setdefault(each.kin(turned), []).append((each, places[may]))
        for some in by_kin.values():
            for part in in_parts(some, [len(places) for _, places in some], TOGETHER):
                _know(turned, part)


def _know(turned: Turned, some: Sequence[tuple[CountedGrids, Array]]) -> None:
    """Compute `least` of the grids at some places of classes of one kin, cut with these turned axes."""
    one, sizes = some[0][0], [len(places) for _, places in some]
    nest = side_by_side([each.of_turned[turned].nest for each, _ in some])
    of_row = np.repeat(np.arange(len(some)), sizes)
    extents: Any = nest.extents
    by_row = (each[of_row, 0] if np.ndim(each) else each for each in extents)
    rows = np.concatenate([each.grids.rows[places] for each, places in some])
    nest = replace(nest, extents=PerAxis(*by_row))
    words = least_words(nest, one.layer_class, one.request, parts_of(rows))
    for (each, places), found in zip(some, np.split(words, np.cumsum(sizes)[:-1]), strict=True):
        each.learn(turned, places, found)


def in_parts(some: Sequence[Part], sizes: Sequence[int], most: int) -> Iterator[Sequence[Part]]:
    """Successive parts whose sizes add up to `most`, or to little more."""
    first, held = 0, 0
    for stop, size in enumerate(sizes, 1):
        held += size
        if held >= most or stop == len(some):
            yield some[first:stop]
            first, held = stop, 0


def count_words(asked: Asked) -> None:
    """Count the exact words of grids of several classes together.

    An axis is cut by input rows where that moves fewer words and is no more work for any process.
    """
    new = [(each, [g for g in dict.fromkeys(grids) if g not in each.words]) for each, grids in asked.items()]
    new = [(each, grids) for each, grids in new if grids]
    words = [
        dict(zip(grids, found, strict=True))
        for (_, grids), found in zip(new, _counted([(each, (), grids) for each, grids in new]), strict=True)
    ]
    cuts: list[dict[PerAxis, Turned]] = [{} for _ in new]
    for turned in TURNS:
        some = [
            (each, turned, each.paying(turned, grids, known))
            for (each, grids), known in zip(new, words, strict=True)
        ]
        _see(some)  # what a few ranks receive already shows of most cuts that they do not pay
        some = [
            (each, turned, [grid for grid in grids if each.seen[turned][grid] < known[grid]])
            for (each, _, grids), known in zip(some, words, strict=True)
        ]
        for (_, _, grids), counted, known, cut in zip(some, _counted(some), words, cuts, strict=True):
            fewer = [(g, n) for g, n in zip(grids, counted, strict=True) if n < known[g]]
            known.update(fewer)
            cut.update((grid, turned) for grid, _ in fewer)
    for (each, _), known, cut in zip(new, words, cuts, strict=True):
        each.words.update(known)
        each.cut.update(cut)


def see_words(asked: Asked) -> dict[CountedGrids, dict[PerAxis, int]]:
    """By class, what grids receive at least: the words of a few of their ranks, however they are cut."""
    some: list[Some] = [(each, (), list(dict.fromkeys(grids))) for each, grids in asked.items()]
    _see(some)
    found = [{grid: each.seen[()][grid] for grid in grids} for each, _, grids in some]
    for turned in TURNS:
        cut = [
            (each, turned, each.paying(turned, grids, known))
            for (each, _, grids), known in zip(some, found, strict=True)
        ]
        _see(cut)
        for (each, _, grids), known in zip(cut, found, strict=True):
            known.update({grid: min(known[grid], each.seen[turned][grid]) for grid in grids})
    return {each: known for (each, _, _), known in zip(some, found, strict=True)}


def _see(some: Sequence[Some]) -> None:
    """Count the words of a few ranks of the grids that have not been looked at yet."""
    new = [
        (each, turned, [g for g in grids if g not in each.seen[turned]])
        for each, turned, grids in some
        if grids
    ]
    for (each, turned, grids), words in zip(new, _counted(new, exact=False), strict=True):
        each.seen[turned].update(zip(grids, words, strict=True))


def _counted(some: Sequence[Some], exact: bool = True) -> list[list[int]]:
    """The words of grids, counted on one rank of every kind, or on a few ranks: a lower bound."""
    found: list[list[int]] = [[0] * len(grids) for _, _, grids in some]
    by_kin: dict[tuple[object, ...], list[int]] = {}
    for position, (each, turned, grids) in enumerate(some):
        if grids:
            by_kin.setdefault(each.kin(turned), []).append(position)
    for positions in by_kin.values():
        one = some[positions[0]][0]
        tensors: tuple[Tensor, ...] = TENSORS if one.layer_class.weighted else ("In", "Out")
        where, placed, owners = [], list[PlacedGrid](), list[Distribution]()
        for position in positions:
            each, turned, grids = some[position]
            where += [(position, at) for at in range(len(grids))]
            placed += map(PlacedGrid, grids)
            owners += [each.of_turned[turned][grid] for grid in grids]
        ranks_of = ranks_of_kinds if exact else few_ranks
        ranks = [ranks_of(*pair, tensors) for pair in zip(placed, owners, strict=True)]
        for part in _parts([len(each) for each in ranks]):
            words = _words(
                one, [placed[i] for i in part], [owners[i] for i in part], [ranks[i] for i in part]
            )
            for i, number in zip(part, words, strict=True):
                position, at = where[i]
                found[position][at] = number
    return found


def _parts(sizes: Sequence[int]) -> Iterator[list[int]]:
    """Positions of rows, those of like sizes together, in parts that make arrays of bounded size."""
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    part = list[int]()
    for position in order:
        if part and (len(part) + 1) * sizes[position] > TOGETHER:
            yield part
            part = []
        part.append(position)
    if part:
        yield part


def _words(
    one: CountedGrids, placed: Sequence[PlacedGrid], owners: Sequence[Distribution], ranks: Sequence[Array]
) -> list[int]:
    boxes = OwnedBoxes(owners[0].nest, placed, one.request.procs, distributions=owners, ranks=padded(ranks))
    passes = one.layer_class.passes(one.request.training)
    words: list[int] = boxes.words(passes, one.layer_class.weighted, one.request.saves)[0].tolist()
    return words


def _most_loads(nest: Nest, parts: Any) -> Array:
    """`Distribution.load` of many grids of a nest. parts: see `grid_table.parts_of`."""
    wide: Any = np.int64 if max(nest.work, nest.turn(nest.turned).work) < 2**62 else object

    def most(axis: Axis) -> Array:
        counts, kind = parts.kinds(axis)
        found: Array = np.array([most_pairs(nest, axis, n) for n in counts.tolist()], wide)[kind]
        return found

    loads: Array = load_of(nest, most)
    return loads
