"""`synth simulate`: one process interprets the schedule of all ranks, with values or counting only.

Every rank has its own store of boxes. A move is refused unless its source holds the words; a tile is refused
unless its rank holds the boxes that it accesses. The outcome is the assembled result, the words that every
rank received per tensor, and the most words that it held at once. Nothing here uses the planner's formulas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from synth.layer.axes import DIMS, SPATIAL, TENSORS, Tensor
from synth.layer.intervals import Block, Box, consecutive, contains, overlap, shape, volume, within
from synth.schedule.schedule import Compute, Move, Round, Schedule
from synth.simulation.numpy_kernels import Values
from synth.simulation.numpy_kernels import run as run_kernel
from synth.simulation.rank_state import (
    Held,
    PanelMissing,
    RankState,
    add_box,
    assembled,
    halo_is_filled,
    slices_are_filled,
    start,
    sums_are_sent_once,
)
from synth.simulation.traffic import Simulation, Traffic


def simulate(schedule: Schedule, one: Values | None = None, other: Values | None = None) -> Simulation:
    """Interpret a schedule; with the two tensors that its pass reads, compute values, too.

    Both are whole, in storage order, with reduced input rows, and in the order of `passes.reads`: In and
    Ker for the forward pass. Raises `PanelMissing` and `IncompleteResult` when the schedule is wrong.
    """
    return _Interpreter(schedule, one, other).run()


Pieces = list[tuple[int, Held]]  # and the ranks that they come from


class _Interpreter:
    def __init__(self, schedule: Schedule, one: Values | None, other: Values | None) -> None:
        self.schedule, self.distribution, self.pass_plan = schedule, schedule.distribution, schedule.pass_plan
        self.nest = self.distribution.nest
        self.written = self.pass_plan.written
        self.program = schedule.program
        self.rotation = self.program.loop.rotation
        self.counting = one is None or other is None
        self.dtype = one.dtype if one is not None else np.dtype("float64")
        self.traffic = Traffic(len(self.distribution.ranks))
        self.now = Round("halo", 0)
        self.leaving = np.zeros(len(self.distribution.ranks), np.int64)  # sums on their way, by rank
        # whether the kernel makes the sums, and whether a panel of them is beside those of the shard
        self.one_step = self.pass_plan.steps == 1
        self.stationary = self.program.loop.compute.stationary
        self.has_panel = self.one_step or not (self.stationary or self._alone)
        self.has_sums = False
        # whether each step makes another panel; of sums that have zeros around, these
        loops = self.pass_plan.loops()
        self.fresh = bool(loops) and not self.stationary and loops[-1] in DIMS[self.written]
        self.beyond = np.zeros(len(self.distribution.ranks), np.int64)
        whole = all(getattr(self.pass_plan.counts, axis) == 1 for axis in SPATIAL)
        self.has_zeros = whole and self.written != "In" and self.distribution.keeps_zeros
        coordinates = map(self.distribution.at, self.distribution.ranks)
        self.ranks = [start(self.distribution, self.program, at, (one, other)) for at in coordinates]

    def _whole(self, tensor: Tensor) -> Box:
        return tuple((0, n) for n in self.nest.shapes[tensor])

    def _zeros(self, box: Box) -> Values | None:
        return None if self.counting else np.zeros(shape(box), self.dtype)

    def run(self) -> Simulation:
        rounds = iter(self.schedule.rounds())
        now = next(rounds)
        while True:
            following = next(rounds, None)
            self._round(now, following)
            if following is None:
                break
            now = following
        slices_are_filled(self.ranks)
        out = None if self.counting else assembled(self.ranks, self.written, self._whole(self.written))
        peak = [state.peak for state in self.ranks]
        return Simulation(out, self.traffic.received, peak, self.traffic.steps)

    def _round(self, now: Round, following: Round | None) -> None:
        self.now = now
        match now.phase:
            case "halo":
                self._halo(self.program.fetches[now.step].tensor, now.moves)
            case "expand":
                self._gather(now.moves)
            case "loop":
                self._begin_sums()
                self._gather(now.moves)
                flight = self._in_flight(following) if following and following.phase == "loop" else {}
                for compute in now.computes:
                    self._compute(compute, flight.get(compute.rank, 0))
                if now.finished:
                    self._reduce(now.reductions, flight)
            case "reduce":
                self._finish(now.reductions)
            case "return":
                self._return(now.reductions)

    @property
    def _alone(self) -> bool:
        """Whether the groups of the written tensor are single ranks."""
        return self.distribution.group_size(self.written) == 1

    # -- moves ----------------------------------------------------------------------------------------

    def _take(self, move: Move) -> Values | None:
        """The values of a move, from its source. Raises `PanelMissing` if the source does not hold them."""
        state = self.ranks[move.source]
        if move.kind == "halo":
            held = state.own[move.tensor]
        elif move.kind == "reduce":
            held = state.tile[self.written]
        elif move.kind == "return":
            held = state.sums
        else:
            held = self._carried(state, move.tensor)
            if move.tensor in self.rotation and self.now.phase == "loop" and move.box != held.box:
                raise PanelMissing(
                    f"rank {move.source} is to send {move.tensor} {move.box} but shards move whole where "
                    f"ranks are at different panels, and its is {held.box}; the schedule is wrong"
                )
        if not contains(held.box, move.box):
            raise PanelMissing(
                f"rank {move.source} is to send {move.tensor} {move.box} ({move.kind}) "
                f"but holds {held.box} only; the schedule is wrong"
            )
        return None if held.values is None else held.values[within(move.box, held.box)]

    @staticmethod
    def _carried(state: RankState, tensor: Tensor) -> Held:
        return state.carried.get(tensor) or state.own[tensor]

    def _halo(self, tensor: Tensor, moves: Iterable[Move]) -> None:
        strips = np.zeros(len(self.ranks), np.int64)
        for rank, state in enumerate(self.ranks):
            box = self.distribution.carried(tensor, self.distribution.at(rank))
            own = state.own[tensor]
            state.carried[tensor] = own
            if box == own.box:
                continue
            wide = state.carried[tensor] = Held(box, self._zeros(box))
            at = self.distribution.at(rank)
            state.live += 0 if self.distribution.ghosts else self.distribution.padded_volume(tensor, at, box)
            kept = overlap(box, own.box)
            if wide.values is not None and own.values is not None and volume(kept):
                wide.values[within(kept, box)] = own.values[within(kept, own.box)]
        moves = tuple(moves)
        halo_is_filled(self.ranks, tensor, moves)
        for move in moves:
            values = self._take(move)
            self.traffic.count(move, self.now)
            for rank in (move.source, *move.targets):
                strips[rank] += volume(move.box)
            for target in move.targets:
                into = self.ranks[target].carried[tensor]
                if into.values is not None and values is not None:
                    into.values[within(move.box, into.box)] = values
        for state, words in zip(self.ranks, strips, strict=True):
            state.touch(int(words))

    def _gather(self, moves: tuple[Move, ...]) -> None:
        arriving: dict[tuple[Tensor, int], Pieces] = {}
        self.made: dict[tuple[Tensor, Box, tuple[tuple[int, Box], ...]], Values | None] = {}
        for move in moves:
            piece = Held(move.box, self._take(move))
            self.traffic.count(move, self.now)
            for rank in move.targets:
                arriving.setdefault((move.tensor, rank), []).append((move.source, piece))
        whole = self.now.phase == "expand"
        gathers = (self.program.gathers[self.now.step],) if whole else self.program.loop.gathers
        for gather in gathers:
            for rank in range(len(self.ranks)):
                self._bring(gather.tensor, rank, arriving.get((gather.tensor, rank), []))

    def _bring(self, tensor: Tensor, rank: int, pieces: Pieces) -> None:
        """A rank assembles the region that it needs now from the part that it carries and from pieces.

        Members of a group carry disjoint boxes (and `_take` sees that they do): distinct sources, pieces
        inside the region and the right sum mean that they tile it.
        """
        state, region = self.ranks[rank], self._region(tensor, rank)
        old = state.tile.get(tensor)
        if old is not None and old.box == region and not pieces:
            return  # used in the step before
        part = self._carried(state, tensor)
        mine = overlap(part.box, region)
        if volume(mine):
            pieces = [(rank, Held(mine, self._seen(part, mine))), *pieces]
        inside = all(contains(region, piece.box) for _, piece in pieces)
        distinct = len({source for source, _ in pieces}) == len(pieces)
        if not inside or not distinct or sum(volume(piece.box) for _, piece in pieces) != volume(region):
            raise PanelMissing(f"the pieces of {tensor} {region} for rank {rank} do not tile it")
        beside = 0 if mine == region and self._copy(tensor, rank, mine) == 0 else volume(region)
        state.live += beside - state.apart.get(tensor, 0)
        state.apart[tensor] = beside
        state.tile[tensor] = Held(region, self._together(tensor, region, pieces))
        if tensor in state.unfilled:
            state.unfilled[tensor] -= volume(region)
        state.touch(self._in_transit(tensor, rank, mine, [piece.box for _, piece in pieces]))

    def _in_transit(self, tensor: Tensor, rank: int, mine: Box, boxes: Sequence[Box]) -> int:
        """Words beside a region while it is assembled: pieces that arrive apart, a copy of the own one."""
        region, copy = self._region(tensor, rank), self._copy(tensor, rank, mine)
        if self.now.phase == "loop" and not self.one_step:  # as the next panels, see `_in_flight`
            return volume(region) if len(boxes) > 1 else 0
        in_place = all(consecutive(box, region) for box in boxes if volume(box))
        return copy if in_place else copy + volume(region) - volume(mine)

    def _copy(self, tensor: Tensor, rank: int, mine: Box) -> int:
        """Words of a copy of the own part of a panel, which it needs unless its words are consecutive."""
        carried = self._carried(self.ranks[rank], tensor).box
        at = self.distribution.at(rank)
        frame = self.distribution.room(tensor, at) if self.distribution.ghosts else carried
        return 0 if consecutive(mine, frame) else volume(mine)

    def _together(self, tensor: Tensor, region: Box, pieces: Pieces) -> Values | None:
        """The values of a region; ranks that assemble the same pieces share one array."""
        if self.counting:
            return None
        key = tensor, region, tuple(sorted((source, piece.box) for source, piece in pieces))
        if key not in self.made:
            values = np.zeros(shape(region), self.dtype)
            for _, piece in pieces:
                values[within(piece.box, region)] = piece.values
            self.made[key] = values
        return self.made[key]

    def _region(self, tensor: Tensor, rank: int) -> Box:
        """The box of a tensor that a rank needs in this round: of its tile, or of its whole block."""
        if self.now.phase == "expand":
            return self.distribution.needed(tensor, self.distribution.at(rank))
        return self.distribution.touched(tensor, self.now.computes[rank].tile)

    def _in_flight(self, following: Round) -> dict[int, int]:
        """rank -> words of the next panels, in flight while this step computes; the own part is copied."""
        words: dict[int, int] = {}
        for move in following.moves:
            for rank in move.targets:
                words[rank] = words.get(rank, 0) + volume(move.box)
        for tensor in {move.tensor for move in following.moves}:
            for rank, state in enumerate(self.ranks):
                tile = following.computes[rank].tile
                panel = self.distribution.touched(tensor, tile)
                part = overlap(self._carried(state, tensor).box, panel)
                alone = part == panel and not self._copy(tensor, rank, part)
                words[rank] = words.get(rank, 0) + (0 if alone else volume(part))
        return words

    # -- work -----------------------------------------------------------------------------------------

    def _begin_sums(self) -> None:
        """Make zeros before the first of several steps: the stationary slice, or sums for the shard."""
        if self.has_sums or self.one_step:
            return
        self.has_sums = True
        for state in self.ranks:
            state.live += volume((state.tile[self.written] if self.stationary else state.sums).box)

    def _compute(self, compute: Compute, flight: int) -> None:
        state, tile = self.ranks[compute.rank], compute.tile
        boxes = {tensor: self.distribution.touched(tensor, tile) for tensor in TENSORS}
        written = self.written
        if written not in state.tile:
            state.tile[written] = Held(boxes[written], self._zeros(boxes[written]))
            beside = self.has_panel and not self.one_step and not self.fresh
            state.live += volume(boxes[written]) if beside else 0
        held = {t: state.tile.get(t) or self._carried(state, t) for t in TENSORS}
        if all(high > low for low, high in tile.values()):
            for tensor in TENSORS:
                if not contains(held[tensor].box, boxes[tensor]):
                    raise PanelMissing(
                        f"rank {compute.rank} computes tile {tile} with {tensor} {boxes[tensor]} "
                        f"but holds {held[tensor].box} only; the schedule is wrong"
                    )
            self._add(tile, boxes, held)
        padded = 0 if self.has_zeros else self.nest.padded_words(tile, volume(boxes["In"][:3]))
        result = volume(boxes[written])
        # the zeros around In are in a copy of the tile, or in the result
        made = max(result, padded) if written == "In" else result + padded
        state.touch(flight + int(self.leaving[compute.rank]) + made)
        if self.one_step or (self.fresh and self.has_panel):  # the result is the sums
            state.live += made if written == "In" else result
            self.beyond[compute.rank] = made - result if written == "In" else 0

    def _add(self, tile: Block, boxes: dict[Tensor, Box], held: dict[Tensor, Held]) -> None:
        """Add the local kernel's result to the tile of the written tensor."""
        sums = held[self.written]
        one, other = (self._seen(held[t], boxes[t]) for t in self.pass_plan.reads)
        if sums.values is None or one is None or other is None or 0 in map(volume, boxes.values()):
            return
        result = run_kernel(self.pass_plan.pass_, self.nest, tile, one, other)
        sums.values[within(boxes[self.written], sums.box)] += result

    @staticmethod
    def _seen(held: Held, box: Box) -> Values | None:
        return None if held.values is None else held.values[within(box, held.box)]

    # -- results --------------------------------------------------------------------------------------

    def _reduce(self, moves: Iterable[Move], flight: Mapping[int, int] = MappingProxyType({})) -> None:
        """Send the partial sums of the written panel to their owners; then drop the panel on every rank."""
        moves = tuple(moves)
        sums_are_sent_once(self.ranks, self.written, moves)
        transit, arriving = self._sent(moves)
        for rank, state in enumerate(self.ranks):
            transit[rank] += self._into_shard(state)
            state.touch(int(transit[rank]) + flight.get(rank, 0))
        self.leaving = transit
        for target, box, values in arriving:
            add_box(self.ranks[target].sums, box, values)
        self._drop(self.written)
        if self.one_step and not self.stationary:
            for state in self.ranks:
                state.live += volume(state.sums.box)

    def _sent(self, moves: Iterable[Move]) -> tuple[np.ndarray, list[tuple[int, Box, Values | None]]]:
        """By rank, the words that it sends and receives; and what arrives: (rank, box, values)."""
        words = np.zeros(len(self.ranks), np.int64)
        arriving: list[tuple[int, Box, Values | None]] = []
        for move in moves:
            values = self._take(move)
            self.traffic.count(move, self.now)
            words[[move.source, *move.targets]] += volume(move.box)
            arriving += [(target, move.box, values) for target in move.targets]
        return words, arriving

    def _drop(self, tensor: Tensor) -> None:
        if tensor in (self.pass_plan.reuses | self.pass_plan.saves) - {*self.program.fills}:
            return
        for state in self.ranks:
            panel = state.tile.pop(tensor, None)
            is_live = tensor != self.written or self.has_panel or self.stationary
            words = state.apart.pop(tensor, volume(panel.box)) if panel else 0
            state.live -= words if is_live else 0
        if tensor == self.written:
            for rank, state in enumerate(self.ranks):
                state.live -= int(self.beyond[rank])
            self.beyond[:] = 0

    def _into_shard(self, state: RankState) -> int:
        """Add a rank's own terms to its shard; returns their words, copied until the others' arrive."""
        panel = state.tile.get(self.written)
        if panel is None:
            return 0
        mine = overlap(panel.box, state.sums.box)
        if panel.values is not None:
            add_box(state.sums, mine, panel.values[within(mine, panel.box)])
        return 0 if self._alone else volume(mine)

    def _finish(self, moves: Iterable[Move]) -> None:
        """Reduce a stationary result; the finished shards are new words."""
        for tensor in self.pass_plan.reads:
            self._drop(tensor)
        self._reduce(moves)
        for state in self.ranks:
            state.live += volume(state.sums.box)  # where nobody shares the slice, it is the slice itself

    def _return(self, moves: Iterable[Move]) -> None:
        """Send halo rows of the result to their owners, who add them; then keep the owned rows only."""
        strips, arriving = self._sent(moves)
        for rank, state in enumerate(self.ranks):
            own = self.distribution.owned(self.written, self.distribution.at(rank))
            mine = Held(own, self._zeros(own))
            kept = overlap(own, state.sums.box)
            in_place = contains(state.sums.box, own) if self.distribution.ghosts else own == state.sums.box
            state.touch(int(strips[rank]) + (0 if in_place else volume(own)))
            if state.sums.values is not None:
                add_box(mine, kept, state.sums.values[within(kept, state.sums.box)])
            state.sums = mine
        for target, box, values in arriving:
            add_box(self.ranks[target].sums, box, values)
