"""Tiles of a block, in order, and how often each is visited."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
from hypothesis import given
from problems import schedules

from synth.axes import AXES, DIMS, LACKED_INDEX, TENSORS, PerAxis
from synth.intervals import within
from synth.nest import accesses
from synth.schedule import Schedule
from synth.tiling import COMPOSITE, Tiling


@given(schedules())
def test_tiles_partition_the_block(schedule: Schedule) -> None:
    distribution, tiling = schedule.distribution, schedule.tiling
    for rank in distribution.ranks:
        work = distribution.work(distribution.at(rank))
        frame = tuple(work[axis] for axis in AXES)
        counts = np.zeros([high - low for low, high in frame], int)
        tiles = list(tiling.tiles(work))
        for tile in tiles:
            counts[within(tuple(tile[axis] for axis in AXES), frame)] += 1
        assert (counts == 1).all()
        assert len(tiles) == tiling.steps
        most = tiling.sizes(distribution.most_work)
        for axis in AXES:
            assert max(tile[axis][1] - tile[axis][0] for tile in tiles) <= getattr(most, axis)


@given(schedules())
def test_loads_are_the_changes_of_tile_from_step_to_step(schedule: Schedule) -> None:
    tiling = schedule.tiling
    trips = tiling.counts._asdict()
    order = tiling.loops()
    for tensor in tiling.streaming:
        walked = [axis for axis in order if axis in DIMS[tensor]]
        seen = [tuple(tiling.indices(step)[axis] for axis in walked) for step in range(tiling.steps)]
        visits = 1 + sum(one != other for one, other in pairwise(seen))
        assert visits == tiling.loads(tensor) * len(set(seen))
        ones = dict.fromkeys("dhw", 1)
        access = accesses(ones, ones, dict.fromkeys("dhw", 0))[tensor]
        assert visits == access.loads(order, trips)
    assert tiling.loads(tiling.stationary) == 1


def test_the_streaming_loop_is_outermost() -> None:
    for stationary, swapped in product(TENSORS, (False, True)):
        tiling = Tiling(stationary, PerAxis(b=2, h=3, c=5, k=7), swapped)
        assert tiling.order[0] == tiling.stream == LACKED_INDEX[stationary]
        assert tiling.loops()[0] in COMPOSITE[tiling.stream]
        assert sorted(tiling.order) == ["c", "k", "x"]
        assert tiling.steps == 210
    assert Tiling("Out", PerAxis(c=5)).panels == 5
    assert Tiling("Ker", PerAxis(b=2, h=3, c=5)).panels == 6
    assert Tiling("In", PerAxis(k=7)).panels == 7


def test_said_in_words() -> None:
    tiling = Tiling("Out", PerAxis(b=2, c=5, k=7))
    assert str(tiling) == "stationary Out, 5 panel(s) along c, c:5 > b:2 > k:7"
    assert tiling.loads("Ker") == 2
    assert tiling.loads("In") == 1
    swapped = Tiling("Out", PerAxis(b=2, c=5, k=7), swapped=True)
    assert swapped.loops() == ("c", "k", "b")
    assert (swapped.loads("Ker"), swapped.loads("In")) == (1, 7)
    assert str(Tiling("In")) == "stationary In, 1 panel(s) along k, one tile"
