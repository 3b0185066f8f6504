"""The moves and computations of a schedule, one kind at a time."""

from __future__ import annotations

from itertools import groupby

import numpy as np
from example_nests import same_window
from hypothesis import given
from hypothesis_problems import schedules, training_steps

from synth.layer.axes import PerAxis
from synth.layer.intervals import contains, overlap, volume
from synth.layer.nest import Nest
from synth.layer.window import Window
from synth.schedule.distribution import Distribution
from synth.schedule.panel_rotation import rotated
from synth.schedule.pass_plan import PassPlan
from synth.schedule.schedule import Compute, Move, Schedule


def crosses_blocks(d: Distribution) -> bool:
    """Whether any rank carries other rows of In than it owns: a pass then has a halo exchange."""
    return any(d.carried("In", d.at(rank)) != d.owned("In", d.at(rank)) for rank in d.ranks)


@given(schedules())
def test_phases_come_in_order_and_each_step_computes_on_every_rank(schedule: Schedule) -> None:
    rounds = list(schedule.rounds())
    stays, steps = schedule.pass_plan.stationary, schedule.pass_plan.steps
    d = schedule.distribution
    before = ["halo"] if crosses_blocks(d) else []
    before += ["expand"] if stays != "Out" and d.group_size(stays) > 1 else []
    after = ["reduce"] if stays == "Out" else []
    assert [each.phase for each in rounds] == before + ["loop"] * steps + after
    ranks = list(schedule.distribution.ranks)
    for step, each in enumerate(each for each in rounds if each.phase == "loop"):
        assert each.step == step
        assert [compute.rank for compute in each.computes] == ranks


@given(training_steps())
def test_rounds_of_a_phase_are_numbered_and_phases_come_once(passes: tuple[Schedule, ...]) -> None:
    order = ["halo", "expand", "loop", "reduce", "return"]
    for schedule in passes:
        phases = []
        for phase, rounds in groupby(schedule.rounds(), lambda each: each.phase):
            phases.append(phase)
            numbers = [each.step for each in rounds]
            assert numbers == list(range(len(numbers)))
        assert phases == sorted(set(phases), key=order.index)


@given(schedules())
def test_a_move_goes_from_a_rank_that_holds_the_words_to_ranks_that_lack_them(schedule: Schedule) -> None:
    d = schedule.distribution
    for each in schedule.rounds():
        for move in (*each.moves, *each.reductions):
            assert volume(move.box) > 0
            assert move.targets
            assert move.source not in move.targets
            assert move.why
            source = d.at(move.source)
            match move.kind:
                case "halo":
                    assert contains(d.owned("In", source), move.box)
                    carried = d.carried("In", d.at(move.targets[0]))
                    assert contains(carried, move.box)
                case "broadcast":
                    assert contains(d.carried(move.tensor, source), move.box)
                    ranks = {d.rank(a) for a in d.group(move.tensor, source)}
                    alone = move.tensor in rotated(d, schedule.pass_plan)
                    assert {move.source, *move.targets} <= ranks
                    assert alone or {move.source, *move.targets} == ranks
                case "reduce":
                    (owner,) = move.targets
                    assert contains(d.owned("Out", d.at(owner)), move.box)
                    assert d.rank(source) in {d.rank(a) for a in d.group("Out", d.at(owner))}


@given(schedules())
def test_tensors_that_no_ranks_share_do_not_move(schedule: Schedule) -> None:
    d = schedule.distribution
    moved = {m.tensor for each in schedule.rounds() for m in each.moves if m.kind == "broadcast"}
    moved |= {m.tensor for each in schedule.rounds() for m in each.reductions}
    assert all(d.group_size(tensor) > 1 for tensor in moved)


@given(schedules())
def test_halo_fills_what_a_process_carries_but_does_not_own(schedule: Schedule) -> None:
    d = schedule.distribution
    halos = [each for each in schedule.rounds() if each.phase == "halo"]
    assert len(halos) == crosses_blocks(d)
    arrived = np.zeros(len(d.ranks), int)
    for move in (move for halo in halos for move in halo.moves):
        arrived[list(move.targets)] += volume(move.box)
    for rank in d.ranks:
        carried = d.carried("In", d.at(rank))
        assert arrived[rank] == volume(carried) - volume(overlap(carried, d.owned("In", d.at(rank))))


@given(training_steps())
def test_sums_of_rows_that_others_own_return_to_their_owners(passes: tuple[Schedule, ...]) -> None:
    """The last round of backward-data: each process sends the sums that it carries for words of others."""
    (schedule,) = (each for each in passes if each.pass_plan.pass_ == "backward-data")
    d = schedule.distribution
    why = "the rows of dIn that a block computes for its neighbours are added where they are owned"
    *_, last = schedule.rounds()
    if not crosses_blocks(d):
        assert last.phase in ("loop", "reduce")
        return
    assert (last.phase, last.moves, last.computes) == ("return", (), ())
    left = [volume(d.carried("In", d.at(rank))) for rank in d.ranks]
    for move in last.reductions:
        (owner,) = move.targets
        assert (move.kind, move.tensor) == ("return", "In")
        assert move.why == why
        assert move.source != owner
        assert contains(d.carried("In", d.at(move.source)), move.box)
        assert contains(d.owned("In", d.at(owner)), move.box)
        left[move.source] -= volume(move.box)
    for rank in d.ranks:
        at = d.at(rank)
        assert left[rank] == volume(overlap(d.carried("In", at), d.owned("In", at)))


def test_two_processes_by_hand() -> None:
    """Four rows, kernel 3, two rows each: a row from the neighbour, Ker shared, nothing reduced."""
    d = Distribution(Nest(PerAxis(h=4, c=2), Window(1), same_window(4), Window(1)), PerAxis(h=2))
    halo, loop, reduce = Schedule(d, PassPlan("Out")).rounds()
    flat = ((0, 1), (0, 1), (0, 2), (0, 1))
    why = "the output rows of a block read input rows that its neighbours own"
    assert halo.moves == (
        Move("halo", "In", (*flat, (2, 3), (0, 1)), 1, (0,), why),
        Move("halo", "In", (*flat, (1, 2), (0, 1)), 0, (1,), why),
    )
    why = "all ranks along x need the same slice of Ker"
    taps = ((0, 1), (0, 3), (0, 1))
    assert loop.moves == (
        Move("broadcast", "Ker", ((0, 1), (0, 1), (0, 1), *taps), 0, (1,), why),
        Move("broadcast", "Ker", ((0, 1), (0, 1), (1, 2), *taps), 1, (0,), why),
    )
    whole = {"b": (0, 1), "g": (0, 1), "d": (0, 1), "w": (0, 1), "c": (0, 2), "k": (0, 1)}
    assert loop.computes == (Compute(0, {**whole, "h": (0, 2)}), Compute(1, {**whole, "h": (2, 4)}))
    assert loop.reductions == reduce.reductions == ()


def test_moves_say_why() -> None:
    nest = Nest(PerAxis(b=4, c=4, k=4), Window(1), Window(1), Window(1))
    schedule = Schedule(Distribution(nest, PerAxis(b=2, c=2, k=2)), PassPlan("In", pass_="backward-data"))
    told = {move.why for each in schedule.rounds() for move in (*each.moves, *each.reductions)}
    assert told == {
        "all ranks along c need the same slice of dOut",
        "all ranks along x need the same slice of Ker",
        "each rank along k holds a partial sum of the same slice of dIn",
    }
