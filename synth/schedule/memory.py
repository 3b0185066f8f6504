"""Memory of a plan: the most words any process holds at once, phase by phase.

    shards   shards of the tensors that are read, with room for the ghost rows of a halo, and slices that are
             saved between passes
    halo     + the strips in flight
    expand   + the slices that are gathered whole, + their pieces in flight (`memory_messages`)
    loop     + the sums: the slice of the result if that is stationary, else its shard; two panels per
             streamed tensor that is read (one in use; its pieces, or the next one, in flight), the written
             panel and the partial sums in flight if a group shares it, the result of the local kernel and a
             padded copy of its input
    reduce   + the partial sums in flight, among them the finished shard of the result; with a halo, the
             strips in flight. The finished shard is a part of the sums

In a pass of one step the result of the local kernel is the sums: there are no others.

In a network (`Distribution.ghosts` is false) a layer is given shards without ghost rows. So the widened shard
is a copy, and so is the finished shard; also, anywhere, a finished shard with rows that no block computes.

The sums of several panels are in flight beside the next panel, those of a single one after the kernel ends.
A slice that only one process needs is used in place: no buffer, no words. Every item is taken at its largest
over all processes (the widened shard with its strips as one item). So the sum is an upper bound of the
simulator's high-water mark, and equals it where cuts are even and no tile is padded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from synth.layer.axes import DIMS, SPATIAL, TENSORS, Axis, PerAxis, Tensor
from synth.schedule.distribution import Distribution
from synth.schedule.halo_rows import PaddedRows, padded_rows, tile_rows
from synth.schedule.memory_messages import Arrival, Messages, most_arriving
from synth.schedule.pass_plan import PassPlan, Structure
from synth.schedule.pass_program import Loop, Reduce, Rows, lowered


@dataclass(frozen=True)
class Memory:
    """The most words that a process holds, per phase; `words` is the maximum."""

    shards: int
    halo: int
    expand: int
    loop: int
    reduce: int

    def beside(self, words: int) -> Memory:
        """The same with `words` more, live all the time."""
        phases = (self.halo, self.expand, self.loop, self.reduce)
        return Memory(self.shards + words, *(phase + words if phase else 0 for phase in phases))

    def most(self, other: Memory) -> Memory:
        """The larger of two, phase by phase."""
        mine = (self.shards, self.halo, self.expand, self.loop, self.reduce)
        others = (other.shards, other.halo, other.expand, other.loop, other.reduce)
        return Memory(*map(max, zip(mine, others, strict=True)))

    @property
    def words(self) -> int:
        """High-water mark in words."""
        return max(self.halo, self.expand, self.loop, self.reduce)


class HaloWords(NamedTuple):
    """Words of a tensor with a halo; zeros without one.

    carried: the widened shard. strips: in flight, what rows add to it at most. room: the buffer with the
    shard and all that is carried. beside: in flight, what rows add to that. padded: the widened shard with
    the zeros around it, which the room has, too.
    """

    carried: int = 0
    strips: int = 0
    room: int = 0
    beside: int = 0
    padded: int = 0


class Frame(NamedTuple):
    """The memory of all pass plans with one structure, in words, without the tiles.

    before: live before slices are gathered, whose gathers are `arrivals`. held: live in the loop beside the
    sums. panels: the tensors whose panels are gathered in it. returned: live while rows return, without
    panels; 0 if none do.
    """

    live: int
    before: int
    arrivals: tuple[Arrival, ...]
    halo: int
    expand: int
    held: int
    sums: int
    panels: tuple[Tensor, ...]
    reduce: int
    returned: int


class Tiles(NamedTuple):
    """Words of the largest tiles of a plan; or of several plans with one structure, as arrays.

    written: of the tensor that is written. padded: of In with zeros around it, as of `Footprints.padded`.
    """

    written: Any
    padded: Any


class Footprints:
    """The largest shards, slices and panels of one distribution, in words.

    kept: whether a program keeps the buffers of messages for the next ones, as it does without a limit of
    memory. Then `messages.kept` are held beside all that is counted here.
    """

    def __init__(self, distribution: Distribution, kept: bool = False) -> None:
        self.distribution, self.nest, self.grid = distribution, distribution.nest, distribution.grid
        self.kept, self.messages = kept, Messages(self)
        self.work = distribution.most_work
        self._frames: dict[Structure, Frame] = {}
        self._tiles: dict[tuple[Tensor, PerAxis], int] = {}
        self._padded: dict[PerAxis, int] = {}

    def shard(self, tensor: Tensor) -> int:
        """Words of the largest shard of a tensor."""
        parts = dict(self.distribution.shard_cuts[tensor])
        sizes = zip(DIMS[tensor], self.nest.shapes[tensor], strict=True)
        lines = ((dim, -(-n // getattr(self.grid, dim, 1))) for dim, n in sizes)
        return math.prod(-(-n // parts.get(dim, 1)) for dim, n in lines)

    @cached_property
    def shards(self) -> dict[str, int]:
        """Tensor -> `shard`."""
        return {"In": self.shard("In"), "Ker": self.shard("Ker"), "Out": self.shard("Out")}

    @property
    def halo(self) -> tuple[int, int]:
        """`halo_of` In."""
        return self.halo_of("In")

    def halo_of(self, tensor: Tensor) -> tuple[int, int]:
        """(words of the widened shard of a tensor, words that strips add to it); zeros without a halo."""
        return self._halos[tensor][:2]

    def stored(self, tensor: Tensor) -> int:
        """Words of the largest buffer with a shard: with ghost rows where it has a halo."""
        return (self._halos[tensor].room if self.distribution.ghosts else 0) or self.shards[tensor]

    def finished(self, tensor: Tensor) -> int:
        """Words of the largest buffer with a finished shard: the sums where it is a part of them.

        dIn that no group reduces is a part of the kernel's result, which has the zeros around In.
        """
        words = self.halo_of(tensor)[0] if self._in_place(tensor) else self.shards[tensor]
        if tensor == "In" and self.distribution.ghosts and self.distribution.group_size(tensor) == 1:
            return max(words, self.padded_in(PassPlan(pass_="backward-data")))
        return words

    def _in_place(self, tensor: Tensor) -> bool:
        """Whether returned rows are added to the sums of every process, and its shard stays there."""
        rows = (self.distribution.halo(axis) for axis in self.nest.framed(tensor))
        return self.distribution.ghosts and self.halo_of(tensor)[0] > 0 and all(row.inside for row in rows)

    def is_apart(self, tensor: Tensor) -> bool:
        """Whether a saved slice is a copy beside the shard: of a group, or widened where it is a copy."""
        shared = bool(self.distribution.groups[TENSORS.index(tensor)])
        return shared or (not self.distribution.ghosts and self.halo_of(tensor)[0] > 0)

    @cached_property
    def _halos(self) -> dict[Tensor, HaloWords]:
        return {tensor: self._halo(tensor) for tensor in TENSORS}

    def _halo(self, tensor: Tensor) -> HaloWords:
        framed, parts = self.nest.framed(tensor), dict(self.distribution.shard_cuts[tensor])
        zeros = tensor == "In" and self.distribution.keeps_zeros
        rows = [self.distribution.halo(axis, zeros) for axis in framed]
        if not any(row.moves for row in rows):
            return HaloWords()
        whole = (dim for dim in DIMS[tensor] if dim not in framed)
        flat = math.prod(-(-getattr(self.work, dim) // parts.get(dim, 1)) for dim in whole)
        most = beside = 0
        for kinds in product(*(row.kinds for row in rows)):
            carried, owned, wanted, room = map(math.prod, zip(*kinds, strict=True))
            strips = (carried - owned) + (wanted - owned)
            most, beside = max(most, carried + strips), max(beside, room + strips)
        widened, rooms = math.prod(row.carried for row in rows), math.prod(row.room for row in rows)
        padded = math.prod(row.padded for row in rows)
        words = (widened, most - widened, rooms, beside - rooms, padded)
        return HaloWords(*(flat * each for each in words))

    def tile(self, tensor: Tensor, pass_plan: PassPlan) -> int:
        """The most words of a tensor that one tile accesses: its largest panel."""
        key = tensor, pass_plan.counts
        if key not in self._tiles:
            self._tiles[key] = self._tile(tensor, pass_plan)
        return self._tiles[key]

    def _tile(self, tensor: Tensor, pass_plan: PassPlan) -> int:
        t = pass_plan.sizes(self.work)
        if tensor == "Ker":
            return t.g * t.k * t.c * self.nest.taps
        framed = self.nest.framed(tensor)
        rows = (self.rows(axis, pass_plan) if axis in framed else getattr(t, axis) for axis in SPATIAL)
        return t.b * t.g * (t.c if tensor == "In" else t.k) * math.prod(rows)

    def rows(self, axis: str, pass_plan: PassPlan) -> int:
        """The most rows of the framed tensor of an axis that one tile touches."""
        extent, parts = getattr(self.nest.extents, axis), getattr(self.grid, axis)
        return tile_rows(self.nest.windows[axis], extent, parts, getattr(pass_plan.counts, axis))

    def padded(self, pass_plan: PassPlan) -> int:
        """Words of an In tile with zeros laid around it; 0 if the kernel's own padding suffices.

        The widened shard may have the zeros already. Tiles of its rows have not.
        """
        whole = all(getattr(pass_plan.counts, axis) == 1 for axis in SPATIAL)
        if whole and pass_plan.written != "In" and self.distribution.keeps_zeros:
            return 0
        return self.padded_in(pass_plan)

    def padded_in(self, pass_plan: PassPlan) -> int:
        """Words of an In tile with the zeros that the kernel cannot add, by the tile counts."""
        if pass_plan.counts not in self._padded:
            self._padded[pass_plan.counts] = self._padded_copy(pass_plan)
        return self._padded[pass_plan.counts]

    def _padded_copy(self, pass_plan: PassPlan) -> int:
        t = pass_plan.sizes(self.work)
        rows = [self.padded_rows(axis, pass_plan) for axis in SPATIAL]
        area = math.prod(each.most for each in rows)
        copies = (area // each.most * each.copied for each in rows if each.most)
        return t.b * t.g * t.c * max(copies, default=0)

    def padded_rows(self, axis: Axis, pass_plan: PassPlan) -> PaddedRows:
        """Rows of In of the tiles along an axis, with the zeros around them."""
        extent, parts = getattr(self.nest.extents, axis), getattr(self.grid, axis)
        turned, tiles = axis in self.nest.turned, getattr(pass_plan.counts, axis)
        return padded_rows(self.nest.windows[axis], turned, extent, parts, tiles)

    def in_transit(self, pass_plan: PassPlan) -> int:
        """Words of partial sums sent, kept and received while one panel of the result is reduced.

        Of kept buffers (`Messages.kept`) those that stay here are no part.
        """
        return int(self._summed(pass_plan.written, self.tile(pass_plan.written, pass_plan)))

    def _summed(self, written: Tensor, tile: Any, least: Callable[[Any, Any], Any] = min) -> Any:
        """The same of a tile, or with `np.minimum` of several."""
        members = self.distribution.group_size(written)
        if members == 1:
            return 0
        own = least(tile, self.carried(written))
        return own if self.kept else tile + (members - 1) * own

    def travelling(self, pass_plan: PassPlan) -> int:
        """The most words of a result between the last step of a pass and its finished shard."""
        written = pass_plan.written
        away = pass_plan.stationary != written and pass_plan.steps > 1  # earlier panels are in their place
        tile = pass_plan if away else replace(pass_plan, counts=PerAxis())
        waiting = self.in_transit(tile) + (self.carried(written) if away else 0)
        halo = self.halo_of(written)
        if not halo[0]:  # no rows return: the sums of the own share are the finished shard
            return max(waiting, self.shards[written])
        copy = 0 if self._in_place(written) else self.carried(written) + self.shards[written]
        return max(waiting, copy + sum(halo))

    def carried(self, tensor: Tensor) -> int:
        """The most words of a tensor that a process carries: sends to its group, or sums for it."""
        return self.halo_of(tensor)[0] or self.shards[tensor]

    def slice(self, tensor: Tensor) -> int:
        """Words of the largest slice of a tensor."""
        return self.tile(tensor, PassPlan())

    def saved(self, tensor: Tensor) -> int:
        """Words of the largest slice of a tensor that is saved, with the zeros that are kept around it."""
        zeros = tensor == "In" and self.distribution.keeps_zeros
        return self._halos[tensor].padded if zeros else self.slice(tensor)

    def memory(self, pass_plan: PassPlan) -> Memory:
        """Memory of a pass, in words; only the panels and the steps depend on the tile counts."""
        frame = self._frame_by(pass_plan)
        panels = sum(self.tile(tensor, pass_plan) for tensor in frame.panels)
        tiles = self._tiles_of(pass_plan)
        if pass_plan.steps == 1:  # the kernel makes the sums, when all slices are there
            arrivals = [*frame.arrivals, *map(self.messages.arrival, frame.panels)]
            loop = frame.before + most_arriving(arrivals)
            loop = max(loop, frame.held + panels + self._alone(pass_plan, tiles))
        else:
            arrivals = [self.messages.panel(tensor, pass_plan) for tensor in frame.panels]
            flight, joining = sum(each.flight for each in arrivals), sum(each.joining for each in arrivals)
            loop = frame.held + frame.sums + panels + max(joining, self._step(pass_plan, tiles, flight))
        back = frame.returned + (0 if pass_plan.stationary == pass_plan.written else panels)
        reduce = max(frame.reduce, back) if frame.returned else frame.reduce
        if reduce and pass_plan.steps == 1 and pass_plan.written == "In":  # a part of the kernel's result
            reduce += max(0, self.padded(pass_plan) - self.slice("In"))
        return Memory(frame.live, frame.halo, frame.expand, loop, reduce)

    def memory_of_many(self, pass_plan: PassPlan, largest: Mapping[Tensor, Any], padded: Any) -> Any:
        """The words of `memory` of several plans with more than two steps, as an array.

        `pass_plan`: one of them; all have its structure. largest: their tiles of each tensor, as of `tile`.
        padded: as of `padded`. Buffers of messages are not kept.
        """
        frame = self._frame_by(pass_plan)
        panels: Any = sum(largest[tensor] for tensor in frame.panels)
        tiles = Tiles(largest[pass_plan.written], padded)
        step = self._step(pass_plan, tiles, panels, np.maximum, np.minimum)
        words = frame.held + frame.sums + panels + np.maximum(panels, step)
        if frame.returned:
            back = frame.returned + (0 if pass_plan.stationary == pass_plan.written else panels)
            words = np.maximum(words, back)
        return np.maximum(words, max(frame.halo, frame.expand, frame.reduce))

    def floor(self, pass_plan: PassPlan) -> int:
        """A lower bound of the memory in words of all plans that move the same tensors whole or in panels."""
        frame = self._frame_by(pass_plan)
        return max(frame.halo, frame.expand, frame.held, frame.reduce, frame.returned)

    def _frame_by(self, pass_plan: PassPlan) -> Frame:
        structure = pass_plan.structure
        if structure.loops and not (structure.saves and len(structure.loops) == 1):
            structure = structure._replace(loops=())  # the loops matter to panels that are saved only
        if structure not in self._frames:
            self._frames[structure] = self._frame_of(pass_plan)
        return self._frames[structure]

    def _frame_of(self, pass_plan: PassPlan) -> Frame:
        """What does not depend on tile counts: one walk over the tree, with what is live at every node.

        All of a tensor's words are live from the node that brings them to the end, unless a line says more.
        """
        d = self.distribution
        tree = lowered(pass_plan.structure, d.groups, d.row_axes, turned=d.nest.turned)
        stationary, written = pass_plan.stationary, pass_plan.written
        apart = self._apart(pass_plan)
        live = sum(map(self.stored, pass_plan.reads))
        live += sum(map(self.saved, pass_plan.reuses & apart))
        # the stationary slice, if it is gathered before the loop; that of the result is `sums`
        in_place = stationary == written or stationary in pass_plan.reuses or stationary not in apart
        slice_ = 0 if in_place else self.slice(stationary)
        sums = self.slice(written) if stationary == written else self.carried(written)
        saved = sum(self.slice(t) for t in pass_plan.saves & apart if t != stationary)
        halo = expand = before = reduce = returned = 0
        arrivals = tuple(self.messages.arrival(gather.tensor) for gather in tree.gathers)
        for node in tree.top():
            match node:
                case Rows(direction="fetch"):
                    _, strips, _, beside, padded = self._halos[node.tensor]
                    copy = 0 if d.ghosts else padded
                    halo = live + (beside if d.ghosts else padded + strips)
                    live += copy
                case Loop():  # the whole slices are there
                    before = live
                    expand = before + most_arriving(arrivals)
                    live += saved
                case Reduce():
                    reduce = live + sums + self.in_transit(replace(pass_plan, counts=PerAxis()))
                case Rows():  # beside the sums: strips, and a copied shard; panels are still held
                    widened = self.halo_of(written)
                    held = widened[0] if stationary == written else sums + slice_
                    copy = 0 if self._in_place(written) else self.shards[written]
                    returned = live + copy + widened[1] + held
        panels = tuple(each.tensor for each in tree.loop.gathers)
        return Frame(live, before, arrivals, halo, expand, live + slice_, sums, panels, reduce, returned)

    def _apart(self, pass_plan: PassPlan) -> frozenset[Tensor]:
        """The tensors whose slice is a copy beside the shard: shared by a group, or saved with a halo."""
        groups = zip(TENSORS, self.distribution.groups, strict=True)
        return frozenset(t for t, axes in groups if axes or (t in pass_plan.reuses and self.is_apart(t)))

    def _alone(self, plan: PassPlan, tiles: Tiles) -> int:
        """Words beside the slices in the only step: the kernel's result, and then the sums that leave."""
        panel = tiles.written
        result, made = self._results(plan, tiles, max)
        sent = 0 if plan.stationary == plan.written else self._summed(plan.written, panel)
        return int(max(result, made + sent))

    @staticmethod
    def _results(plan: PassPlan, tiles: Tiles, most: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
        """Words of a kernel's result: with the zeros around In while it runs, and afterwards.

        The zeros are in the result that is written, or in a copy of the tile that is read.
        """
        if plan.written == "In":
            whole = most(tiles.written, tiles.padded)
            return whole, whole
        return tiles.written + tiles.padded, tiles.written

    def _tiles_of(self, plan: PassPlan) -> Tiles:
        return Tiles(self.tile(plan.written, plan), self.padded(plan))

    def step(self, plan: PassPlan, panels: int) -> int:
        """Words beside the panels in use of a tiling, with so many words of the next panels in flight."""
        return int(self._step(plan, self._tiles_of(plan), panels))

    def _step(
        self,
        plan: PassPlan,
        tiles: Tiles,
        panels: Any,
        most: Callable[[Any, Any], Any] = max,
        least: Callable[[Any, Any], Any] = min,
    ) -> Any:
        """Words beside the panels in use, at most: the next panels, the kernel's result, pending sums.

        A result that nobody shares is added to the sums. Else the sums of a panel leave after the result has
        been added to them, or are the result. With two panels, the next one is on its way in the first step
        and sums in the second, or both after the first result was added. `most`, `least`: of two numbers, or
        of two arrays place by place.
        """
        panel = tiles.written
        result, made = self._results(plan, tiles, most)
        if plan.stationary == plan.written or self.distribution.group_size(plan.written) == 1:
            return panels + result  # which is added to the sums
        sent = self._summed(plan.written, panel, least)
        if all(axis in DIMS[plan.written] for axis in plan.loops()):  # every step makes another panel
            return most(
                panels + made + sent, result + (panels + sent if plan.steps > 2 else most(panels, sent))
            )
        every = panels + result + sent
        return panel + (every if plan.steps > 2 else every - least(panels, least(result, sent)))
