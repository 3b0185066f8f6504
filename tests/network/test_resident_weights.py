"""Plans of forward passes with resident weights: Ker moves no words, and takes memory instead."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from synth.base.errors import InfeasibleError, UsageError
from synth.cli.main import main
from synth.layer.axes import PerAxis
from synth.machine.file import load_machine
from synth.network.file import parse_network
from synth.network.grids.owned_boxes import KER
from synth.network.plan.plan import NetworkPlan
from synth.network.plan.plan_json import parse_network_plan, to_json
from synth.network.plan.report import report
from synth.network.planner.planner import plan_network
from synth.network.planner.resident_weights import WeightChoice, cheapest_fitting
from synth.network.request import NetworkRequest
from synth.network.solve import evaluate, solve
from synth.parallel.layer_plans import LayerPlans
from synth.prediction.replay import replay
from synth.schedule.distribution import Distribution
from synth.schedule.pass_plan import PassPlan
from synth.schedule.volume import received

TEXT = """
network: small
input: [1, 16, 12, 12]
layers:
  - {name: a, conv2d: {out_channels: 32, kernel: 3, padding: 1}}
  - {name: up, conv2d: {out_channels: 16, kernel: 2, stride: 2, transposed: true}}
  - {name: b, conv2d: {out_channels: 32, kernel: 3, padding: 1, groups: 2}}
  - {name: c, conv2d: {out_channels: 32, kernel: 1}}
  - {name: s, add: {}, from: [c, b]}
  - {name: d, conv2d: {out_channels: 64, kernel: 5, padding: 2}}
"""
NETWORK = parse_network(TEXT, "small.yaml")
INFERENCE = NetworkRequest(4, resident_weights=True)
FREE = plan_network(NETWORK, INFERENCE)


def weights(plan: NetworkPlan) -> int:
    """Words of the slices of Ker that the rank with most of each layer holds."""
    found = 0
    for node, placed in zip(plan.network.planned, plan.placed_grids, strict=True):
        assert node.layer is not None
        n, grid = node.layer.nest, placed.grid
        found += n.taps * int(np.prod([-(-getattr(n.extents, a) // getattr(grid, a)) for a in "gck"]))
    return found


def test_words_are_those_of_activations() -> None:
    for node, placed, cost in zip(NETWORK.planned, FREE.placed_grids, FREE.layer_costs, strict=True):
        assert node.layer is not None
        pass_plan = PassPlan(pass_="backward-data") if node.layer.transposed else PassPlan()
        stays = received(Distribution(node.layer.nest, placed.grid, resident=KER), pass_plan)
        moves = received(Distribution(node.layer.nest, placed.grid), pass_plan)
        assert cost == stays.most()["total"]
        assert stays.most()["ker"] == 0
        assert (stays.by_tensor["In"] == moves.by_tensor["In"]).all()
        assert (stays.by_tensor["Out"] == moves.by_tensor["Out"]).all()
    sharded = plan_network(NETWORK, NetworkRequest(4))
    assert FREE.cost < sharded.cost
    assert FREE.resident_words == weights(FREE) > sharded.resident_words


HEADS = """
network: heads
input: [1, 64, 32, 48]
layers:
  - {name: a, conv2d: {out_channels: 16, kernel: 3, padding: 1}}
  - {name: b, conv2d: {out_channels: 16, kernel: [3, 5], padding: [1, 2], stride: [1, 2]}}
  - {name: up, conv2d: {out_channels: 8, kernel: 4, stride: 2, padding: 1, transposed: true}}
  - {name: c, conv2d: {out_channels: 3, kernel: 3, padding: 1}}
"""


@pytest.mark.parametrize("share", [None, 1.0, 0.95])
@pytest.mark.parametrize("procs", [4, 12])
@pytest.mark.one_in(6)
def test_layers_are_cut_by_input_rows_where_that_moves_fewer_words(procs: int, share: float | None) -> None:
    """Axis by axis, and also under a limit of the memory."""
    network = parse_network(HEADS, "heads.yaml")
    free = plan_network(network, NetworkRequest(procs, resident_weights=True, exact_procs=True))
    limit = None if share is None else int(share * free.held_bytes)
    plan = plan_network(network, replace(free.request, limit_bytes=limit))
    fewer = 0
    for node, placed, cost in zip(network.planned, plan.placed_grids, plan.layer_costs, strict=True):
        assert node.layer is not None
        forward = PassPlan(pass_="backward-data") if node.layer.transposed else PassPlan()
        words = {}
        for count in range(3):
            for turned in itertools.combinations(node.layer.nest.turnable, count):
                if all(getattr(placed.grid, axis) > 1 for axis in turned):
                    cut = Distribution(node.layer.nest.turn(turned), placed.grid, resident=KER)
                    if not turned or cut.load <= cut.most_work.size:
                        words[turned] = received(cut, forward).most_in_all()
        assert cost >= words[placed.turned]
        fewer += words[()] - words[placed.turned]
        if limit is None:
            assert cost == words[placed.turned] == min(words.values())
    assert fewer > 0
    if limit is not None:
        assert plan.held_bytes <= limit


def test_every_rank_owns_its_slice() -> None:
    nest = NETWORK.planned[0].layer.nest  # type: ignore[union-attr]
    d = Distribution(nest, PerAxis(h=2, k=2), resident=KER)
    for rank in d.ranks:
        at = d.at(rank)
        assert d.owned("Ker", at) == d.needed("Ker", at)
        assert d.group("Ker", at) == [at]
    assert d.group_size("In") == 2


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_less_memory_moves_more_words(share: float) -> None:
    limit = int(FREE.held_bytes * share)
    plan = plan_network(NETWORK, replace(INFERENCE, limit_bytes=limit))
    assert plan.held_bytes <= limit
    assert plan.resident_words == weights(plan) <= FREE.resident_words
    assert plan.cost >= max(plan.solution.bound, FREE.cost)
    assert (plan.cost > FREE.cost) == (plan.resident_words < FREE.resident_words) == (share < 1)


def test_too_little_memory_names_what_would_do() -> None:
    with pytest.raises(InfeasibleError, match=r"small: a step of none of the \d+ plans") as fault:
        plan_network(NETWORK, replace(INFERENCE, limit_bytes=1000))
    enough = int(re.findall(r"memory=(\d+)", str(fault.value))[0])
    plan = plan_network(NETWORK, replace(INFERENCE, limit_bytes=enough))
    assert plan.held_bytes == enough


@pytest.mark.parametrize("seed", range(20))
def test_priced_memory_beside_all_choices(seed: int) -> None:
    draw = np.random.default_rng(seed)
    costs = [draw.integers(0, 50, 4).astype(float) for _ in range(4)]
    slices = [draw.integers(1, 30, 4).astype(float) for _ in range(4)]
    pairs = {(i, i + 1): draw.integers(0, 20, (4, 4)).astype(float) for i in range(3)}
    words = [sum(rows) for rows in itertools.product(*slices)]
    room = float(np.quantile(words, 0.2))

    def fits(chosen: Sequence[int]) -> bool:
        return sum(row[i] for row, i in zip(slices, chosen, strict=True)) <= room

    best = min(evaluate(costs, pairs, c) for c in itertools.product(range(4), repeat=4) if fits(c))
    found, _ = cheapest_fitting(WeightChoice(costs, pairs, slices, room, fits), "auto")
    assert found is not None
    assert fits(found.chosen)
    assert found.bound <= best + 1e-9
    assert best <= found.cost <= 2 * best
    roomy, _ = cheapest_fitting(WeightChoice(costs, pairs, slices, 1e9, lambda chosen: True), "auto")
    assert roomy is not None
    assert roomy.cost == solve(costs, pairs).cost


def test_a_file_of_the_plan() -> None:
    text = json.dumps(to_json(FREE))
    data = parse_network_plan(text, "plan.json")
    assert (data["pass"], data["kept"]) == ("forward", ["ker"])
    assert {row["words"]["ker"] for row in data["layers"]} == {0}
    assert LayerPlans.read(data).resident
    layer = NETWORK.planned[0].layer
    assert layer is not None
    assert LayerPlans.read(data).plan(layer, 4, inference=True) == LayerPlans.of(FREE).plan(layer, 4, True)
    assert "the forward pass with resident weights" in report(FREE)


def test_seconds_have_no_gathers_of_weights() -> None:
    machine = load_machine("lassen")
    sharded = plan_network(NETWORK, NetworkRequest(4, "time", machine=machine, axes="hw", exact_procs=True))
    plan = plan_network(NETWORK, replace(sharded.request, resident_weights=True))
    assert plan.cost < sharded.cost
    assert any("Ker" in task.name for task in replay(sharded).tasks)
    assert not any("Ker" in task.name for task in replay(plan).tasks)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(TEXT)
    assert main(["plan", str(file), "--procs", "4", "--pass", "forward", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["cost"] == FREE.cost
    assert data["resident_words"] == FREE.resident_words
    with pytest.raises(UsageError, match="cannot be resident"):
        NetworkRequest(4, training=True, resident_weights=True)
