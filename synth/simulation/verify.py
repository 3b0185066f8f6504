"""Checks that a schedule is right, for all ranks at once; one error class per kind of fault.

    IterationFault   some iteration of the nest is computed by no rank, or twice
    OwnershipFault   some word of a tensor has no owner, or two
    PanelMissing     a rank computes with, or sends, words that it does not hold (raised by `simulate`)
    MemoryFault      a rank holds more words than the limit
    WordsFault       a rank receives other words than the planner's formula says

Boxes are counted on the grid of all their cut points, so nothing is assumed about how they were made.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from synth.base.errors import CheckError
from synth.layer.axes import AXES, DIMS, TENSORS
from synth.layer.intervals import Box
from synth.schedule.schedule import Schedule
from synth.schedule.volume import received
from synth.simulation.interpreter import simulate


class IterationFault(CheckError):
    """An iteration is never computed, or computed more than once."""


class OwnershipFault(CheckError):
    """A word has no owner, or several."""


class MemoryFault(CheckError):
    """A rank holds more than the limit."""


class WordsFault(CheckError):
    """Planned and interpreted words differ."""


@dataclass(frozen=True)
class Verified:
    """What was checked: ranks, steps of the loop, the most words received and held by any rank."""

    ranks: int
    steps: int
    words: int
    used_words: int

    def __str__(self) -> str:
        return (
            f"verified for {self.ranks} ranks and {self.steps} steps: every iteration once, every word owned "
            f"once, every panel there before use; at most {self.words} words received and "
            f"{self.used_words} held"
        )


def verify(schedule: Schedule, limit_words: int | None = None) -> Verified:
    """Check a schedule; `limit_words` is per rank. Raises the fault that it finds first."""
    owned_once(schedule)
    computed_once(schedule)
    outcome = simulate(schedule)
    planned = received(schedule.distribution, schedule.pass_plan)
    for rank in schedule.distribution.ranks:
        at = schedule.distribution.at(rank)
        for name, words in planned.at(at).items():
            if outcome.received[name][rank] != words:
                raise WordsFault(
                    f"rank {rank} at {at.shown()} receives {outcome.received[name][rank]} words of {name}, "
                    f"but {words} are planned"
                )
    most = max(outcome.peak)
    if limit_words is not None and most > limit_words:
        raise MemoryFault(
            f"rank {outcome.peak.index(most)} holds {most} words, {most - limit_words} over {limit_words}"
        )
    return Verified(
        len(schedule.distribution.ranks), schedule.pass_plan.steps, max(outcome.received["total"]), most
    )


def owned_once(schedule: Schedule) -> None:
    """Every word of every tensor has exactly one owner."""
    distribution = schedule.distribution
    for tensor in TENSORS:
        boxes = (distribution.owned(tensor, distribution.at(rank)) for rank in distribution.ranks)
        fault = _not_once(boxes, distribution.nest.shapes[tensor])
        if fault:
            where, count = fault
            position = ", ".join(f"{dim}={i}" for dim, i in zip(DIMS[tensor], where, strict=True))
            raise OwnershipFault(f"{tensor} word ({position}) has {count} owners instead of 1")


def computed_once(schedule: Schedule) -> None:
    """Every iteration of the nest is computed by exactly one rank, in exactly one step."""
    tiles = (compute.tile for each in schedule.rounds() for compute in each.computes)
    boxes = (tuple(tile[axis] for axis in AXES) for tile in tiles)
    fault = _not_once(boxes, tuple(schedule.distribution.nest.extents))
    if fault:
        where, count = fault
        position = ", ".join(f"{axis}={i}" for axis, i in zip(AXES, where, strict=True))
        raise IterationFault(f"iteration ({position}) is computed {count} times instead of once")


def _not_once(boxes: Iterable[Box], extents: tuple[int, ...]) -> tuple[tuple[int, ...], int] | None:
    """A position that the boxes do not cover exactly once, and how many boxes cover it."""
    filled = [box for box in boxes if all(low < high for low, high in box)]
    edges = []
    for dim, extent in enumerate(extents):
        edges.append(np.unique([0, extent, *(edge for box in filled for edge in box[dim])]))
    counts = np.zeros([len(each) - 1 for each in edges], dtype=np.int32)
    for box in filled:
        low = [np.searchsorted(edges[d], box[d][0]) for d in range(len(box))]
        high = [np.searchsorted(edges[d], box[d][1]) for d in range(len(box))]
        counts[tuple(slice(a, b) for a, b in zip(low, high, strict=True))] += 1
    wrong = np.argwhere(counts != 1)
    if len(wrong) == 0:
        return None
    cell = tuple(int(i) for i in wrong[0])
    return tuple(int(edges[d][i]) for d, i in enumerate(cell)), int(counts[cell])
