"""The memory of the ranks that `simulate` interprets a schedule for, and what must be true of their moves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from synth.base.errors import CheckError
from synth.layer.axes import Tensor
from synth.layer.intervals import Box, contains, overlap, volume, within
from synth.schedule.schedule import Move
from synth.simulation.numpy_kernels import Values


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
    sums: Held = field(default_factory=lambda: Held((), None))  # the share of the written tensor
    tile: dict[Tensor, Held] = field(default_factory=dict)  # slices and panels in use
    unfilled: dict[Tensor, int] = field(default_factory=dict)  # words that kept slices still lack
    live: int = 0
    peak: int = 0

    def touch(self, transient: int = 0) -> None:
        """Note a moment at which `transient` more words are alive."""
        self.peak = max(self.peak, self.live + transient)


def add_box(into: Held, box: Box, values: Values | None) -> None:
    if into.values is not None and values is not None and volume(box):
        into.values[within(box, into.box)] += values


def halo_is_filled(ranks: list[RankState], moves: Iterable[Move]) -> None:
    """What a rank carries is what it owns of it and one strip from each of some other owners.

    Owners hold disjoint boxes (and `_take` sees that they do), so distinct sources and the right sum
    mean that no row is missing.
    """
    strips: dict[int, list[Move]] = {}
    for move in moves:
        for target in move.targets:
            strips.setdefault(target, []).append(move)
    for rank, state in enumerate(ranks):
        box, own = state.carried.box if state.carried else (), state.own["In"].box
        arriving = strips.get(rank, [])
        sources = {rank, *(move.source for move in arriving)}
        inside = all(contains(box, move.box) for move in arriving)
        filled = volume(overlap(box, own)) + sum(volume(move.box) for move in arriving)
        if not inside or len(sources) != len(arriving) + 1 or filled != volume(box):
            raise PanelMissing(
                f"rank {rank} carries In {box} for its group, but the rows it owns and those it gets "
                f"from ranks {sorted(sources - {rank})} do not tile it; the schedule is wrong"
            )


def slices_are_filled(ranks: list[RankState]) -> None:
    """The panels of a tensor that is kept had as many words as its slice; no two share any."""
    for rank, state in enumerate(ranks):
        for tensor, words in state.unfilled.items():
            if words:
                raise PanelMissing(
                    f"rank {rank} keeps a slice of {tensor} of which its panels left {words} words unfilled; "
                    "the schedule is wrong"
                )


def sums_are_sent_once(ranks: list[RankState], written: Tensor, moves: Iterable[Move]) -> None:
    """Every rank sends each word of its panel to the one rank that carries it, or carries it itself."""
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
