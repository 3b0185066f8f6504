"""Models as the planner sees them; what a plan, or its file, decides about a model."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from small_networks import Cosmo, Residual
from torch import nn

import synth
from synth.base.errors import InfeasibleError, InputError, UsageError
from synth.base.user_files import digest_of
from synth.codegen import module
from synth.layer.layer import Layer
from synth.network.plan.plan_json import to_json
from synth.network.reductions import Reduction
from synth.parallel.front_end.trace_model import trace_model
from synth.parallel.given_plan import plans_of_model
from synth.parallel.layer_planner import LayerPlanner
from synth.parallel.layer_plans import LayerPlans
from synth.parallel.plan_digest import digest_of_plan
from synth.runtime.kernels.context import Context

ALL, DOUT = frozenset({"In", "Ker", "Out"}), frozenset({"Out"})


def test_names_kinds_and_edges() -> None:
    network = trace_model(Residual(), (5, 3, 13, 13)).network
    kinds = {node.name: node.kind for node in network.nodes.values()}
    assert [name for name, kind in kinds.items() if kind == "conv2d"] == [
        *("stem", "a.one", "a.two", "b.one", "b.two", "b.short"),
    ]
    assert (kinds["pool"], kinds["mean"], kinds["head"]) == ("pool", "globalpool", "linear")
    sums = [node.name for node in network.nodes.values() if node.kind == "add"]
    assert [[network.parts[i][0].node for i in network.nodes[name].inputs] for name in sums] == [
        ["a.two", "pool"],
        ["b.two", "b.short"],
    ]
    assert network.parameters == sum(p.numel() for p in Residual().parameters())


@pytest.mark.parametrize(("procs", "axes"), [(4, "hw"), (6, "h"), (6, ""), (8, "bh"), (5, "k")])
@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.one_in(6)
def test_words_of_reductions_are_those_that_their_steps_exchange(procs: int, axes: str, mode: str) -> None:
    """Parts of sums over uneven rows go to owners, and gradients return; the input is not gathered."""
    plan = synth.plan_model(Gated(), (2, 3, 7, 5), procs, axes=axes, mode=mode)
    calls, planned = plan.words.calls, {}
    for edge, words in plan.edge_words.items():
        if edge.moves_rows and isinstance(edge.target_path[-1], Reduction):
            planned[edge.target_path[-1].name] = words
    assert planned.keys() == {"pool", "mean", "mean_1", "rows", "amax"}
    assert planned == {name: sum(max(words) for words in calls[name]) for name in planned}
    assert all(planned[name] < 2 * 2 * 8 for name in ("pool", "mean_1"))  # of channels, there and back


@pytest.mark.parametrize(("procs", "axes"), [(4, "hw"), (5, "k"), (12, "hw")])
@pytest.mark.parametrize("shape", [(2, 3, 14, 11), (1, 3, 9, 16)])
def test_words_of_windows_are_those_that_their_steps_exchange(
    procs: int, axes: str, shape: tuple[int, ...]
) -> None:
    """Blocks with several windows, windows of several blocks, and both; parts of a concatenation."""
    plan = synth.plan_model(Pyramid(), shape, procs, axes=axes)
    paths = {edge: edge.target_path[-1] for edge in plan.edge_words if edge.moves_rows}
    planned = {paths[edge].name: plan.edge_words[edge] for edge in paths}
    parts = {"adaptive_avg_pool2d_1", "adaptive_avg_pool2d_2"}  # of what is joined
    assert planned.keys() == {"few", "best", *parts}
    assert planned == {name: sum(max(words) for words in plan.words.calls[name]) for name in planned}


class Pyramid(nn.Module):
    """Poolings of one map, and one of two maps that are joined."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right = (nn.Conv2d(n, 8, 3, padding=1) for n in (3, 8, 8))
        self.few, self.best = nn.AdaptiveAvgPool2d((5, 3)), nn.AdaptiveMaxPool2d((3, 4))
        self.classes = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        joined = torch.relu(torch.cat([self.left(x), self.right(x)], 1))
        joined = nn.functional.adaptive_avg_pool2d(joined, 1)
        maps = self.few(x).sum((2, 3)) + self.best(x).sum((2, 3))
        logits: torch.Tensor = self.classes(joined.flatten(1)) + maps[:, :5]
        return logits


class Gated(nn.Module):
    """A gate, mean and maximum of all positions, a mean of columns, and one of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool = nn.Conv2d(3, 8, 3, padding=1), nn.AdaptiveAvgPool2d(1)
        self.gate, self.last = nn.Conv2d(8, 8, 1), nn.Conv1d(8, 8, 3, padding=1)
        self.rows, self.classes = nn.AvgPool2d((7, 1)), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        x = x * torch.sigmoid(self.gate(self.pool(x)))
        columns = self.last(x.mean(2)) + self.rows(x)[:, :, 0]
        logits: torch.Tensor = self.classes(x.mean((2, 3)) + columns[..., 0] + x.amax((-1, 2)))
        return logits


def test_a_linear_layer_takes_the_map_that_was_flattened_for_it() -> None:
    traced = trace_model(Cosmo(), (2, 2, 8, 8, 8))
    graph, network = traced.graph, traced.network
    first, second = network.nodes["tail.1"].layer, network.nodes["tail.3"].layer
    assert first is not None
    assert second is not None
    assert (first.kind, first.input, first.kernel) == ("conv3d", (2, 6, 2, 2, 2), (2, 2, 2))
    assert second.kind == "matmul"
    assert not any("tail_0" in node.name for node in graph.nodes)


def test_what_is_gathered_has_no_home() -> None:
    class Sorts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 5, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.two(torch.relu(torch.softmax(torch.relu(self.one(x)), 2)))

    network = trace_model(Sorts(), (4, 3, 5, 5)).network
    assert [node.name for node in network.nodes.values() if node.kind == "gathered"] == ["softmax"]
    assert network.parts["softmax"][0].node is None
    assert network.edges == []
    assert "softmax" not in [node.name for node in synth.plan_model(Sorts(), (4, 3, 5, 5), 4).network.planned]


def test_words_have_the_size_of_the_model() -> None:
    network = trace_model(Residual().double(), (5, 3, 13, 13)).network
    assert {node.layer.nest.word_bytes for node in network.planned if node.layer} == {8}


# bytes that a step holds: 120 624 of the first plan, 115 440 without prefetch
# if dOut alone is saved: 110 816 with prefetch, 107 360 without
def tightly_planned(model: torch.nn.Module, shape: tuple[int, ...]) -> Any:
    """The plan within the largest memory that limits layers; which that is depends on what kernels copy."""
    network = trace_model(model, shape).network
    limits = range(113_000, 90_000, -1_000)
    plans = (synth.plan_model(model, shape, 4, memory=memory) for memory in limits)
    return next(plan for plan in plans if plans_of_model(plan, network, 4).limited)


@pytest.mark.parametrize(
    ("memory", "limited", "saves"),
    [(None, False, ALL), (118_000, True, ALL), (113_000, False, DOUT), (0, True, DOUT)],
)
@pytest.mark.one_in(4)
def test_a_file_decides_what_the_plan_does(
    memory: int | None, limited: bool, saves: frozenset[str], tmp_path: Path
) -> None:
    model, shape = Residual(), (8, 3, 16, 16)
    plan = synth.plan_model(model, shape, 4, memory=memory) if memory != 0 else tightly_planned(model, shape)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(to_json(plan)))
    network = trace_model(model, shape).network
    one, other = plans_of_model(plan, network, 4), plans_of_model(file, network, 4)
    assert one.placed == other.placed == plans_of_model(synth.read_plan(file), network, 4).placed
    assert digest_of_plan(synth.read_plan(file)) == digest_of_plan(plan)
    assert one.limited == other.limited == limited
    before = {key: value for key, value in to_json(plan).items() if key != "memory_limit"}
    file.write_text(json.dumps({**before, "digest": digest_of(before)}))  # as files were before it was said
    assert plans_of_model(file, network, 4).limited
    assert one.saves == other.saves == saves
    for node, cost, fit in zip(plan.network.planned, plan.layer_costs, plan.tilings, strict=True):
        if node.weighted and node.layer:
            plans = [each.plan(node.layer, 4) for each in (one, other)]
            assert plans[0].id == plans[1].id
            assert plans[0].words["total"] == cost
            assert plans[0].pass_plans == fit.pass_plans


def test_a_file_of_an_imported_network_fits_the_model(tmp_path: Path) -> None:
    from synth.cli.main import main

    net, plan = tmp_path / "net.yaml", tmp_path / "plan.json"
    command = ["import", "small_networks:Residual", "--input", "8,3,16,16", "-o", str(net)]
    assert main(command) == 0
    command = ["plan", str(net), "--procs", "4", "--pass", "training", "--exact-procs", "--gradients", "ker"]
    assert main([*command, "--json", "-o", str(plan)]) == 0
    assert json.loads(plan.read_text())["cost"] == synth.plan_model(Residual(), (8, 3, 16, 16), 4).cost
    network = trace_model(Residual(), (8, 3, 16, 16)).network
    decided = plans_of_model(plan, network, 4)
    rows = {row["name"]: row for row in json.loads(plan.read_text())["layers"]}
    assert decided.saves == ALL
    for name in ("stem", "a.one", "b.short", "head"):
        assert decided.placed[name].grid._asdict() == rows[name]["grid"]
    assert set(decided.placed) == {node.name for node in network.planned}


def test_a_volume_that_one_process_cannot_hold() -> None:
    model, shape = Cosmo().body, (2, 2, 16, 16, 16)
    need = synth.plan_model(model, shape, 1).used_words * 4
    with pytest.raises(InfeasibleError, match="would do"):
        synth.plan_model(model, shape, 1, memory=need // 2)
    assert synth.plan_model(model, shape, 4, memory=need // 2, axes="dh").used_words * 4 <= need // 2


def test_axes_bind_the_layers_that_can_keep_to_them() -> None:
    plan = synth.plan_model(Cosmo(), (2, 2, 8, 8, 8), 4, axes="dh")
    grids = {
        node.name: placed.grid for node, placed in zip(plan.network.planned, plan.placed_grids, strict=True)
    }
    assert all(grids[name].d * grids[name].h == 4 for name in ("body.0", "body.3"))
    assert grids["tail.3"].size == 4


def test_a_plan_of_something_else_is_refused(tmp_path: Path) -> None:
    network = trace_model(Residual(), (8, 3, 16, 16)).network
    body = synth.plan_model(nn.Sequential(*list(Residual().children())[:2]), (8, 3, 16, 16), 4)
    with pytest.raises(UsageError, match="the plan of Sequential has no layer stem, which the model has"):
        plans_of_model(body, network, 4)
    file = tmp_path / "plan.json"
    file.write_text("{}")
    with pytest.raises(InputError, match="schema is 'None'"):
        plans_of_model(file, network, 4)


def test_decisions_of_a_forward_plan_leave_what_is_kept_open() -> None:
    from dataclasses import replace

    plan = synth.plan_model(Residual(), (8, 3, 16, 16), 4)
    forward = replace(plan, request=replace(plan.request, training=False))
    decided = LayerPlans.of(forward)
    assert decided.saves == frozenset({"In", "Ker", "Out"})
    assert set(decided.limit_words.values()) == {None}


def test_a_model_planned_for_time() -> None:
    """As few seconds as the planner of network files finds, on a machine that is named."""
    words, seconds = (
        synth.plan_model(Residual(), (8, 3, 13, 13), 4, objective=objective, machine="lassen")
        for objective in ("words", "time")
    )
    assert seconds.request.machine is not None
    assert words.request.objective == "words"
    assert 0 < seconds.cost < 1
    assert LayerPlans.of(seconds).placed.keys() == LayerPlans.of(words).placed.keys()
    with pytest.raises(UsageError, match="objective time needs a machine"):
        synth.plan_model(Residual(), (8, 3, 13, 13), 4, objective="time")


def test_the_memory_of_a_machine_is_a_limit(tmp_path: Path) -> None:
    """As `memory`, which is taken in its place where it is given."""
    shape = (8, 3, 13, 13)
    free = synth.plan_model(Residual(), shape, 4)
    lassen = Path(synth.__file__).with_name("machine") / "data" / "lassen.yaml"
    kept = [line for line in lassen.read_text().splitlines() if not line.startswith("memory:")]

    def machine(limit: int) -> Path:
        file = tmp_path / f"{limit}.yaml"
        file.write_text("\n".join([*kept, f"memory: {limit}"]))
        return file

    with pytest.raises(InfeasibleError, match="fits 1000 bytes"):
        synth.plan_model(Residual(), shape, 4, machine=machine(1000))
    for of_machine, memory in ((free.held_bytes, None), (1000, free.held_bytes)):
        found = synth.plan_model(Residual(), shape, 4, machine=machine(of_machine), memory=memory)
        assert (found.limit_bytes, found.placed_grids) == (None, free.placed_grids)


def test_a_plan_of_one_layer_is_of_that_layer_and_has_its_rows() -> None:
    conv = nn.Conv1d(4, 4, 3, padding=8, dilation=8)

    def said(**rest: Any) -> str:
        layer = Layer.conv1d((2, 4, 64), 4, 3, **rest)
        given = synth.plan(layer, 4, pass_="training", classes={"w": 8} if layer.dilation == (8,) else None)
        planner = LayerPlanner({"0": given}, 4, None, False, None, set(), {"x": ("conv", "0")})
        with pytest.raises(UsageError) as fault:
            planner.layer("x", conv, (2, 4, 64), Context())
        return str(fault.value)

    assert "plan of 0 has residue classes {'w': 8} as samples" in said(padding=8, dilation=8)
    assert "plan of 0 is of the layer conv1d 2x4x64 to 2x4x64, kernel 3, padding 1" in said(padding=1)


def test_modules_are_made_from_the_texts_of_another_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = synth.plan_model(Residual(), (8, 3, 16, 16), 4)
    decided = LayerPlans.of(plan)
    layers = [node.layer for node in plan.network.planned if node.weighted and node.layer]
    made = [decided.plan(layer, 4) for layer in layers]
    texts = module.module_texts(made)
    sent = pickle.loads(pickle.dumps((decided, texts)))
    assert sent == (decided, texts)
    there = [sent[0].plan(layer, 4) for layer in layers]
    monkeypatch.setattr(module, "render", None)  # nothing is rendered there
    for each in (module._compiled, module._text):
        each.cache_clear()
    module.expect(sent[1])
    for one, other in zip(made, there, strict=True):
        assert one == other
        assert module._compiled(other, "other").co_filename == "<other>"
    module._compiled.cache_clear()
    module.expect({})
    with pytest.raises(TypeError):
        module._compiled(there[0], "other")
