"""The schedule tree against the geometry of its distribution: a node for every move, and no other node."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis_problems import training_steps

from synth.layer.axes import LACKS, SPATIAL, TENSORS, PerAxis, Tensor
from synth.layer.intervals import overlap, volume
from synth.layer.layer import Layer
from synth.schedule.distribution import Distribution
from synth.schedule.pass_plan import PassPlan
from synth.schedule.pass_program import Gather, Loop, PassProgram, Reduce, Rows, pass_program
from synth.schedule.schedule import Schedule


def lacks_words(d: Distribution, tensor: Tensor) -> bool:
    """Whether any rank needs words of a tensor that it does not carry itself."""
    places = [d.at(rank) for rank in d.ranks]
    needed = [d.needed(tensor, at) for at in places]
    return any(
        volume(overlap(box, d.carried(tensor, at))) < volume(box)
        for at, box in zip(places, needed, strict=True)
    )


def carries_foreign_rows(d: Distribution) -> bool:
    """Whether any rank carries rows of In that it does not own."""
    places = [d.at(rank) for rank in d.ranks]
    return any(d.carried("In", at) != d.owned("In", at) for at in places)


@given(training_steps())
def test_a_gather_stands_for_words_that_a_rank_lacks(passes: tuple[Schedule, ...]) -> None:
    for schedule in passes:
        gathered = {node.tensor for node in schedule.program.collectives() if isinstance(node, Gather)}
        for tensor in schedule.pass_plan.reads:
            if tensor in schedule.pass_plan.reuses:
                assert tensor not in gathered
            elif lacks_words(schedule.distribution, tensor):
                assert tensor in gathered


@given(training_steps())
def test_a_reduction_stands_for_partial_sums_of_others(passes: tuple[Schedule, ...]) -> None:
    for schedule in passes:
        d, written = schedule.distribution, schedule.pass_plan.written
        reduced = [node.tensor for node in schedule.program.collectives() if isinstance(node, Reduce)]
        assert reduced == ([written] if len(d.group(written, d.at(0))) > 1 else [])


@given(training_steps())
def test_rows_move_iff_a_rank_carries_rows_that_it_does_not_own(passes: tuple[Schedule, ...]) -> None:
    for schedule in passes:
        plan, program = schedule.pass_plan, schedule.program
        foreign = carries_foreign_rows(schedule.distribution)
        fetches = foreign and "In" in plan.reads and "In" not in plan.reuses
        assert [node.direction for node in program.fetches] == ["fetch"] * fetches
        assert [node.direction for node in program.returns] == ["return"] * (foreign and plan.written == "In")
        for node in (*program.fetches, *program.returns):
            assert node.tensor == "In"
            assert set(node.axes) <= {
                axis for axis in SPATIAL if getattr(schedule.distribution.grid, axis) > 1
            }


@given(training_steps())
def test_every_tensor_moves_by_one_node_of_its_lacking_index(passes: tuple[Schedule, ...]) -> None:
    for schedule in passes:
        moves = list(schedule.program.collectives())
        assert max(Counter(node.tensor for node in moves).values(), default=1) == 1
        for node in moves:
            grid = schedule.distribution.grid
            assert node.axes == tuple(axis for axis in LACKS[node.tensor] if getattr(grid, axis) > 1)
            stationary = node.tensor == schedule.pass_plan.stationary
            assert node.scope == "slice" or not stationary
            assert (node.changes == ()) or node.scope == "panel"


@given(training_steps())
def test_what_one_pass_reuses_an_earlier_one_has_saved(passes: tuple[Schedule, ...]) -> None:
    for one, other in pairwise(passes):
        assert other.pass_plan.reuses <= one.pass_plan.saves | one.pass_plan.reuses | other.pass_plan.reuses
    saved = frozenset[Tensor]()
    for schedule in passes:
        assert schedule.pass_plan.reuses <= saved
        marked = {n.tensor for n in schedule.program.collectives() if isinstance(n, Gather) and n.saves}
        assert marked <= schedule.pass_plan.saves
        saved |= schedule.pass_plan.saves


@given(training_steps())
def test_the_order_of_nodes(passes: tuple[Schedule, ...]) -> None:
    order = ["fetch", "gather", "loop", "reduce", "return"]
    for schedule in passes:
        kinds = [kind(node) for node in schedule.program.top()]
        assert kinds == sorted(kinds, key=order.index)
        assert kinds.count("loop") == 1


def kind(node: Rows | Gather | Loop | Reduce) -> str:
    match node:
        case Rows():
            return node.direction
        case Gather():
            return "gather"
        case Loop():
            return "loop"
        case Reduce():
            return "reduce"


SMALL = Layer.conv2d((2, 4, 8, 8), 4, 3, padding=1)


def tree(grid: PerAxis, plan: PassPlan) -> PassProgram:
    return pass_program(Distribution(SMALL.nest, grid), plan)


def test_a_2_5d_program_by_hand() -> None:
    """Out stationary, two panels along c: In and Ker stream, Out is reduced once."""
    program = tree(PerAxis(h=2, c=2, k=2), PassPlan("Out", PerAxis(c=2)))
    assert [(n.direction, n.axes) for n in program.fetches] == [("fetch", ("h",))]
    assert program.gathers == ()
    assert program.loop.axes == ("c",)
    assert [(n.tensor, n.over, n.changes) for n in program.loop.gathers] == [
        ("In", "k", ("c",)),
        ("Ker", "x", ("c",)),
    ]
    assert program.loop.compute.stationary
    assert [(n.tensor, n.over, n.scope) for n in program.reduces] == [("Out", "c", "slice")]
    assert program.returns == ()


@pytest.mark.parametrize("tensor", TENSORS)
def test_data_parallelism_moves_weights_only(tensor: Tensor) -> None:
    program = tree(PerAxis(b=2), PassPlan(tensor))
    assert [(type(n), n.tensor) for n in program.collectives()] == [(Gather, "Ker")]
    back = tree(PerAxis(b=2), PassPlan(tensor, pass_="backward-filter"))
    assert [(type(n), n.tensor) for n in back.collectives()] == [(Reduce, "Ker")]


def test_trees_do_not_depend_on_tile_counts() -> None:
    """All plans that tile the same axes share the nodes."""
    two, four = (tree(PerAxis(c=2, k=2), PassPlan("Ker", PerAxis(b=2, h=n))) for n in (2, 4))
    assert two.loop is four.loop
    assert [two.loads(n) for n in two.loop.gathers] == [four.loads(n) for n in four.loop.gathers] == [1]
