"""The order of the axes over the ranks: a numbering of the same places, in plans, files and programs."""

from __future__ import annotations

import json
import random

import pytest
from cases import CASES, SMALL
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_problems import distributions

import synth
from synth.base.errors import InputError, UsageError
from synth.codegen.render import render
from synth.layer.axes import AXES, ROW_MAJOR, Order, PerAxis, placement
from synth.planning.plan_file import parse_plan
from synth.schedule.distribution import Distribution
from synth.simulation.simulate import simulated

GRID = {"b": 2, "c": 2, "k": 2}


@given(distributions(), st.permutations(AXES))
def test_ranks_are_numbered_by_the_order(d: Distribution, order: list[str]) -> None:
    placed = Distribution(d.nest, d.grid, tuple(order))  # type: ignore[arg-type]
    places = [placed.at(rank) for rank in placed.ranks]
    assert [placed.rank(at) for at in places] == list(placed.ranks)
    assert sorted(places) == sorted(d.at(rank) for rank in d.ranks)
    assert places == sorted(places, key=lambda at: [getattr(at, axis) for axis in order])


@given(st.tuples(*[st.integers(1, 3)] * 7), st.permutations(AXES))
def test_orders_that_place_alike_are_one(parts: tuple[int, ...], order: list[str]) -> None:
    grid = PerAxis(*parts)
    one: Order = placement(grid, order)
    split = [axis for axis in order if getattr(grid, axis) > 1]
    assert [axis for axis in one if getattr(grid, axis) > 1] == split
    assert placement(grid, split) == one
    assert (one == ROW_MAJOR) == (split == sorted(split, key=AXES.index))


def test_a_plan_has_it_in_its_file_and_program() -> None:
    plain = synth.plan(SMALL, 8, grid=GRID)
    plan = synth.plan(SMALL, 8, grid=GRID, order="kcb")
    assert plan.id != plain.id
    assert synth.plan(SMALL, 8, grid=GRID, order="bck") == plain
    assert plan.words == plain.words
    assert parse_plan(json.dumps(plan.to_json()), "p") == plan
    data = plain.to_json()
    del data["order"]  # as files were before
    assert parse_plan(json.dumps(data), "p") == plain
    assert 'GRID = {"k": P_k, "c": P_c, "b": P_b}' in render(plan)
    assert "ranks run by k, c, b, b fastest" in synth.report(plan)
    assert simulated(plan).values
    data["order"] = ["b", "c"]
    with pytest.raises(InputError, match="order does not name each of the axes"):
        parse_plan(json.dumps(data), "p")


@pytest.mark.parametrize(
    ("order", "message"),
    [("bcx", "has 'x'; name each of"), ("bbck", "has 'b'; name each of"), ("bc", "lacks k, which the grid")],
)
def test_wrong_orders(order: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        synth.plan(SMALL, 8, grid=GRID, order=order)


def test_received_words_are_those_of_the_places() -> None:
    plan, rng = CASES["uneven_3d"], random.Random(0)
    order = placement(plan.grid, rng.sample(AXES, len(AXES)))
    other = Distribution(plan.nest, plan.grid, order)
    totals = [int(plan.received.at(other.at(rank))["total"]) for rank in other.ranks]
    assert sorted(totals) == sorted(plan.received.at(plan.distribution.at(r))["total"] for r in other.ranks)
