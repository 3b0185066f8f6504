"""What methods of today cost: the words of DDP and FSDP2 beside counted ones and beside plans."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

import synth
from synth.analysis.today import Today, idle_ranks, today
from synth.analysis.today_network import laid_out, today_text, with_today
from synth.analysis.today_network import today as today_of_network
from synth.cli.main import main
from synth.layer.axes import PerAxis
from synth.layer.layer import Layer
from synth.machine.file import load_machine
from synth.network.file import parse_network
from synth.network.grids.owned_boxes import PlacedGrid
from synth.network.plan.plan import NetworkPlan
from synth.network.plan.plan_json import parse_network_plan
from synth.network.plan.step_words import moved_words
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest
from synth.planning.comparison import compare
from synth.planning.plan import Plan
from synth.reports.html.html_network import html_network

CONV = Path(__file__).parents[2] / "examples" / "conv.yaml"


def rows(plan: Plan) -> dict[str, tuple[int | None, int | None]]:
    return {each.name: (each.words, each.memory_bytes) for each in today(plan)}


@pytest.mark.parametrize("procs", [2, 8, 32])
def test_fsdp_forward_is_the_plan_of_data_parallelism(procs: int) -> None:
    """Where weights have one owner each, data parallelism gathers them: the words of FSDP2, counted."""
    plan = synth.plan(CONV, procs)
    data = next(each for each in compare(plan) if each.name == "data")
    assert rows(plan)["FSDP2"][0] == data.words
    step = synth.plan(CONV, procs, pass_="training")
    data = next(each for each in compare(step) if each.name == "data")
    assert rows(step)["DDP"][0] == data.words  # gathered once and summed once: 2 (W - W/p)
    assert rows(step)["FSDP2"][0] == data.words * 3 // 2


def test_a_ring_all_reduce_word_by_word() -> None:
    """DDP: each rank receives p - 1 pieces to add and p - 1 sums."""
    layer = Layer.conv2d((8, 3, 6, 6), 8, 3, padding=1, name="small")
    plan = synth.plan(layer, 4, pass_="training")
    pieces = [len(range(rank, 216, 4)) for rank in range(4)]
    received = [
        sum(pieces[(rank - step - 1) % 4] for step in range(3))
        + sum(pieces[(rank - step) % 4] for step in range(3))
        for rank in range(4)
    ]
    assert rows(plan)["DDP"][0] == max(received) == 2 * (216 - 54)
    maps = 2 * 3 * 36 * 2 + 2 * 8 * 36  # In and dIn, Out, of 2 samples
    assert rows(plan)["DDP"][1] == (2 * 216 + maps) * 4
    assert rows(plan)["FSDP2"][1] == (2 * 54 + 2 * 216 + maps) * 4


def test_no_rank_without_a_sample() -> None:
    found = {each.name: each for each in today(synth.plan(CONV, 64))}
    assert found["DDP"].how == "b=32, 32 ranks idle, whole weights"
    assert found["DDP"].words == 0
    assert found["DDP"].ranks == 32
    assert found["tensor"].words == min(
        each.words or math.inf for each in compare(synth.plan(CONV, 64)) if each.name in ("filter", "channel")
    )


def test_a_contraction_has_no_weights() -> None:
    layer = Layer.einsum("hqd,hkd->hqk", {"h": 3, "q": 10, "k": 12, "d": 6}, name="scores")
    assert rows(synth.plan(layer, 3)).keys() == {"this plan", "tensor", "spatial"}


# -- networks ---------------------------------------------------------------------------------------------

NETWORK = """
network: small
input: [8, 4, 16, 16]
layers:
  - {name: a, conv2d: {out_channels: 8, kernel: 3, padding: 1}}
  - {name: n, batchnorm: {}}
  - {name: r, relu: {}}
  - {name: b, conv2d: {out_channels: 16, kernel: 3, padding: 1}}
  - {name: c, conv2d: {out_channels: 8, kernel: 3, padding: 1}}
"""
KERNELS = 9 * (4 * 8 + 8 * 16 + 16 * 8)


def planned(procs: int, training: bool, objective: str = "words") -> NetworkPlan:
    machine = load_machine("lassen") if objective == "time" else None
    asked = NetworkRequest(procs, objective, training, machine=machine, resident_weights=not training)
    return plan_network(parse_network(NETWORK, "small.yaml"), asked)


def of_network(plan: NetworkPlan) -> dict[str, Today]:
    return {each.name: each for each in today_of_network(plan)}


@pytest.mark.parametrize("training", [True, False])
def test_words_of_data_parallelism_are_those_that_its_layout_moves(training: bool) -> None:
    """From the description, with all parameters, and counted from the owners of weights, kernels alone."""
    plan, found = planned(4, training), of_network(planned(4, training))
    grids = [PlacedGrid(PerAxis(b=4)) for _ in plan.placed_grids]
    for name, whole, times in (("DDP", True, 2 * training), ("FSDP2", False, 3 if training else 1)):
        asked = replace(plan.request, resident_weights=whole and not training, saves=frozenset({"In", "Out"}))
        assert moved_words(laid_out(plan, asked, grids, whole and training)) == times * KERNELS * 3 / 4
        others = plan.network.parameters - KERNELS
        assert others < 100
        words = found[name].words
        assert words is not None
        assert 0 <= words - times * KERNELS * 3 / 4 <= times * others


def test_memory_of_ddp_is_that_of_one_process_with_its_samples() -> None:
    alone = parse_network(NETWORK.replace("[8, 4", "[2, 4"), "alone.yaml")
    one = plan_network(alone, NetworkRequest(1, training=True, batch_norm="local"))
    found = of_network(planned(4, training=True))
    bucket = KERNELS * 4  # a message of all gradients, less than a bucket
    assert found["DDP"].memory_bytes == one.held_bytes + bucket
    forward = plan_network(alone, NetworkRequest(1, resident_weights=True))
    assert of_network(planned(4, training=False))["DDP"].memory_bytes == forward.held_bytes


@pytest.mark.parametrize("objective", ["words", "time"])
def test_tensor_and_spatial_are_the_plans_of_these_strategies(objective: str) -> None:
    plan = planned(4, training=True, objective=objective)
    found, singles = of_network(plan), {each.name: each for each in plan.single_strategies}
    assert found["this plan"].words == plan.received.words
    assert found["this plan"].memory_bytes == plan.held_bytes
    alone = {
        name: plan_network(plan.network, replace(plan.request, axes=axes))
        for name, axes in (("spatial", "dhw"), ("filter", "k"), ("channel", "c"))
    }
    for name, each in alone.items():
        assert singles[name].cost == pytest.approx(each.cost)
    if objective == "words":
        assert found["spatial"].words == alone["spatial"].received.words
        assert found["spatial"].memory_bytes == alone["spatial"].held_bytes
        assert found["tensor"].words == min(alone[name].received.words for name in ("filter", "channel"))


def test_what_cannot_be_says_why_and_idle_ranks_are_counted() -> None:
    found = of_network(planned(16, training=True))
    assert found["DDP"].how == "b=8, whole weights, 8 ranks idle"
    plan = synth.plan("examples/networks/tutorial.yaml", 4, pass_="training")
    assert isinstance(plan, NetworkPlan)
    spatial = of_network(plan)["spatial"]
    assert (spatial.words, spatial.memory_bytes) == (None, None)
    assert spatial.how == "cannot use 4 processes evenly at 10"


def test_the_rows_are_in_the_file_the_text_and_the_report(tmp_path: Path) -> None:
    file, net = tmp_path / "plan.json", tmp_path / "small.yaml"
    net.write_text(NETWORK)
    assert main(["plan", str(net), "--procs", "4", "--pass", "training", "--json", "-o", str(file)]) == 0
    data = parse_network_plan(file.read_text(), "plan.json")
    plan = planned(4, training=True)
    assert data == json.loads(json.dumps(with_today(plan)))
    page, text = html_network(data), today_text(plan)
    assert page.count("Compared with what you use today") == 1
    for row in data["today"]:
        said = f"{row['words']:,}".replace(",", " ")
        assert said in page
        assert said in text
    data["today"][0]["words"] += 1
    with pytest.raises(synth.InputError, match=r"edited|today"):
        parse_network_plan(json.dumps(data), "plan.json")


@pytest.mark.parametrize(
    ("used", "said"),
    [
        ([8], ""),
        ([7], "1 rank idle"),
        ([1, 1], "7 ranks idle"),
        ([2, 4], "4 to 6 ranks idle"),
        ([8, 2, 4], "up to 6 ranks idle"),
    ],
)
def test_ranks_that_are_idle_in_all_layers_or_in_some(used: list[int], said: str) -> None:
    assert idle_ranks(8, used) == said


ONE_SAMPLE = NETWORK.replace("[8, 4, 16, 16]", "[1, 4, 16, 16]")


def test_a_rank_that_works_alone_has_no_ratio() -> None:
    """One sample: DDP uses one rank, and for time so does the plan of so small a network."""
    network = parse_network(ONE_SAMPLE, "one.yaml")
    plan = plan_network(network, NetworkRequest(2, training=True))
    found, mine = of_network(plan), plan.received.words
    assert found["DDP"].how == "b=1, whole weights, 1 rank idle"
    assert [found[name].ranks for name in ("this plan", "DDP", "FSDP2")] == [2, 1, 1]
    assert [found[name].times(mine) for name in ("this plan", "DDP", "FSDP2")] == ["1.00", "-", "-"]
    text = today_text(plan)
    assert re.search(r"^DDP +0 +- .* 1 rank idle$", text, re.MULTILINE)
    page = html_network(json.loads(json.dumps(with_today(plan))))
    assert '>DDP</th><td class="num">0</td><td class="num">-</td>' in page
    fast = plan_network(
        network, replace(plan.request, procs=8, objective="time", machine=load_machine("lassen"))
    )
    found = of_network(fast)
    assert {found[name].how for name in ("this plan", "tensor")} == {"one rank alone, 7 ranks idle"}
    assert found["tensor"].ranks == 1


def test_a_method_without_words_on_several_ranks_has_a_ratio() -> None:
    found = of_network(planned(4, training=False))
    assert found["DDP"].words == 0
    assert found["DDP"].times(100) == "0.00"
