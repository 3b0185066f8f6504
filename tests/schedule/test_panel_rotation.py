"""Panel rotation: each rank starts at a panel of its own. Sends per step, and words that do not change."""

from __future__ import annotations

from collections import Counter

import pytest
from cases import CASES
from hypothesis import given
from hypothesis import strategies as st

from synth.layer.axes import PerAxis
from synth.layer.intervals import overlap
from synth.layer.layer import Layer
from synth.schedule.distribution import Distribution
from synth.schedule.panel_rotation import first_panels, rotated, within_one_panel
from synth.schedule.pass_plan import PassPlan
from synth.schedule.schedule import Schedule
from synth.schedule.volume import received
from synth.simulation.interpreter import simulate
from synth.simulation.verify import verify

COUNT = st.integers(1, 3)


@st.composite
def even(draw: st.DrawFn) -> Schedule:
    """A product whose shares of In and Ker are cut along c, often into as many parts as there are panels."""
    b, k, c = draw(COUNT), draw(st.sampled_from((1, 2, 4))), draw(COUNT)
    panels = draw(st.sampled_from((2, 3, 4)))
    nest = Layer.matmul(b * draw(COUNT), k * draw(COUNT), 48 * c).nest
    return Schedule(Distribution(nest, PerAxis(b=b, k=k, c=c)), PassPlan("Out", PerAxis(c=panels)))


@given(even())
def test_rotated_schedules_are_right_and_move_the_planned_words(schedule: Schedule) -> None:
    d = schedule.distribution
    assert verify(schedule).steps == schedule.pass_plan.panels  # every iteration once, panels there in time
    planned, counted = received(d, schedule.pass_plan), simulate(schedule).received
    for rank in d.ranks:
        assert {name: words[rank] for name, words in counted.items()} == planned.at(d.at(rank))


@given(even())
def test_a_rank_starts_with_its_own_panel_if_one_tensor_rotates(schedule: Schedule) -> None:
    d, plan = schedule.distribution, schedule.pass_plan
    tensors = rotated(d, plan)
    firsts = first_panels(d, plan)
    for at, first in zip(map(d.at, d.ranks), firsts, strict=True):
        assert 0 <= first < plan.panels
        tile = next(plan.tiles(d.work(at), first))
        if len(tensors) == 1:
            share = d.owned(tensors[0], at)
            assert overlap(share, d.touched(tensors[0], tile)) == share
    assert tensors or set(firsts) == {0}


@given(even())
def test_every_rank_sends_as_often_as_it_receives(schedule: Schedule) -> None:
    """Per step and tensor: to `ranks ÷ panels` ranks, or one fewer if the sender uses the panel itself."""
    d, plan = schedule.distribution, schedule.pass_plan
    for tensor in rotated(d, plan):
        several = dict(d.shard_cuts[tensor])["c"] // plan.panels
        for each in schedule.rounds():
            moves = [m for m in each.moves if m.tensor == tensor]
            assert all(m.box == d.owned(tensor, d.at(m.source)) for m in moves)
            sends = Counter(m.source for m in moves for _ in m.targets)
            hears = Counter(target for m in moves for target in m.targets)
            assert sends == hears
            assert all(count in (several - 1, several) for count in sends.values())


def test_two_data_parallel_ranks_by_hand() -> None:
    """Ker (1 x 4) in two panels along c: each rank uses its own half first, then that of the other."""
    d = Distribution(Layer.matmul(2, 1, 4).nest, PerAxis(b=2))
    plan = PassPlan("Out", PerAxis(c=2))
    assert rotated(d, plan) == ("Ker",)
    first, second = (each for each in Schedule(d, plan).rounds() if each.phase == "loop")
    assert [compute.tile["c"] for compute in first.computes] == [(0, 2), (2, 4)]
    assert [compute.tile["c"] for compute in second.computes] == [(2, 4), (0, 2)]
    assert first.moves == ()
    assert {(m.source, m.targets, m.box[2]) for m in second.moves} == {(0, (1,), (0, 2)), (1, (0,), (2, 4))}


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (PassPlan("Out", PerAxis(c=3)), "four parts do not fit into three panels"),
        (PassPlan("Out", PerAxis(c=8)), "shares would be cut"),
        (PassPlan("Out", PerAxis(c=2, b=2)), "two loops"),
        (PassPlan("In", PerAxis(k=2)), "sums leave panel by panel"),
        (PassPlan("Ker", PerAxis(b=2), pass_="backward-filter"), "shares are not cut along b"),
        (PassPlan("Out"), "one panel"),
    ],
)
def test_schedules_without_rotation(plan: PassPlan, why: str) -> None:
    d = Distribution(Layer.matmul(24, 24, 24).nest, PerAxis(b=4, k=4))
    assert rotated(d, PassPlan("Out", PerAxis(c=2))) == ("In", "Ker")
    assert rotated(d, plan) == (), why


def test_the_tensor_of_the_larger_group_rotates() -> None:
    """A slice of two ranks does not rotate beside a larger group; of two such slices the larger does."""
    nest, twice, four = Layer.matmul(32, 16, 16).nest, PassPlan("Out", PerAxis(c=2)), PerAxis(b=4, k=2)
    assert rotated(Distribution(nest, four), twice) == ("Ker",)
    assert rotated(Distribution(nest, PerAxis(b=2, k=4)), twice) == ("In",)
    assert rotated(Distribution(nest, PerAxis(b=2, k=2)), twice) == ("In",)
    assert rotated(Distribution(Layer.matmul(16, 32, 16).nest, PerAxis(b=2, k=2)), twice) == ("Ker",)


def test_shares_of_other_sizes_do_not_fit() -> None:
    """Ten channels over four ranks are 3, 3, 2 and 2; the second of two panels starts at channel 5."""
    d = Distribution(Layer.matmul(4, 4, 10).nest, PerAxis(b=4))
    assert not within_one_panel(d, "Ker", "c", 2)
    assert within_one_panel(Distribution(Layer.matmul(4, 4, 12).nest, PerAxis(b=4)), "Ker", "c", 2)


@pytest.mark.parametrize(
    ("case", "tensors"),
    [
        ("data_rotated", [("Ker",)]),
        ("data_halves", [("Ker",)]),
        ("data_2d_rotated", [("Ker",)]),
        ("rows_shared_panels", [()]),  # a panel along h shares rows with the next one
        ("cannon", [("In",)]),
        ("matrix_cannon", [("In", "Ker")]),
        ("training_rotated", [("In",), ("Out",), ()]),
    ],
)
def test_the_cases_are_rotated(case: str, tensors: list[tuple[str, ...]]) -> None:
    """What runs on real ranks in `test_ranks`."""
    plan = CASES[case]
    assert [rotated(plan.distribution, each) for each in plan.pass_plans] == tensors
