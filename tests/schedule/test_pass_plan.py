"""Tiles of a block, in order, and how often each is visited."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
from hypothesis import given
from hypothesis_problems import schedules

from synth.layer.axes import AXES, DIMS, LACKED_INDEX, TENSORS, PerAxis
from synth.layer.intervals import within
from synth.layer.layer import Layer
from synth.layer.nest import accesses
from synth.schedule.distribution import Distribution
from synth.schedule.pass_plan import COMPOSITE, PassPlan
from synth.schedule.pass_program import pass_program
from synth.schedule.schedule import Schedule


@given(schedules())
def test_tiles_partition_the_block(schedule: Schedule) -> None:
    distribution, pass_plan = schedule.distribution, schedule.pass_plan
    for rank in distribution.ranks:
        work = distribution.work(distribution.at(rank))
        frame = tuple(work[axis] for axis in AXES)
        counts = np.zeros([high - low for low, high in frame], int)
        tiles = list(pass_plan.tiles(work))
        for tile in tiles:
            counts[within(tuple(tile[axis] for axis in AXES), frame)] += 1
        assert (counts == 1).all()
        assert len(tiles) == pass_plan.steps
        most = pass_plan.sizes(distribution.most_work)
        for axis in AXES:
            assert max(tile[axis][1] - tile[axis][0] for tile in tiles) <= getattr(most, axis)


@given(schedules())
def test_loads_are_the_changes_of_tile_from_step_to_step(schedule: Schedule) -> None:
    pass_plan, program = schedule.pass_plan, schedule.program
    trips = pass_plan.counts._asdict()
    order = pass_plan.loops()
    for move in program.collectives():
        tensor = move.tensor
        if tensor == pass_plan.stationary:
            assert (move.scope, program.loads(move)) == ("slice", 1)
            continue
        walked = [axis for axis in order if axis in DIMS[tensor]]
        seen = [tuple(pass_plan.indices(step)[axis] for axis in walked) for step in range(pass_plan.steps)]
        visits = 1 + sum(one != other for one, other in pairwise(seen))
        assert visits == program.loads(move) * len(set(seen))
        changes = [program.changes(move, step) for step in range(-1, pass_plan.steps - 1)]
        assert visits == sum(changes)
        ones = dict.fromkeys("dhw", 1)
        access = accesses(ones, ones, dict.fromkeys("dhw", 0))[tensor]
        assert visits == access.loads(order, trips)


def test_the_streaming_loop_is_outermost() -> None:
    for stationary, swapped in product(TENSORS, (False, True)):
        pass_plan = PassPlan(stationary, PerAxis(b=2, h=3, c=5, k=7), swapped)
        assert pass_plan.order[0] == pass_plan.stream == LACKED_INDEX[stationary]
        assert pass_plan.loops()[0] in COMPOSITE[pass_plan.stream]
        assert sorted(pass_plan.order) == ["c", "k", "x"]
        assert pass_plan.steps == 210
    assert PassPlan("Out", PerAxis(c=5)).panels == 5
    assert PassPlan("Ker", PerAxis(b=2, h=3, c=5)).panels == 6
    assert PassPlan("In", PerAxis(k=7)).panels == 7


def loads(pass_plan: PassPlan) -> dict[str, int]:
    """Tensor -> how often each of its panels moves, on a grid that splits every tensor's group."""
    nest = Layer.matmul(64, 64, 64).nest
    program = pass_program(Distribution(nest, PerAxis(b=2, c=2, k=2)), pass_plan)
    return {move.tensor: program.loads(move) for move in program.collectives()}


def test_text_of_a_pass_plan() -> None:
    pass_plan = PassPlan("Out", PerAxis(b=2, c=5, k=7))
    assert str(pass_plan) == "stationary Out, 5 panel(s) along c, c:5 > b:2 > k:7"
    assert loads(pass_plan) == {"Ker": 2, "In": 1, "Out": 1}
    swapped = PassPlan("Out", PerAxis(b=2, c=5, k=7), swapped=True)
    assert swapped.loops() == ("c", "k", "b")
    assert loads(swapped) == {"Ker": 1, "In": 7, "Out": 1}
    assert str(PassPlan("In")) == "stationary In, 1 panel(s) along k, one tile"
