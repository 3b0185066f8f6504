"""Network files and models go together: what `synth import` writes is planned and run by `parallelize`, and
what `parallelize` plans is written as a file, on real ranks, with the words that are planned."""

from __future__ import annotations

import importlib
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from rank_pool import RankPool, pool_of

import synth
from synth.analysis.today_network import with_today
from synth.cli.main import main
from synth.network.file import load_network, parse_network
from synth.network.plan.plan import NetworkPlan
from synth.network.plan.plan_json import to_json
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest
from synth.network.write import network_text

pytestmark = pytest.mark.ranks
MODELS = {
    "small_networks:Residual": (5, 3, 13, 13),
    "zoo:Skips": (3, 3, 8, 8),
    "zoo:small_unet": (4, 1, 16, 16),
}
CASES = [
    pytest.param(name, marks=pytest.mark.skipif("unet" in name and not find_spec("monai"), reason="no monai"))
    for name in MODELS
]
Words = dict[str, int]


ranks = pool_of(__file__, "network_file_ranks.py", 4)


def planned_words(plan: NetworkPlan, joins: dict[str, tuple[str, str]]) -> Words:
    """What the words of a plan's edges are moved for -> words, there and back."""
    network, words = plan.network, dict[str, int]()
    by_ends = {ends: what for what, ends in joins.items()}
    sums = [node for node in network.nodes.values() if node.kind in ("add", "mul")]
    for edge, moved in plan.edge_words.items():
        if edge.moves_rows:
            what = edge.target_path[-1].name
        elif edge.role == "in":
            what = by_ends.get((edge.source, edge.target), edge.target)
        else:
            homes = {node.name: [network.parts[each][0].node for each in node.inputs] for node in sums}
            (what,) = [name for name, home in homes.items() if home == [edge.target, edge.source]]
        words[what] = words.get(what, 0) + int(moved)
    return nonzero(words)


def most(results: list[dict[str, Any]], key: str) -> Words:
    """Of what each rank counted, the most of any rank."""
    names = {name for rank in results for name in rank[key]}
    return {name: max(rank[key].get(name, 0) for rank in results) for name in names}


def nonzero(words: Words) -> Words:
    return {name: count for name, count in words.items() if count}


def assert_runs_as_planned(ranks: RankPool, factory: str, plan: NetworkPlan, file: Path) -> None:
    results = ranks.call("run", factory, MODELS[factory], str(file))
    for rank in results:
        assert rank["error"] < 1e-9
    expected = planned_words(plan, results[0]["joins"])
    there, back = most(results, "forward"), most(results, "backward")
    moved = {name: there.get(name, 0) + back.get(name, 0) for name in {*there, *back}}
    entering = {node.name for node in plan.network.planned if node.inputs == ("input",)}
    stationary = {node.name for node in plan.network.nodes.values() if node.trained and not node.layer}
    of_input = {what for what, (source, _) in results[0]["joins"].items() if source == "input"}
    unplanned = entering | stationary | of_input  # the batch's own layout, and sums of normalizations
    assert {k: v for k, v in nonzero(moved).items() if k not in unplanned} == expected
    costs = zip(plan.network.planned, plan.layer_costs, strict=True)
    assert nonzero(most(results, "inside")) == nonzero({node.name: int(cost) for node, cost in costs})


@pytest.mark.parametrize("factory", CASES)
@pytest.mark.one_in(3)
def test_an_imported_model_runs_as_its_file_is_planned(factory: str, ranks: RankPool, tmp_path: Path) -> None:
    net, file = tmp_path / "net.yaml", tmp_path / "plan.json"
    shape = ",".join(map(str, MODELS[factory]))
    assert main(["import", factory, "--input", shape, "-o", str(net)]) == 0
    net.write_text(net.read_text().replace("layers:", "dtype: float64\nlayers:"))  # as the ranks run it
    assert main(["plan", str(net), "--procs", "4", "--pass", "training", "--json", "-o", str(file)]) == 0
    plan = plan_network(load_network(net), NetworkRequest(4, training=True))
    assert json.loads(file.read_text()) == with_today(plan)
    assert_runs_as_planned(ranks, factory, plan, file)


@pytest.mark.parametrize("factory", CASES)
@pytest.mark.one_in(4)
def test_a_planned_model_is_written_and_its_file_runs(factory: str, ranks: RankPool, tmp_path: Path) -> None:
    module, _, name = factory.partition(":")
    model = getattr(importlib.import_module(module), name)().double()
    plan = synth.plan_model(model, MODELS[factory], 4)
    network = parse_network(network_text(plan.network), "net.yaml")
    assert network.nodes == plan.network.nodes
    again = plan_network(network, plan.request)
    assert to_json(again) == to_json(plan, counted=False)  # a file has no steps to count words of
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(to_json(again)))
    assert_runs_as_planned(ranks, factory, again, file)
