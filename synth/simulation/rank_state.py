"""The memory of the simulated ranks, and the conditions that their moves must satisfy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from synth.base.errors import CheckError
from synth.layer.axes import PerAxis, Tensor
from synth.layer.intervals import Box, contains, overlap, shape, volume, within
from synth.schedule.distribution import Distribution
from synth.schedule.pass_program import PassProgram
from synth.schedule.schedule import Move
from synth.simulation.numpy_kernels import Values


class PanelMissing(CheckError):
    """A rank computes with, or sends, words that it does not hold."""


class IncompleteResult(CheckError):
    """Some words of the result were never completed, or were completed twice."""


@dataclass
class Held:
    """A box of a tensor in one rank's memory; `values` is None when only counting."""

    box: Box
    values: Values | None


@dataclass
class RankState:
    """One rank's memory."""

    own: dict[Tensor, Held] = field(default_factory=dict)
    carried: dict[Tensor, Held] = field(default_factory=dict)  # widened shards
    sums: Held = field(default_factory=lambda: Held((), None))  # the shard of the written tensor
    tile: dict[Tensor, Held] = field(default_factory=dict)  # slices and panels in use
    apart: dict[Tensor, int] = field(default_factory=dict)  # words of gathered slices and panels
    unfilled: dict[Tensor, int] = field(default_factory=dict)  # words that kept slices still lack
    live: int = 0
    peak: int = 0

    def touch(self, transient: int = 0) -> None:
        """Record a moment at which `transient` more words are live."""
        self.peak = max(self.peak, self.live + transient)


def start(
    distribution: Distribution, program: PassProgram, at: PerAxis, given: tuple[Values | None, Values | None]
) -> RankState:
    """A rank's memory before a pass: shards and reused slices of what it reads.

    The zeros of the result are there, too, but no live words before the loop.
    given: the two tensors that the pass reads, whole; None when only counting.
    """
    state, plan = RankState(), program.pass_plan
    dtype = None if given[0] is None or given[1] is None else given[0].dtype
    for tensor, values in zip(plan.reads, given, strict=True):
        state.own[tensor] = _part(distribution, tensor, distribution.owned(tensor, at), values)
        room = distribution.room(tensor, at)
        state.live += distribution.padded_volume(tensor, at, room) if distribution.ghosts else volume(room)
        if tensor in plan.reuses:
            state.tile[tensor] = _part(distribution, tensor, distribution.needed(tensor, at), values)
            in_room = distribution.ghosts and distribution.group_size(tensor) == 1
            apart = state.tile[tensor].box != state.own[tensor].box and not in_room
            state.live += distribution.padded_volume(tensor, at, state.tile[tensor].box) if apart else 0
        elif tensor in program.fills:
            state.unfilled[tensor] = volume(distribution.needed(tensor, at))
            state.live += state.unfilled[tensor]
    written = plan.written
    carried, whole = distribution.carried(written, at), distribution.needed(written, at)
    state.sums = Held(carried, None if dtype is None else np.zeros(shape(carried), dtype))
    if program.loop.compute.stationary:
        state.tile[written] = Held(whole, None if dtype is None else np.zeros(shape(whole), dtype))
    return state


def _part(distribution: Distribution, tensor: Tensor, box: Box, values: Values | None) -> Held:
    whole = tuple((0, n) for n in distribution.nest.shapes[tensor])
    return Held(box, None if values is None else values[within(box, whole)])


def assembled(ranks: list[RankState], written: Tensor, whole: Box) -> Values:
    """The result from the shards of all ranks. Raises `IncompleteResult` if a word has no owner."""
    shards = ((state.sums.box, state.sums.values) for state in ranks if volume(state.sums.box))
    sums = [(box, values) for box, values in shards if values is not None]
    out = np.full(shape(whole), np.nan, next((own.dtype for _, own in sums), np.dtype("float64")))
    for box, own in sums:
        out[within(box, whole)] = own
    if np.isnan(out).any():
        raise IncompleteResult(f"some words of {written} are owned by no rank, or were computed from NaN")
    return out


def add_box(into: Held, box: Box, values: Values | None) -> None:
    if into.values is not None and values is not None and volume(box):
        into.values[within(box, into.box)] += values


def halo_is_filled(ranks: list[RankState], tensor: Tensor, moves: Iterable[Move]) -> None:
    """Check that a rank's carried box is its owned part and one strip from each of some other owners.

    Owners hold disjoint boxes (and `_take` sees that they do), so distinct sources and the right sum
    mean that no row is missing.
    """
    strips: dict[int, list[Move]] = {}
    for move in moves:
        for target in move.targets:
            strips.setdefault(target, []).append(move)
    for rank, state in enumerate(ranks):
        box, own = state.carried[tensor].box, state.own[tensor].box
        arriving = strips.get(rank, [])
        sources = {rank, *(move.source for move in arriving)}
        inside = all(contains(box, move.box) for move in arriving)
        filled = volume(overlap(box, own)) + sum(volume(move.box) for move in arriving)
        if not inside or len(sources) != len(arriving) + 1 or filled != volume(box):
            raise PanelMissing(
                f"rank {rank} carries {tensor} {box} for its group, but the rows it owns and those it gets "
                f"from ranks {sorted(sources - {rank})} do not tile it; the schedule is wrong"
            )


def slices_are_filled(ranks: list[RankState]) -> None:
    """Check that the panels of a saved tensor have as many words as its slice."""
    for rank, state in enumerate(ranks):
        for tensor, words in state.unfilled.items():
            if words:
                raise PanelMissing(
                    f"rank {rank} keeps a slice of {tensor} of which its panels left {words} words unfilled; "
                    "the schedule is wrong"
                )


def sums_are_sent_once(ranks: list[RankState], written: Tensor, moves: Iterable[Move]) -> None:
    """Check that every rank sends each word of its panel to the one rank that carries it."""
    sent = [[rank] for rank in range(len(ranks))]
    words = [0] * len(ranks)
    for move in moves:
        for target in move.targets:
            if not contains(ranks[target].sums.box, move.box):
                raise IncompleteResult(
                    f"rank {move.source} sends partial sums {move.box} to rank {target}, which sums "
                    f"{ranks[target].sums.box}; the schedule is wrong"
                )
        sent[move.source] += move.targets
        words[move.source] += volume(move.box) * len(move.targets)
    for rank, state in enumerate(ranks):
        panel = state.tile.get(written)
        left = volume(panel.box) - volume(overlap(panel.box, state.sums.box)) if panel else 0
        if len(set(sent[rank])) != len(sent[rank]) or words[rank] != left:
            raise IncompleteResult(
                f"rank {rank} holds {left} partial sums of {written} for others, but sends "
                f"{words[rank]} to ranks {sorted(sent[rank][1:])}; the schedule is wrong"
            )
