"""`synth simulate`: one process interprets the schedule of all ranks, with values or counting only.

Every rank has its own store of boxes. A move is refused unless its source holds the words; a tile is
refused unless its rank holds what it touches. What comes out: the assembled result, the words every rank
received per tensor, and the most words it ever held. None of it uses the planner's formulas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from synth.axes import TENSORS, PerAxis, Tensor
from synth.distribution import Distribution
from synth.errors import CheckError
from synth.intervals import Block, Box, contains, overlap, shape, volume, within
from synth.kernel import Values, convolve
from synth.schedule import Compute, Move, Phase, Round, Schedule


class PanelMissing(CheckError):
    """A rank computes with, or sends, words that are not there."""


class IncompleteResult(CheckError):
    """Some words of Out were never finished, or were finished twice."""


@dataclass
class Held:
    """A box of a tensor in one rank's memory; `values` is None when only counting."""

    box: Box
    values: Values | None


@dataclass
class RankState:
    """One rank's memory."""

    own: dict[Tensor, Held] = field(default_factory=dict)
    carried: Held | None = None  # the widened share of In
    tile: dict[Tensor, Held] = field(default_factory=dict)  # slices and panels in use
    live: int = 0
    peak: int = 0

    def touch(self, transient: int = 0) -> None:
        """Note a moment at which `transient` more words are alive."""
        self.peak = max(self.peak, self.live + transient)


@dataclass(frozen=True)
class Simulation:
    """Outcome: `out` in storage order (None when only counting), words received and held per rank."""

    out: Values | None
    received: dict[str, list[int]]  # "in", "ker", "out", "halo", "total" -> words by rank
    peak: list[int]
    steps: dict[tuple[Phase, int, Tensor], list[int]]  # the same by (phase, step, tensor); zeros left out

    def most(self) -> dict[str, int]:
        """The most words any rank received, as `words.Received.most`."""
        return {name: max(words) for name, words in self.received.items()}


def simulate(schedule: Schedule, inputs: Values | None = None, ker: Values | None = None) -> Simulation:
    """Interpret a schedule. With `inputs` and `ker` (storage order, reduced rows) values are computed too.

    Raises `PanelMissing` and `IncompleteResult` when the schedule is wrong.
    """
    return _Interpreter(schedule, inputs, ker).run()


class _Interpreter:
    def __init__(self, schedule: Schedule, inputs: Values | None, ker: Values | None) -> None:
        self.schedule, self.distribution, self.tiling = schedule, schedule.distribution, schedule.tiling
        self.nest = self.distribution.nest
        self.counting = inputs is None or ker is None
        self.dtype = inputs.dtype if inputs is not None else np.dtype("float64")
        self.received = {name: np.zeros(len(self.distribution.ranks), np.int64) for name in _NAMES}
        self.steps: dict[tuple[Phase, int, Tensor], list[int]] = {}
        self.ranks = [RankState() for _ in self.distribution.ranks]
        for rank, state in enumerate(self.ranks):
            at = self.distribution.at(rank)
            state.own["In"] = self._given("In", at, inputs)
            state.own["Ker"] = self._given("Ker", at, ker)
            self._start(state, self.distribution, rank)

    def _all(self, tensor: Tensor) -> Box:
        return tuple((0, n) for n in self.nest.shapes[tensor])

    def _given(self, tensor: Tensor, at: PerAxis, values: Values | None) -> Held:
        box = self.distribution.owned(tensor, at)
        return Held(box, None if values is None else values[within(box, self._all(tensor))])

    def _start(self, state: RankState, d: Distribution, rank: int) -> None:
        at = d.at(rank)
        out = d.owned("Out", at)
        whole = d.needed("Out", at) if self.tiling.stationary == "Out" else out
        state.live = volume(state.own["In"].box) + volume(state.own["Ker"].box)
        state.own["Out"] = Held(out, self._zeros(out))
        if self.tiling.stationary == "Out":
            state.tile["Out"] = Held(whole, self._zeros(whole))
        else:
            state.live += volume(out)

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
        total = self.received["in"] + self.received["ker"] + self.received["out"]
        received = {name: words.tolist() for name, words in {**self.received, "total": total}.items()}
        return Simulation(self._assemble(), received, [state.peak for state in self.ranks], self.steps)

    def _round(self, now: Round, following: Round | None) -> None:
        for move in (*now.moves, *now.reductions):
            words = self.steps.setdefault((now.phase, now.step, move.tensor), [0] * len(self.ranks))
            for rank in move.targets:
                words[rank] += volume(move.box)
        match now.phase:
            case "halo":
                self._halo(now.moves)
            case "expand":
                self._gather(now.moves, one_at_a_time=True)
            case "loop":
                self._gather(now.moves)
                flight = self._in_flight(following) if following and following.phase == "loop" else {}
                for compute in now.computes:
                    self._compute(compute, flight.get(compute.rank, 0))
                if now.reductions:
                    self._reduce(now.reductions)
                elif self.tiling.stationary != "Out" and self.distribution.group_size("Out") == 1:
                    self._keep()
            case "reduce":
                self._finish(now.reductions)

    # -- moves ----------------------------------------------------------------------------------------

    def _take(self, move: Move) -> Values | None:
        """The words of a move, from its source; refused when the source does not hold them."""
        state = self.ranks[move.source]
        if move.kind == "halo":
            held = state.own[move.tensor]
        elif move.kind == "reduce":
            held = state.tile["Out"]
        else:
            held = self._share(state, move.tensor)
        if not contains(held.box, move.box):
            raise PanelMissing(
                f"rank {move.source} is to send {move.tensor} {move.box} ({move.kind}) "
                f"but holds {held.box} only; the schedule is wrong"
            )
        return None if held.values is None else held.values[within(move.box, held.box)]

    @staticmethod
    def _share(state: RankState, tensor: Tensor) -> Held:
        return state.carried if tensor == "In" and state.carried else state.own[tensor]

    def _count(self, move: Move, name: str) -> None:
        self.received[name][list(move.targets)] += volume(move.box)

    def _halo(self, moves: Iterable[Move]) -> None:
        strips = np.zeros(len(self.ranks), np.int64)
        for rank, state in enumerate(self.ranks):
            box = self.distribution.carried("In", self.distribution.at(rank))
            own = state.own["In"]
            state.carried = own
            if box == own.box:
                continue
            state.carried = Held(box, self._zeros(box))
            state.live += volume(box)
            kept = overlap(box, own.box)
            if state.carried.values is not None and own.values is not None and volume(kept):
                state.carried.values[within(kept, box)] = own.values[within(kept, own.box)]
        for move in moves:
            values = self._take(move)
            self._count(move, "in")
            self._count(move, "halo")
            for rank in (move.source, *move.targets):
                strips[rank] += volume(move.box)
            for target in move.targets:
                into = self.ranks[target].carried
                if into is not None and into.values is not None and values is not None:
                    into.values[within(move.box, into.box)] = values
        for state, words in zip(self.ranks, strips, strict=True):
            state.touch(int(words))

    def _gather(self, moves: tuple[Move, ...], one_at_a_time: bool = False) -> None:
        for tensor in ("In", "Ker"):
            for ranks, pieces in self._by_group(m for m in moves if m.tensor == tensor):
                self._bring(tensor, ranks, pieces, one_at_a_time)

    def _by_group(self, moves: Iterable[Move]) -> Iterator[tuple[tuple[int, ...], list[Move]]]:
        groups: dict[int, list[Move]] = {}
        for move in moves:
            groups.setdefault(min(move.source, *move.targets), []).append(move)
        for pieces in groups.values():
            yield (pieces[0].source, *pieces[0].targets), pieces

    def _bring(self, tensor: Tensor, ranks: tuple[int, ...], pieces: list[Move], alone: bool) -> None:
        """All members of a group get the region that the pieces tile."""
        region = _hull([piece.box for piece in pieces])
        if sum(volume(piece.box) for piece in pieces) != volume(region):
            raise PanelMissing(f"the pieces of {tensor} {region} for ranks {ranks} do not tile it")
        values = self._zeros(region)
        for piece in pieces:
            taken = self._take(piece)
            self._count(piece, tensor.lower())
            if values is not None and taken is not None:
                values[within(piece.box, region)] = taken
        largest = max(volume(piece.box) for piece in pieces)
        transit = largest if alone else (volume(region) if len(pieces) > 1 else 0)
        for rank in ranks:
            state = self.ranks[rank]
            old = state.tile.pop(tensor, None)
            state.live += volume(region) - (volume(old.box) if old else 0)
            state.tile[tensor] = Held(region, values)
            state.touch(transit)

    def _in_flight(self, following: Round) -> dict[int, int]:
        """rank -> words of the next panels, which travel while this step computes."""
        words: dict[int, int] = {}
        for move in following.moves:
            for rank in (move.source, *move.targets):
                words[rank] = words.get(rank, 0) + volume(move.box)
        return words

    # -- work -----------------------------------------------------------------------------------------

    def _compute(self, compute: Compute, flight: int) -> None:
        state, tile = self.ranks[compute.rank], compute.tile
        boxes = {tensor: self.distribution.touched(tensor, tile) for tensor in TENSORS}
        if "Out" not in state.tile:
            state.tile["Out"] = Held(boxes["Out"], self._zeros(boxes["Out"]))
            state.live += volume(boxes["Out"])
        held = {t: state.tile.get(t) or self._share(state, t) for t in TENSORS}
        if all(high > low for low, high in tile.values()):
            for tensor in TENSORS:
                if not contains(held[tensor].box, boxes[tensor]):
                    raise PanelMissing(
                        f"rank {compute.rank} computes tile {tile} with {tensor} {boxes[tensor]} "
                        f"but holds {held[tensor].box} only; the schedule is wrong"
                    )
            self._add(tile, boxes, held)
        padded = self.nest.padded_words(tile, volume(boxes["In"][:3]))
        state.touch(flight + volume(boxes["Out"]) + padded)

    def _add(self, tile: Block, boxes: dict[Tensor, Box], held: dict[Tensor, Held]) -> None:
        inputs, ker, out = (held[t].values for t in ("In", "Ker", "Out"))
        if inputs is None or ker is None or out is None:
            return
        seen = inputs[within(boxes["In"], held["In"].box)] if volume(boxes["In"]) else None
        if seen is not None:
            result = convolve(self.nest, tile, seen, ker[within(boxes["Ker"], held["Ker"].box)])
            out[within(boxes["Out"], held["Out"].box)] += result

    # -- results --------------------------------------------------------------------------------------

    def _reduce(self, moves: Iterable[Move]) -> None:
        """Partial sums of the Out panel go to their owners; every rank then drops the panel."""
        transit = np.zeros(len(self.ranks), np.int64)
        arriving: list[tuple[int, Box, Values | None]] = []
        for move in moves:
            values = self._take(move)
            self._count(move, "out")
            transit[[move.source, *move.targets]] += volume(move.box)
            arriving += [(target, move.box, values) for target in move.targets]
        for rank, state in enumerate(self.ranks):
            state.touch(int(transit[rank]))
            self._into_share(state)
        for target, box, values in arriving:
            own = self.ranks[target].own["Out"]
            if own.values is not None and values is not None:
                own.values[within(box, own.box)] += values
        self._drop("Out")

    def _keep(self) -> None:
        """Nobody shares the Out panels: add them to the own shares."""
        for state in self.ranks:
            self._into_share(state)
        self._drop("Out")

    def _drop(self, tensor: Tensor) -> None:
        for state in self.ranks:
            panel = state.tile.pop(tensor, None)
            state.live -= volume(panel.box) if panel else 0

    @staticmethod
    def _into_share(state: RankState) -> None:
        panel, own = state.tile.get("Out"), state.own["Out"]
        if panel is None or panel.values is None or own.values is None:
            return
        mine = overlap(panel.box, own.box)
        if volume(mine):
            own.values[within(mine, own.box)] += panel.values[within(mine, panel.box)]

    def _finish(self, moves: Iterable[Move]) -> None:
        """The stationary Out: reduce it along c; the finished shares are new words."""
        self._drop("In")
        self._drop("Ker")
        for state in self.ranks:
            if self.distribution.group_size("Out") > 1:
                state.live += volume(state.own["Out"].box)
        self._reduce(moves)

    def _assemble(self) -> Values | None:
        if self.counting:
            return None
        whole = self._all("Out")
        out = np.full(shape(whole), np.nan, self.dtype)
        for state in self.ranks:
            own = state.own["Out"]
            if volume(own.box) and own.values is not None:
                out[within(own.box, whole)] = own.values
        if np.isnan(out).any():
            raise IncompleteResult("some words of Out are owned by no rank, or were computed from NaN")
        return out


_NAMES = ("in", "ker", "out", "halo")


def _hull(boxes: list[Box]) -> Box:
    return tuple((min(b[d][0] for b in boxes), max(b[d][1] for b in boxes)) for d in range(len(boxes[0])))
