"""Steps that leave a gradient out: dIn of what nothing is trained before, dKer of frozen weights."""

from __future__ import annotations

import json
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_problems import layers
from small_networks import Cosmo, Residual
from torch import nn

import synth
from synth.base.errors import InfeasibleError
from synth.layer.axes import ROW_MAJOR, PerAxis, Tensor
from synth.layer.layer import Layer
from synth.layer.passes import (
    GRADIENTS,
    PASSES,
    TURNED,
    WRITES,
    gathers,
    gradients_of,
    moves,
    reuse_intervals,
    sequences,
)
from synth.machine.file import load_machine
from synth.network.file import load_network
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest
from synth.parallel.front_end.trace_model import trace_model
from synth.planning.plan_file import parse_plan
from synth.prediction.replay import replay
from synth.simulation.simulate import simulated

NETWORKS = Path(__file__).resolve().parents[2] / "examples/networks"
ONE: list[tuple[Tensor, ...]] = [("In",), ("Ker",)]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("gradients", [GRADIENTS, *ONE])
def test_passes_of_a_step(transposed: bool, gradients: tuple[Tensor, ...]) -> None:
    orders = sequences(transposed, gradients)
    assert len(orders) == len(gradients)
    for order in orders:
        assert order[0] == (TURNED["forward"] if transposed else "forward")
        assert gradients_of(order, transposed) == gradients
        assert moves(order, ()) == dict.fromkeys(WRITES.values(), len(order))
        reused = reuse_intervals(order)
        assert {t for t in reused if gathers(order)[t] < gathers(order, ())[t]} == set(reused)
        assert len(reused) == (3 if len(order) == 3 else 1)


def test_a_pass_alone_keeps_nothing_and_moves_everything_once() -> None:
    for pass_ in PASSES:
        assert reuse_intervals((pass_,)) == {}
        assert set(moves((pass_,)).values()) == {1}
        assert gathers((pass_,))[WRITES[pass_]] == 0


@given(layers(5), st.integers(1, 8), st.sampled_from(ONE), st.booleans())
@settings(max_examples=25)
def test_words_memory_and_values(
    layer: Layer, procs: int, gradients: tuple[Tensor, ...], tight: bool
) -> None:
    """The plan is below that of both gradients, above its bound, read back, and right for all ranks."""
    names = [tensor.lower() for tensor in gradients]
    memory = None
    if tight:
        free = synth.plan(layer, procs, pass_="training", gradients=names)
        memory = max(layer.nest.word_bytes, free.used_bytes - layer.nest.word_bytes)
    try:
        plan = synth.plan(layer, procs, memory, pass_="training", gradients=names)
    except InfeasibleError:
        assert tight
        return
    assert plan.gradients == gradients
    assert plan.bound.words <= plan.words["total"] * (1 + 1e-9) + 1e-6
    assert parse_plan(json.dumps(plan.to_json()), "plan.json") == plan
    assert max(simulated(plan).peak) <= plan.used_words
    if not tight:
        both = synth.plan(layer, procs, pass_="training")
        assert plan.words["total"] <= both.words["total"]
    synth.report(plan)


def test_it_is_faster_on_a_machine() -> None:
    layer = Layer.conv2d((32, 64, 56, 56), 64, 3, padding=1)
    how = {"pass_": "training", "objective": "time", "machine": "lassen"}
    both, one = (synth.plan(layer, 16, gradients=g, **how) for g in (("in", "ker"), ("ker",)))  # type: ignore[arg-type]
    assert both.timed is not None
    assert one.timed is not None
    assert one.timed[1].seconds < both.timed[1].seconds
    computing = [sum(time.compute for time in made.timed[1].times) for made in (both, one) if made.timed]
    assert computing[1] < 0.7 * computing[0]


# -- networks -------------------------------------------------------------------------------------------


def test_which_layers_of_a_model_need_it() -> None:
    for model, shape, without in (
        (Residual(), (5, 3, 13, 13), ["stem"]),
        (Cosmo(), (2, 2, 8, 8, 8), ["body.0"]),
        (nn.Sequential(nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(3, 4, 1)), (2, 3, 8, 8), ["0", "2"]),
        (nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 1)), (2, 3, 8, 8), []),
        (nn.Sequential(nn.PReLU(), nn.Conv2d(3, 4, 1)), (2, 3, 8, 8), []),
    ):
        network = trace_model(model, shape).network
        assert [node.name for node in network.planned if not network.needs_input_gradient(node)] == without


def test_a_parameter_beside_the_layers_counts() -> None:
    class Scales(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.conv = nn.Parameter(torch.ones(1, 3, 1, 1)), nn.Conv2d(3, 4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x * self.scale)

    network = trace_model(Scales(), (2, 3, 8, 8)).network
    assert all(network.needs_input_gradient(node) for node in network.planned)


@pytest.mark.parametrize("kept", [frozenset({"Out"}), frozenset({"In", "Ker", "Out"})])
@pytest.mark.parametrize("objective", ["words", "time"])
@pytest.mark.one_in(6)
def test_a_network_costs_less_by_its_first_layer(objective: str, kept: frozenset[Tensor]) -> None:
    network = load_network(NETWORKS / "cosmoflow.yaml")
    asked = [
        NetworkRequest(
            16, objective, training=True, machine=load_machine("lassen"), input_gradient=inward, saves=kept
        )
        for inward in (True, False)
    ]
    both, one = (plan_network(network, each) for each in asked)
    assert one.cost < both.cost
    assert [kind.gradients for kind in one.layer_classes][:2] == [
        ("Ker",),
        ("In",),
    ]  # a convolution, a pooling
    assert all(kind.input_gradient for kind in both.layer_classes)
    assert [edge.trained for edge in network.edges] == [True] * len(network.edges)


def test_what_moves_before_any_parameter_does_not_come_back() -> None:
    """A pooling first: one pass of it, and words to the convolution without those of a gradient."""
    model = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(64, 64, 1))
    both, one = (synth.plan_model(model, (2, 64, 8, 8), 4, input_gradient=g) for g in (True, False))
    assert [kind.gradients for kind in one.layer_classes] == [(), ("Ker",)]
    assert one.layer_classes[0].passes(True) == ("forward",)
    assert [edge.trained for edge in one.edge_words] == [False]
    assert one.cost <= both.cost


def test_a_replay_leaves_the_pass_out() -> None:
    network, machine = load_network(NETWORKS / "cosmoflow.yaml"), load_machine("lassen")
    made = [
        replay(
            plan_network(
                network, NetworkRequest(8, "time", training=True, machine=machine, input_gradient=inward)
            )
        )
        for inward in (True, False)
    ]
    names = [{task.name for task in each.tasks if task.layer == "conv1"} for each in made]
    assert any("backward-data" in name for name in names[0])
    assert not any("backward-data" in name for name in names[1])
    assert all(a >= b for a, b in pairwise(each.seconds for each in made))


def test_a_network_plan_says_so() -> None:
    from synth.base.user_files import digest_of
    from synth.network.plan.plan_json import parse_network_plan, to_json

    plan = synth.plan_model(Cosmo(), (2, 2, 8, 8, 8), 4)
    data = to_json(plan)
    assert [row["gradients"] for row in data["layers"]][:3] == [["ker"], ["in"], ["in", "ker"]]
    again = parse_network_plan(json.dumps(data), "plan.json")
    assert again == data
    for row in data["layers"]:
        del row["gradients"]  # as files said nothing of it once
    data["digest"] = digest_of(data)
    older = parse_network_plan(json.dumps(data), "plan.json")
    assert all(row["gradients"] == ["in", "ker"] for row in older["layers"])


def test_a_file_that_leaves_out_what_a_model_needs_is_refused() -> None:
    from synth.base.errors import InputError, UsageError
    from synth.base.user_files import digest_of
    from synth.network.plan.plan_json import to_json
    from synth.parallel.given_plan import plans_of_model

    network = trace_model(Cosmo(), (2, 2, 8, 8, 8)).network
    data = to_json(synth.plan_model(Cosmo(), (2, 2, 8, 8, 8), 4))
    folder = Path(tempfile.mkdtemp())
    second = next(row for row in data["layers"] if row["name"] == "body.3")
    for left, missing in ((["ker"], "In"), (["in"], "Ker"), ([], "In")):
        second["gradients"] = left
        data["digest"] = digest_of(data)
        (folder / "plan.json").write_text(json.dumps(data))
        with pytest.raises(UsageError, match=f"no gradient of {missing} in body.3, which the model needs"):
            plans_of_model(folder / "plan.json", network, 4)
    second["gradients"] = ["in", "ker"]
    second["memory_words"] = 1
    data["memory_words"] = data["resident_words"] + max(row["memory_words"] for row in data["layers"])
    data["digest"] = digest_of(data)
    (folder / "plan.json").write_text(json.dumps(data))
    layer = network.nodes["body.3"].layer
    assert layer is not None
    with pytest.raises(InputError, match="no program of the planned grid fits the planned 1 words"):
        plans_of_model(folder / "plan.json", network, 4).plan(layer, 4)


def test_a_transposed_layer_is_timed_as_it_runs() -> None:
    """Its passes are those of the nest: backward-data runs forward, and no forward pass makes dIn."""
    from synth.machine.layer_time import LayerTimer
    from synth.schedule.distribution import Distribution
    from synth.schedule.memory import Footprints

    layer = Layer.conv2d((8, 512, 32, 32), 4, 3, padding=1, transposed=True)
    machine, grid = load_machine("lassen"), PerAxis(c=4)
    passes = sequences(True, ("Ker",))[0]
    assert passes == ("backward-data", "backward-filter")
    footprints = Footprints(Distribution(layer.nest, grid))
    timer = LayerTimer(machine, footprints, ROW_MAJOR, steps=passes)
    assert timer.wanted(True) == passes
    assert timer.wanted(False) == passes[:1]
    usual = LayerTimer(
        machine, Footprints(Distribution(layer.nest, grid)), ROW_MAJOR, steps=sequences(True)[0]
    )
    seconds, other = (sum(time.total for time in each.passes(True)) for each in (timer, usual))
    assert seconds < other
