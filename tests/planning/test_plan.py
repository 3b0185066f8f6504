"""The plan: the numbers that follow from its decisions, and the chain of certificates."""

from __future__ import annotations

import dataclasses
import importlib

import pytest
from effort import tried
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_problems import layers

import synth
from synth.base.errors import InfeasibleError, UsageError
from synth.bounds.geometric_program import relax_received
from synth.layer.axes import PerAxis
from synth.layer.layer import Layer
from synth.network import layer_or_network
from synth.planning.derive import plan
from synth.planning.plan import Plan
from synth.planning.request import STAGES
from synth.reports.text import report, stage_text
from synth.schedule.pass_plan import PassPlan
from synth.simulation.simulate import simulated

CONV4 = Layer.conv2d([32, 256, 14, 14], 256, 3, padding=1, name="conv4")


@settings(max_examples=tried(25, 60))
@given(layers(), st.integers(1, 20))
def test_a_plan_keeps_its_promises(layer: Layer, procs: int) -> None:
    """Values, words and memory, interpreted for all ranks; and no fewer words than the bound."""
    made = plan(layer, procs)
    assert made.used_procs <= procs
    told = simulated(made)
    assert told.values
    assert {name: max(words) for name, words in told.received.items()} == made.words
    assert made.bound.words <= made.words["total"]
    assert made.ratio is None or made.ratio >= 1


@settings(max_examples=12)
@given(layers(5), st.integers(2, 12))
def test_bound_relaxation_and_plan_in_a_chain(layer: Layer, procs: int) -> None:
    made = plan(layer, procs)
    same = dataclasses.replace(made, procs=made.used_procs)
    relaxed = relax_received(made.nest, made.used_procs, made.limit_words).cost
    assert same.bound.words <= relaxed * (1 + 1e-5) + 1e-3
    assert relaxed <= made.words["total"] * (1 + 1e-5) + 1e-3


def test_a_chain_under_a_memory_limit() -> None:
    made = plan(CONV4, 64, "600kB")
    relaxed = relax_received(made.nest, made.used_procs, made.limit_words).cost
    assert made.bound.words <= relaxed <= made.words["total"]
    assert made.used_bytes <= 600_000


def test_the_numbers_of_a_known_plan() -> None:
    made = plan(CONV4, 64)
    assert made.grid == PerAxis(b=8, c=2, k=4)
    assert made.work == PerAxis(b=4, h=14, w=14, c=128, k=64)
    assert made.tile == PerAxis(b=4, h=14, w=14, c=32, k=64)
    assert made.words == {"in": 75264, "ker": 64512, "out": 25088, "halo": 0, "total": 164864}
    assert made.algorithm == "3D"
    assert made.used_bytes == 4 * made.used_words
    assert made.ratio == pytest.approx(1.126, abs=1e-3)


def test_the_kind_of_algorithm() -> None:
    assert plan(CONV4, 64, grid={"c": 1}, stationary="out").algorithm == "2D"
    tight = plan(CONV4, 64, 400_000)
    assert tight.words["total"] == 213504
    assert tight.algorithm == "2D"
    assert plan(CONV4, 61, 400_000, exact_procs=True).algorithm == "2D"
    assert plan(CONV4, 64, 2**30).algorithm == "3D"


def test_the_id_names_the_decisions_alone() -> None:
    made = plan(CONV4, 64)
    assert len(made.id) == 12
    assert set(made.id) <= set("0123456789abcdef")
    assert plan(CONV4, 64, 2**40).id == made.id  # the limit did not change a decision
    others = [
        dataclasses.replace(made, grid=made.grid.with_("b", 4)),
        dataclasses.replace(made, first=PassPlan("Out")),
        dataclasses.replace(made, procs=65),
        dataclasses.replace(made, layer=dataclasses.replace(CONV4, dtype="float64")),
    ]
    assert len({made.id, *(other.id for other in others)}) == 5
    assert dataclasses.replace(made, layer=dataclasses.replace(CONV4, name="other")).id == made.id


def test_a_plan_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan(CONV4, 61).procs = 3  # type: ignore[misc]


def test_from_python() -> None:
    made = synth.plan(CONV4, procs=4, memory="16GiB")
    assert isinstance(made, synth.Plan)
    assert made.limit_bytes == 16 * 2**30
    assert made.to_json()["grid"] == {"b": made.grid.b, "c": made.grid.c, "h": 1, "w": 1, "k": made.grid.k}
    for folder in ("planning", "simulation", "layer"):
        importlib.import_module(f"synth.{folder}")
    assert synth.plan is layer_or_network.plan
    assert synth.simulate is simulated
    with pytest.raises(AttributeError, match="module 'synth' has no attribute 'unplanned'"):
        synth.unplanned  # noqa: B018


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"procs": 0}, "procs is 0; it must be a whole number from 1 to 1073741824"),
        ({"procs": True}, "procs is True; it must be a whole number from 1 to 1073741824"),
        ({"procs": 2.0}, "procs is 2.0; it must be a whole number from 1 to 1073741824"),
        ({"stationary": "all"}, "stationary is 'all'; it must be one of auto, out, in, ker"),
        ({"balance": -0.1}, "balance is -0.1; it must be between 0 (no extra work) and 10"),
        ({"balance": float("nan")}, "balance is nan; it must be between 0 (no extra work) and 10"),
        ({"memory": 3}, "memory is 3 bytes; it must hold at least one float32 word"),
        ({"grid": {"q": 1}}, "grid has no axis 'q'; the axes are b, g, d, h, w, c, k"),
        ({"grid": {"h": 15}}, "grid h=15 cannot cut N_h=14; it must be from 1 to 14"),
        ({"memory": 1.5}, "memory is 1.5; give bytes as a whole number, or text such as '16GiB'"),
        ({"grid": "b=2"}, """grid is 'b=2'; write it like {"b": 4, "k": 2}"""),
        ({"grid": {"b": "2"}}, "grid b='2' is no count; it must be a whole number from 1 to 32"),
        ({"balance": "x"}, "balance is 'x'; it must be between 0 (no extra work) and 10"),
        ({"order": 5}, "order is 5; write axes, the last one fastest, like 'bhkc'"),
        ({"panels": "2"}, f"panels is '2'; it must be from 1 to {2**40}"),
        ({"grid": {"h": 0}}, "grid h=0 cannot cut N_h=14; it must be from 1 to 14"),
    ],
)
def test_arguments_out_of_range(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as fault:
        plan(CONV4, **{"procs": 4, **arguments})  # type: ignore[arg-type]
    assert str(fault.value) == message


@pytest.mark.parametrize("layer", [None, {"conv2d": {}}, 3])
def test_what_is_no_layer(layer: object) -> None:
    with pytest.raises(UsageError) as fault:
        plan(layer, 4)  # type: ignore[arg-type]
    assert str(fault.value) == f"layer is {layer!r}; give a Layer, or the path of a layer file"


def test_a_fixed_grid_larger_than_the_processes() -> None:
    with pytest.raises(InfeasibleError, match=r"^no grid of at most 4 processes exists with b=8"):
        plan(CONV4, 4, grid={"b": 8})


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_can_be_printed(stage: str) -> None:
    made = plan(CONV4, 64)
    text = stage_text(made, stage)
    assert text.strip()
    assert (text == report(made)) == (stage == "plan")


def test_the_paper_objective_takes_its_own_grid() -> None:
    made = plan(CONV4, 64, objective="paper")
    assert made.used_procs == 64
    assert made.paper_cost["eq10"] <= plan(CONV4, 64).paper_cost["eq10"]
    with pytest.raises(UsageError, match=r"^objective paper chooses grid and stationary tensor of conv4"):
        plan(CONV4, 64, objective="paper", grid={"b": 2})


def test_a_plan_can_be_made_by_hand() -> None:
    made = Plan(CONV4, 8, PerAxis(b=4, k=2), PassPlan("Ker", PerAxis(b=2)))
    assert simulated(made, values=False).received["total"]
    assert made.work == PerAxis(b=8, h=14, w=14, c=256, k=128)
