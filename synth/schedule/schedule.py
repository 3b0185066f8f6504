"""The schedule of all ranks: the moves and computations that a pass program stands for, as frozen data.

`pass_program` is the rank-independent tree. Here its boxes are evaluated at the coordinates of every rank,
round by round. A `Round` holds what all ranks do between two changes of tile. Nothing here computes values:
the simulator interprets rounds and the verifier checks them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from synth.layer.axes import LACKS, SPATIAL, Axis, PerAxis, Tensor
from synth.layer.intervals import Block, Box, overlap, volume
from synth.layer.passes import role_name
from synth.schedule.distribution import Distribution
from synth.schedule.panel_rotation import first_panels
from synth.schedule.pass_plan import PassPlan
from synth.schedule.pass_program import Gather, Loop, PassProgram, Reduce, Rows, pass_program

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


@dataclass(frozen=True)
class Schedule:
    """The schedule of one pass, as planned, on one distribution, for all ranks."""

    distribution: Distribution
    pass_plan: PassPlan

    @cached_property
    def coordinates(self) -> list[PerAxis]:
        """rank -> grid coordinates."""
        return [self.distribution.at(rank) for rank in self.distribution.ranks]

    @cached_property
    def program(self) -> PassProgram:
        """The schedule tree of the pass."""
        return pass_program(self.distribution, self.pass_plan)

    @property
    def rotation_text(self) -> str:
        """The roles of the rotated tensors for people: `In and Ker`; empty if there are none."""
        roles = (role_name(self.pass_plan.pass_, tensor) for tensor in self.program.loop.rotation)
        return " and ".join(roles)

    def rounds(self) -> Iterator[Round]:
        """All rounds, in order of execution."""
        steps: Counter[Phase] = Counter()
        for node in self.program.top():
            match node:
                case Rows(direction="fetch"):
                    yield Round("halo", steps["halo"], moves=tuple(self._fetched(node)))
                    steps["halo"] += 1
                case Gather():
                    moves = self._gathered(node, self._needed(node.tensor))
                    yield Round("expand", steps["expand"], moves=tuple(moves))
                    steps["expand"] += 1
                case Loop():
                    yield from self._looped(node)
                    if node.compute.stationary and not self.program.reduces:
                        yield Round("reduce", 0)  # nobody shares the result: it is complete
                case Reduce():
                    moves = self._reduced(node, self._needed(node.tensor))
                    yield Round("reduce", 0, reductions=tuple(moves))
                case Rows():
                    yield Round("return", 0, reductions=tuple(self._returned(node)))

    # -- nodes ----------------------------------------------------------------------------------------

    def _fetched(self, node: Rows) -> Iterator[Move]:
        d = self.distribution
        for target, at in enumerate(self.coordinates):
            carried = d.carried(node.tensor, at)
            missing = volume(carried) - volume(overlap(carried, d.owned(node.tensor, at)))
            if missing == 0:
                continue
            for source in self._neighbours(node.tensor, at):
                box = overlap(carried, d.owned(node.tensor, source))
                if source != at and volume(box):
                    yield Move("halo", node.tensor, box, d.rank(source), (target,), node.why)

    def _returned(self, node: Rows) -> Iterator[Move]:
        """The moves of a fetch in the other direction."""
        for move in self._fetched(node):
            yield Move("return", node.tensor, move.box, move.targets[0], (move.source,), node.why)

    def _neighbours(self, tensor: Tensor, at: PerAxis) -> Iterator[PerAxis]:
        """Processes that may own rows of a tensor which the process at `at` carries."""
        by_rows = any(dim in SPATIAL for dim, _ in self.distribution.shard_cuts[tensor])
        axes: tuple[Axis, ...] = (*SPATIAL, *(LACKS[tensor] if by_rows else ()))
        line = [at]
        for axis in axes:
            line = [p.with_(axis, i) for p in line for i in range(getattr(self.distribution.grid, axis))]
        yield from line

    def _gathered(self, node: Gather, regions: dict[int, Box]) -> Iterator[Move]:
        """The members of each group send what they carry of a region to all who need that region."""
        d, tensor, why = self.distribution, node.tensor, node.why()
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

    def _reduced(self, node: Reduce, regions: dict[int, Box]) -> Iterator[Move]:
        """Each rank sends every member of its group the partial sums that the member carries."""
        d, tensor, why = self.distribution, node.tensor, node.why()
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

    def _looped(self, loop: Loop) -> Iterator[Round]:
        d, plan, program = self.distribution, self.pass_plan, self.program
        firsts = zip(self.coordinates, first_panels(d, plan), strict=True)
        streams = [list(plan.tiles(d.work(at), first)) for at, first in firsts]
        for step in range(plan.steps):
            tiles = [tiles[step] for tiles in streams]
            moves, reductions = list[Move](), list[Move]()
            for node in loop.gathers:
                if program.changes(node, step - 1):
                    moves += self._gathered(node, self._regions(node.tensor, tiles))
            for reduce in loop.reduces:
                if program.changes(reduce, step):
                    reductions += self._reduced(reduce, self._regions(reduce.tensor, tiles))
            computes = tuple(Compute(rank, tile) for rank, tile in enumerate(tiles))
            yield Round("loop", step, tuple(moves), computes, tuple(reductions), program.completes(step))

    def _needed(self, tensor: Tensor) -> dict[int, Box]:
        return {rank: self.distribution.needed(tensor, at) for rank, at in enumerate(self.coordinates)}

    def _regions(self, tensor: Tensor, tiles: list[Block]) -> dict[int, Box]:
        return {rank: self.distribution.touched(tensor, tile) for rank, tile in enumerate(tiles)}
