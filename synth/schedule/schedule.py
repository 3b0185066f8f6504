"""What happens when: every move and every computation of every process, as frozen data.

The nine programs (three passes, three stationary tensors) have one form:

    halo     if In is read, every process widens its share of it by the rows that neighbours own
    expand   the stationary tensor, if it is read, is gathered along its lacking index (and so are
             tensors that a later pass wants to find whole)
    for tile in the tiles of the work block:      # outermost loop: the streaming index; see `skew`
        every streaming tensor that is read and has changed is brought in along its lacking index
        the local kernel runs
        the written tensor, if it streams and is about to change, is reduced along its lacking index
    reduce   the written tensor, if it is stationary, is reduced along its lacking index
    return   if dIn is written, its halo rows go back to their owners and are added

A `Round` holds what all processes do between two changes of tile. Nothing here computes values: the
simulator interprets rounds, the verifier checks them, and the emitter writes the same loops as text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from synth.layer.axes import DIMS, LACKED_INDEX, Axis, PerAxis, Tensor
from synth.layer.intervals import Block, Box, overlap, volume
from synth.layer.passes import role_name
from synth.schedule.distribution import Distribution
from synth.schedule.panel_rotation import first_panels
from synth.schedule.pass_plan import PassPlan

Phase = Literal["halo", "expand", "loop", "reduce", "return"]


@dataclass(frozen=True)
class Move:
    """Words of one box travel from one rank to others; `reduce` and `return` add where they arrive."""

    kind: Literal["halo", "broadcast", "reduce", "return"]
    tensor: Tensor
    box: Box
    source: int
    targets: tuple[int, ...]  # ranks that receive; the source is never among them
    why: str


@dataclass(frozen=True)
class Compute:
    """One rank runs the local kernel on one tile: axis -> interval of the nest."""

    rank: int
    tile: Block


@dataclass(frozen=True)
class Round:
    """What all ranks do in one step: first `moves`, then `computes`, then `reductions`."""

    phase: Phase
    step: int
    moves: tuple[Move, ...] = ()
    computes: tuple[Compute, ...] = ()
    reductions: tuple[Move, ...] = ()
    finished: bool = False  # the tile of the written tensor is complete and leaves


WHY = {
    "halo": "the output rows of a block read input rows that its neighbours own",
    "broadcast": "all ranks along {along} need the same slice of {tensor}",
    "return": "the rows of dIn that a block computes for its neighbours are added where they are owned",
    "reduce": "each rank along {along} holds a partial sum of the same slice of {tensor}",
}


@dataclass(frozen=True)
class Schedule:
    """The schedule of one pass, as planned, on one distribution, for all ranks."""

    distribution: Distribution
    pass_plan: PassPlan

    @cached_property
    def coordinates(self) -> list[PerAxis]:
        """rank -> grid coordinates."""
        return [self.distribution.at(rank) for rank in self.distribution.ranks]

    def rounds(self) -> Iterator[Round]:
        """All rounds, in order of execution."""
        pass_plan = self.pass_plan
        stays, written = pass_plan.stationary, pass_plan.written
        if written != "In" and "In" not in pass_plan.kept:
            yield Round("halo", 0, moves=tuple(self._halo()))
        for step, tensor in enumerate(pass_plan.expanded):
            yield Round("expand", step, moves=tuple(self._gather(tensor, self._needed(tensor))))
        yield from self._loop()
        if stays == written:
            yield Round("reduce", 0, reductions=tuple(self._reduce(written, self._needed(written))))
        if written == "In":
            yield Round("return", 0, reductions=tuple(self._return()))

    # -- phases ---------------------------------------------------------------------------------------

    def _halo(self) -> Iterator[Move]:
        d = self.distribution
        for target, at in enumerate(self.coordinates):
            carried = d.carried("In", at)
            missing = volume(carried) - volume(overlap(carried, d.owned("In", at)))
            if missing == 0:
                continue
            for source in self._neighbours(at):
                box = overlap(carried, d.owned("In", source))
                if source != at and volume(box):
                    yield Move("halo", "In", box, d.rank(source), (target,), WHY["halo"])

    def _return(self) -> Iterator[Move]:
        """The halo's moves the other way round."""
        for move in self._halo():
            yield Move("return", "In", move.box, move.targets[0], (move.source,), WHY["return"])

    def _neighbours(self, at: PerAxis) -> Iterator[PerAxis]:
        """Processes that may own rows which the process at `at` carries."""
        axes: tuple[Axis, ...] = ("d", "h", "w", "k") if self._rows_are_shared else ("d", "h", "w")
        line = [at]
        for axis in axes:
            line = [p.with_(axis, i) for p in line for i in range(getattr(self.distribution.grid, axis))]
        yield from line

    @cached_property
    def _rows_are_shared(self) -> bool:
        return any(dim in ("d", "h", "w") for dim, _ in self.distribution.shares["In"])

    def _gather(self, tensor: Tensor, regions: dict[int, Box]) -> Iterator[Move]:
        """Each group's members send the pieces that they carry of each region to all who need that one."""
        d = self.distribution
        if d.group_size(tensor) == 1:
            return
        why = WHY["broadcast"].format(
            along=LACKED_INDEX[tensor], tensor=role_name(self.pass_plan.pass_, tensor)
        )
        for group in self._groups(tensor):
            needed: dict[Box, list[int]] = {}
            for at in group:
                needed.setdefault(regions[d.rank(at)], []).append(d.rank(at))
            for region, ranks in needed.items():
                for at in group:
                    piece, source = overlap(d.carried(tensor, at), region), d.rank(at)
                    targets = tuple(rank for rank in ranks if rank != source)
                    if volume(piece) and targets:
                        yield Move("broadcast", tensor, piece, source, targets, why)

    def _reduce(self, tensor: Tensor, regions: dict[int, Box]) -> Iterator[Move]:
        """Each rank sends every member of its group the partial sums that the member carries."""
        d = self.distribution
        if d.group_size(tensor) == 1:
            return
        why = WHY["reduce"].format(along=LACKED_INDEX[tensor], tensor=role_name(self.pass_plan.pass_, tensor))
        for group in self._groups(tensor):
            ranks = [d.rank(at) for at in group]
            for owner, at in zip(ranks, group, strict=True):
                piece = overlap(d.carried(tensor, at), regions[owner])
                if volume(piece) == 0:
                    continue
                for source in ranks:
                    if source != owner:
                        yield Move("reduce", tensor, piece, source, (owner,), why)

    def _groups(self, tensor: Tensor) -> Iterator[list[PerAxis]]:
        d = self.distribution
        for at in self.coordinates:
            if d.member(tensor, at) == 0:
                yield d.group(tensor, at)

    def _loop(self) -> Iterator[Round]:
        d, pass_plan = self.distribution, self.pass_plan
        firsts = zip(self.coordinates, first_panels(d, pass_plan), strict=True)
        streams = [list(pass_plan.tiles(d.work(at), first)) for at, first in firsts]
        written = pass_plan.written
        reduces = pass_plan.stationary != written
        for step in range(pass_plan.steps):
            tiles = [tiles[step] for tiles in streams]
            moves: list[Move] = []
            for tensor in pass_plan.brought:
                if self._changes(tensor, step - 1):
                    moves += self._gather(tensor, self._regions(tensor, tiles))
            computes = tuple(Compute(rank, tile) for rank, tile in enumerate(tiles))
            leaves = reduces and self._changes(written, step)
            reductions = tuple(self._reduce(written, self._regions(written, tiles))) if leaves else ()
            yield Round("loop", step, tuple(moves), computes, reductions, leaves)

    def _needed(self, tensor: Tensor) -> dict[int, Box]:
        return {rank: self.distribution.needed(tensor, at) for rank, at in enumerate(self.coordinates)}

    def _regions(self, tensor: Tensor, tiles: list[Block]) -> dict[int, Box]:
        return {rank: self.distribution.touched(tensor, tile) for rank, tile in enumerate(tiles)}

    def _changes(self, tensor: Tensor, step: int) -> bool:
        """Whether the tile of a tensor is another one after this step. The loops are alike on all ranks."""
        if step < 0 or step + 1 == self.pass_plan.steps:
            return True
        now, then = self.pass_plan.indices(step), self.pass_plan.indices(step + 1)
        return any(now[axis] != then[axis] for axis in now if axis in DIMS[tensor])
