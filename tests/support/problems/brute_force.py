"""What a search chooses from, one by one: all grids, all pass plans, and what each pass plan costs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from synth.layer.axes import AXES, PerAxis, Tensor
from synth.schedule.distribution import Distribution
from synth.schedule.memory import Footprints
from synth.schedule.pass_plan import PassPlan
from synth.schedule.pass_program import pass_program
from synth.schedule.volume import Visits, received

Point = tuple[int, int]  # received words, words of memory


def all_grids(extents: PerAxis, procs: int, exact: bool = False) -> Iterator[PerAxis]:
    """Every grid of at most (or exactly) `procs` processes without empty blocks."""

    def extended(axis: int, grid: tuple[int, ...], size: int) -> Iterator[PerAxis]:
        if axis == len(AXES):
            if size == procs or not exact:
                yield PerAxis(*grid)
            return
        for parts in range(1, min(extents[axis], procs // size) + 1):
            yield from extended(axis + 1, (*grid, parts), size * parts)

    yield from extended(0, (), 1)


def all_pass_plans(work: PerAxis, stationary: Tensor) -> Iterator[PassPlan]:
    """Every pass plan of a block: all counts along all axes but g, both orders of the inner loops."""
    ranges = [range(1, 2) if axis == "g" else range(1, n + 1) for axis, n in zip(AXES, work, strict=True)]
    for counts in itertools.product(*ranges):
        for swapped in (False, True):
            yield PassPlan(stationary, PerAxis(*counts), swapped)


def all_points(d: Distribution, stationary: Tensor) -> dict[PassPlan, Point]:
    """Words and memory of every pass plan of a distribution."""
    footprints = Footprints(d)
    known: dict[tuple[int, ...], int] = {}
    points = {}
    for pass_plan in all_pass_plans(d.most_work, stationary):
        n = pass_plan.counts
        key = (*Visits.of(pass_program(d, pass_plan)).loads, n.d, n.h, n.w)
        if key not in known:
            known[key] = received(d, pass_plan).most()["total"]
        points[pass_plan] = known[key], footprints.memory(pass_plan).words
    return points
