"""The bound of the family of a network is the least of all choices of grids, tried one by one."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from synth.network.file import load_network, parse_network
from synth.network.graph import Network
from synth.network.grids.owned_boxes import OwnedBoxes, PlacedGrid
from synth.network.planner import family_optimum
from synth.network.planner.family_optimum import FamilyOptimum, FamilySearch, with_edges
from synth.network.planner.planner import _NetworkPlanner, plan_network
from synth.network.request import NetworkRequest

CHAIN = """
network: chain
input: [2, 4, 12, 12]
layers:
  - {name: a, conv2d: {out_channels: 8, kernel: 3, padding: 1}}
  - {name: p, pool: {kernel: 2, stride: 2}}
  - {name: b, conv2d: {out_channels: 16, kernel: 3, padding: 1}}
  - globalpool: {}
  - flatten: {}
  - {name: c, linear: {out_features: 12}}
"""
RESIDUAL = """
network: residual
input: [2, 6, 10, 10]
layers:
  - {name: a, conv2d: {out_channels: 8, kernel: 3, padding: 1}}
  - {name: b, conv2d: {out_channels: 8, kernel: 1}}
  - {name: c, conv2d: {out_channels: 8, kernel: 3, padding: 1}}
  - {name: sum, add: {}, from: [c, a]}
  - {name: d, conv2d: {out_channels: 4, kernel: 2, stride: 2, transposed: true}}
"""
BRANCHES = """
network: branches
input: [1, 8, 16, 16]
layers:
  - {name: a, conv2d: {out_channels: 4, kernel: 3, padding: 1}}
  - {name: b, conv2d: {out_channels: 6, kernel: 3, padding: 1}, from: [a]}
  - {name: both, cat: {}, from: [a, b]}
  - {name: c, conv2d: {out_channels: 8, kernel: 3, padding: 1, stride: 2}}
"""


def planner_of(network: Network, **asked: object) -> _NetworkPlanner:
    return _NetworkPlanner(network, NetworkRequest(**asked), "auto", lambda text: None)  # type: ignore[arg-type]


def all_options(planner: _NetworkPlanner) -> list[list[PlacedGrid]]:
    return [
        [option for grid in each.grids.grids(range(each.grids.size)) for option in each.ordered(grid)]
        for each in planner.candidates
    ]


def tried(planner: _NetworkPlanner) -> float:
    """The least words of all choices: each is summed up on its own."""
    options = all_options(planner)
    rows = [
        np.array([each.cost(option) for option in row])
        for each, row in zip(planner.candidates, options, strict=True)
    ]
    costs, pairs = with_edges(
        [rows[k] for k in planner.class_of], planner.prices.of(options), planner.position
    )
    *others, last = range(len(costs))
    least = math.inf
    for chosen in itertools.product(*(range(len(costs[node])) for node in others)):
        rest = costs[last].copy()
        total = sum(float(costs[node][at]) for node, at in zip(others, chosen, strict=True))
        for (one, other), table in pairs.items():
            if last in (one, other):
                rest += table[chosen[one]] if other == last else table[:, chosen[other]]
            else:
                total += float(table[chosen[one], chosen[other]])
        least = min(least, total + float(rest.min()))
    return least


def searched(planner: _NetworkPlanner, cost: float) -> FamilyOptimum:
    return FamilySearch(
        planner.network,
        planner.request,
        planner.classes,
        planner.class_of,
        planner.candidates,
        planner.prices,
        planner.distributions,
    ).optimum(cost)


@pytest.mark.parametrize("mode", [{"training": True}, {"resident_weights": True}, {}], ids=str)
@pytest.mark.parametrize("text", [CHAIN, RESIDUAL, BRANCHES], ids=["chain", "residual", "branches"])
@pytest.mark.one_in(3)
def test_the_optimum_is_the_least_of_all_choices(text: str, mode: dict[str, bool]) -> None:
    network = parse_network(text, "small.yaml")
    for procs in (2, 4):
        least = tried(planner_of(network, procs=procs, **mode))
        plan = plan_network(network, NetworkRequest(procs=procs, **mode))
        assert plan.cost == pytest.approx(least)
        assert plan.lower_bound == pytest.approx(least)
        found = searched(planner_of(network, procs=procs, **mode), 2 * least + 1000)  # a worse plan is known
        assert found.words == pytest.approx(least)
        assert found.placed is not None
        assert searched(planner_of(network, procs=procs, **mode), least).words == pytest.approx(least)


@pytest.mark.parametrize("text", [CHAIN, RESIDUAL, BRANCHES], ids=["chain", "residual", "branches"])
def test_a_bound_with_few_options_is_a_bound(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = parse_network(text, "small.yaml")
    least = tried(planner_of(network, procs=4, training=True))
    planner = planner_of(network, procs=4, training=True)
    alone = sum(planner.candidates[k].proven_least() for k in planner.class_of)
    bounds = []
    for most in (0, 4, 8, 16, 32, 64):
        monkeypatch.setattr(family_optimum, "MOST_OPTIONS", most)
        bounds.append(searched(planner_of(network, procs=4, training=True), 1.5 * least).words)
        assert alone * (1 - 1e-9) <= bounds[-1] <= least * (1 + 1e-9)
    assert bounds[0] == pytest.approx(alone)
    assert bounds[-1] == pytest.approx(least)


def test_words_on_a_few_ranks_are_at_most_those_on_all() -> None:
    network = parse_network(BRANCHES, "small.yaml")
    planner = planner_of(network, procs=6, training=True)
    search = FamilySearch(
        network,
        planner.request,
        planner.classes,
        planner.class_of,
        planner.candidates,
        planner.prices,
        planner.distributions,
    )
    options = all_options(planner)
    for (edge, (few, _)), (other, (every, _)) in zip(
        search.on_few.of(options).items(), planner.prices.of(options).items(), strict=True
    ):
        assert edge == other
        assert (few <= every).all()
        assert (few > 0).any()


@pytest.mark.parametrize("procs", [4, 16])
def test_plans_of_examples_are_optimal_in_their_family(procs: int) -> None:
    """The layers alone give 423 224 words for CosmoFlow on 4 processes, and 703 110 on 16."""
    for name in ("cosmoflow", "tutorial"):
        plan = plan_network(
            load_network(f"examples/networks/{name}.yaml"), NetworkRequest(procs=procs, training=True)
        )
        assert plan.lower_bound == pytest.approx(plan.cost)


def test_a_choice_that_the_options_miss_is_taken() -> None:
    """ResNet-50 on 64 processes moved 13 903 360 words with the options of each layer alone."""
    network = load_network("examples/networks/resnet50.yaml")
    plan = plan_network(network, NetworkRequest(procs=64, training=True))
    assert plan.cost == pytest.approx(plan.lower_bound)
    assert plan.cost < 13_903_360
    words = 0.0
    for node_class, placed in zip(plan.layer_classes, plan.placed_grids, strict=True):
        boxes = OwnedBoxes(node_class.nest.turn(placed.turned), [placed], 64)
        counted, _ = boxes.words(node_class.passes(True), node_class.weighted, plan.request.saves)
        words += int(counted[0])
    assert words + sum(plan.edge_words.values()) == plan.cost


@pytest.mark.slow
@pytest.mark.parametrize("procs", [4, 16, 64])
@pytest.mark.parametrize(
    ("name", "most"),
    [("resnet50", 1.15), ("wrn50_2", 1.15), ("wrn50_4", 1.15), ("vgg16", 1.15), ("cosmoflow", 2.0)],
)
def test_plans_are_near_the_bound_of_their_family(name: str, most: float, procs: int) -> None:
    network = load_network(f"examples/networks/{name}.yaml")
    for mode in ("training", "resident_weights"):
        plan = plan_network(network, NetworkRequest(procs, **{mode: True}))  # type: ignore[arg-type]
        assert plan.lower_bound <= plan.cost <= most * plan.lower_bound
