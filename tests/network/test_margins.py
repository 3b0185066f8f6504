"""Margins: what ranks need and compute, counted by sets of indices; the choice, against all choices."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from flat_machine import flat
from hypothesis import given, settings
from hypothesis import strategies as st
from row_networks import RowLayer, random_layers, yaml_of

from synth.base.errors import InfeasibleError, InputError, UsageError
from synth.cli.main import main
from synth.layer.axes import PerAxis
from synth.machine.file import load_machine
from synth.machine.hierarchy import Compute, Level, Machine
from synth.machine.layer_time import compute_seconds
from synth.network.file import parse_network
from synth.network.graph import Network, Node
from synth.network.grids.owned_boxes import PlacedGrid
from synth.network.kinds import SHUFFLES
from synth.network.margins.choose import CHOICES, choose, choose_cuts, evaluated
from synth.network.margins.prices import SecondPrices
from synth.network.margins.row_graph import RowGraph, row_graph
from synth.network.margins.walk import Rows, Walked
from synth.network.plan.plan import NetworkPlan
from synth.network.plan.plan_entry import network_plan_file_schema
from synth.network.plan.plan_json import parse_network_plan, to_json
from synth.network.plan.report import report
from synth.network.plan.step_words import moved_words
from synth.network.planner.margins_of_plan import NEAR, with_margins
from synth.network.planner.planner import _NetworkPlanner, plan_network
from synth.network.request import NetworkRequest
from synth.prediction.predict import predict
from synth.prediction.prediction import PredictionRequest
from synth.prediction.profile import NominalRate
from synth.prediction.replay import replay

Index = tuple[int, ...]


def network_of(layers: list[RowLayer]) -> Network:
    return parse_network(yaml_of(layers), "rows.yaml")


def placed(network: Network, rng: random.Random, procs: int, mixed: bool) -> list[PlacedGrid]:
    """A grid per layer: one for all layers that admit it, or any. Some ranks may be idle."""
    rows = [
        axis for axis, size in zip("dhw", network.planned[0].layer.nest.extents[2:5], strict=True) if size > 1
    ]
    found, usual = [], _grid(rng, procs, rows)
    for node in network.planned:
        assert node.layer is not None
        axes = [*rows, "k"] if rng.random() < 0.2 else rows
        grid = _grid(rng, procs, axes) if mixed and rng.random() < 0.4 else usual
        fits = all(p <= n for p, n in zip(grid, node.layer.nest.extents, strict=True))
        found.append(PlacedGrid(grid if fits else PerAxis()))
    return found


def _grid(rng: random.Random, procs: int, axes: list[str]) -> PerAxis:
    grid, left = PerAxis(), procs
    while left > 1 and axes:
        part = min(d for d in range(2, left + 1) if left % d == 0)
        axis = rng.choice(axes)
        grid, left = grid.with_(axis, getattr(grid, axis) * part), left // part
    return grid


def graph_of(seed: int, procs: int, mixed: bool = True, most: int = 10) -> tuple[Network, RowGraph]:
    rng = random.Random(seed)
    while True:
        network = network_of(random_layers(rng, 1 + seed % 3, most, seed % 4 > 1))
        if network.planned:
            return network, row_graph(network, placed(network, rng, procs, mixed), procs)


def indices(box: np.ndarray) -> set[Index]:
    """The positions of a box, without channels."""
    spans = [range(low, high) for at, (low, high) in enumerate(box.tolist()) if at != 1]
    return set(itertools.product(*spans))


def taps(node: Node, at: Index, extents: Index) -> Iterator[Index]:
    """The positions of its source that a position of a node reads, from the definition of the layer."""
    layer = node.layer
    if node.kind in SHUFFLES:
        before, after = (((1,) * (5 - len(each)) + each[2:]) for each in (node.in_shape, node.shape))
        sizes = zip(at[1:], before, after, strict=True)
        rows = [range(row * size // n, -(-(row + 1) * size // n)) for row, size, n in sizes]
        yield from itertools.product(at[:1], *rows)
        return
    if layer is None:
        yield at
        return
    missing = len(at) - 1 - len(layer.kernel)
    choices = [[at[dim]] for dim in range(1 + missing)]
    numbers = zip(layer.kernel, layer.stride, layer.zeros, layer.dilation, strict=True)
    for dim, (kernel, stride, (before, _), dilation) in enumerate(numbers, 1 + missing):
        steps = range(0, kernel * dilation, dilation)
        if layer.transposed:  # a row adds to rows stride * i + tap - padding
            sums = [at[dim] + before - tap for tap in steps]
            choices.append([each // stride for each in sums if each % stride == 0])
        else:
            choices.append([stride * at[dim] + tap - before for tap in steps])
    for found in itertools.product(*choices):
        if all(0 <= row < n for row, n in zip(found, extents, strict=True)):
            yield found


def hull_of(read: set[Index]) -> set[Index]:
    """All positions of the least box around some."""
    columns = zip(*read, strict=True)
    return set(itertools.product(*(range(min(each), max(each) + 1) for each in columns))) if read else set()


def check_walk(network: Network, walked: Walked) -> None:
    """What is read is computed or fetched, nothing else is fetched, and words and work are as said."""
    graph, procs = walked.graph, next(iter(walked.graph.values())).own.shape[2]
    for name, tensor in graph.items():
        extents = (tensor.shape[0], *tensor.shape[2:])
        words = []
        for rank in range(procs):
            need, computed = (indices(boxes[:, :, rank]) for boxes in walked.boxes[name])
            read = set[Index]()
            for reader in graph.values():
                if name in reader.sources:
                    each = indices(walked.boxes[reader.name].computed[:, :, rank])
                    read.update(*(taps(network.nodes[reader.name], at, extents) for at in each))
            assert read <= need
            assert need == hull_of(read)
            assert tensor.joined or indices(tensor.own[:, :, rank]) <= computed
            channels = range(*walked.boxes[name].computed[1, :, rank])
            kept = len(need & computed) * len(channels)
            words.append(len(need) * tensor.shape[1] - kept)
        assert walked.fetched(name).tolist() == words


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 8), st.sampled_from([0, 2, 5, 99]))
def test_what_is_needed_is_computed_or_fetched_and_counted(seed: int, procs: int, most: int) -> None:
    network, graph = graph_of(seed, procs)
    rng = random.Random(seed)
    rows = {name: tuple(rng.randint(0, most) for _ in range(3)) for name in graph}
    if not graph:  # no layer whose rows are known
        return
    check_walk(network, evaluated(graph, rows).walked)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 6), st.sampled_from([0.0, 0.05, 0.3, 2.0]))
def test_the_choice_is_the_best_of_all(seed: int, procs: int, share: float) -> None:
    _, graph = graph_of(seed, procs, most=6)
    names = [name for name, tensor in graph.items() if tensor.covered and not tensor.free]
    tried = (0, 1, 2, 4) if len(names) < 5 else (0, 1, 3)
    if len(names) > 6:
        return
    limit = share * sum(tensor.work * math.prod(tensor.shape[2:]) for tensor in graph.values())
    best = math.inf
    for each in itertools.product(tried, repeat=len(names)):
        made = evaluated(graph, {name: (n,) * 3 for name, n in zip(names, each, strict=True)})
        work = sum(
            float((tensor.work * (_positions(made, name) - _positions_owned(tensor.own))).max())
            for name, tensor in graph.items()
        )
        if work <= limit:
            best = min(best, made.cost)
    chosen = choose(graph, limit, tried)
    assert chosen.exact
    assert chosen.cost == best


def _positions(made: object, name: str) -> np.ndarray:
    return _positions_owned(made.walked.boxes[name].computed)  # type: ignore[attr-defined]


def _positions_owned(boxes: np.ndarray) -> np.ndarray:
    rows = boxes[[0, 2, 3, 4]]
    return (rows[:, 1] - rows[:, 0]).prod(axis=0)


UNETS = [
    (2, 629_955, 189_068),
    pytest.param(4, 647_436, 340_144, marks=pytest.mark.slow),
    pytest.param(8, 335_372, 211_632, marks=pytest.mark.slow),
]
UNET = """
network: unet
input: [1, 3, 512, 512]
layers:
"""


def unet_yaml(levels: int = 4, base: int = 64) -> str:
    """The U-Net of Ronneberger et al. with zero padding: two convolutions at each level, 2 by 2 pooling."""
    lines, last = [UNET.strip("\n")], "input"

    def add(name: str, entry: str, *sources: str) -> str:
        lines.append(f"  - {{name: {name}, {entry}, from: [{', '.join(sources)}]}}")
        return name

    def twice(name: str, last: str, channels: int) -> str:
        for part in "ab":
            conv = f"conv2d: {{out_channels: {channels}, kernel: 3, padding: 1}}"
            last = add(f"{name}{part}r", "relu: {}", add(f"{name}{part}", conv, last))
        return last

    skips = []
    for level in range(levels + 1):
        skips.append(last := twice(f"down{level}", last, base << level))
        if level < levels:
            last = add(f"pool{level}", "pool: {kernel: 2}", last)
    for level in reversed(range(levels)):
        up = f"conv2d: {{out_channels: {base << level}, kernel: 2, stride: 2, transposed: true}}"
        last = add(f"cat{level}", "cat: {}", skips[level], add(f"up{level}", up, last))
        last = twice(f"rise{level}", last, base << level)
    add("head", "conv2d: {out_channels: 2, kernel: 1}", last)
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(("parts", "none", "some"), UNETS)
def test_words_of_a_unet(parts: int, none: int, some: int) -> None:
    """Blocks of an image of 512 by 512; at most a tenth more multiply-adds."""
    network = parse_network(unet_yaml(), "unet.yaml")
    grids = [PlacedGrid(PerAxis(h=parts, w=parts))] * len(network.planned)
    graph = row_graph(network, grids, parts**2)
    without = evaluated(graph, {})
    assert without.cost == none
    work = without.walked.own_work().max()
    chosen = choose(graph, 0.1 * work)
    assert (chosen.cost, chosen.exact) == (some, True)
    assert chosen.walked.extra_work().max() <= 0.1 * work
    rounds, before = (each.walked.rounds(network, ()) for each in (chosen, without))
    assert before == 22
    assert 2 * rounds <= before + 4


SMALL = unet_yaml(1, 8).replace("512", "24")


def plan_of(recompute: float, procs: int = 4) -> NetworkPlan:
    """The plan of a small U-Net in inference."""
    request = NetworkRequest(procs, resident_weights=True, recompute=recompute)
    return plan_network(parse_network(SMALL, "small.yaml"), request)


def test_a_plan_with_margins_counts_them_and_moves_fewer_words() -> None:
    plan, without = plan_of(0.25), plan_of(0.0)
    assert without.margins is None
    assert plan.margins is not None
    assert plan.cost == sum(plan.layer_costs) + sum(plan.edge_costs.values()) + plan.margins.cost
    assert plan.cost < without.cost
    assert plan.margins.extra_work <= 0.25
    assert plan.margins.rounds < plan.margins.rounds_before
    graph = row_graph(plan.network, plan.placed_grids, 4)
    again = evaluated(graph, plan.margins.rows)
    assert again.words == plan.margins.words
    assert plan.held_bytes >= without.held_bytes


def test_words_of_a_training_step_with_margins_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What readers fetch, and what returns to its owners, by sets of indices; weights count as without."""
    net = tmp_path / "net.yaml"
    net.write_text(chain_yaml(5, 64).replace("out_channels: 8", "out_channels: 4").replace("[1, 8", "[1, 2"))
    request = NetworkRequest(4, training=True)
    network = parse_network(net.read_text(), "net.yaml")
    plan = plan_network(network, replace(request, recompute=0.3))
    without = plan_network(network, request)
    assert plan.margins is not None
    assert plan.cost < without.cost
    graph = row_graph(network, plan.placed_grids, 4)
    walked = evaluated(graph, plan.margins.rows).walked
    for name, words in plan.margins.words.items():
        own = [indices(graph[name].own[:, :, rank]) for rank in range(4)]
        need, computed = walked.boxes[name]
        lacks = [indices(need[:, :, rank]) - indices(computed[:, :, rank]) for rank in range(4)]
        channels = graph[name].shape[1]
        back = [channels * sum(len(lack & mine) for lack in lacks) for mine in own]
        assert back == walked.returned(name).tolist()
        there = channels * max(map(len, lacks))
        assert (words, plan.margins.back[name]) == (there + max(back), max(back))
    data = to_json(plan)
    assert parse_network_plan(json.dumps(data), "plan.json") == data
    asked = ["plan", str(net), "--procs", "4", "--pass", "training", "--recompute", "30%"]
    assert main(asked) == 0
    assert "not proven to be the fewest words" in capsys.readouterr().out
    assert main([*asked, "--explain"]) == 0
    assert "words are fetched" in capsys.readouterr().out


def test_more_work_never_moves_more_words() -> None:
    costs = [plan_of(share).cost for share in (0.0, 0.02, 0.1, 0.5, 1.0)]
    for fewer, more in itertools.pairwise(costs):
        assert more <= NEAR * fewer
    assert costs[-1] < costs[0]


def test_of_nearly_equal_words_the_plan_of_the_fewest_rounds_is_taken() -> None:
    network = parse_network(chain_yaml(12, 128).replace("[1, 8,", "[1, 1,"), "chain.yaml")
    request = NetworkRequest(16, resident_weights=True, recompute=0.1)
    planner = _NetworkPlanner(network, request, "auto", lambda text: None)
    fewest = planner.margined(planner.with_grid(PerAxis(h=4, w=4), planner.run())[1](), CHOICES)
    plan = plan_network(network, request)
    assert fewest.margins is not None
    assert plan.margins is not None
    assert plan.margins.rounds < fewest.margins.rounds
    assert fewest.cost < plan.cost <= NEAR * fewest.cost
    assert plan.margins.above == pytest.approx(plan.cost / fewest.cost - 1)
    assert f"{plan.margins.above:.1%} above the fewest words for these grids, for fewer rounds" in report(
        plan
    )
    data = to_json(plan)
    assert parse_network_plan(json.dumps(data), "plan.json") == data


def test_a_plan_file_has_the_margins_and_checks_them() -> None:
    plan = plan_of(0.25)
    data = to_json(plan)
    assert parse_network_plan(json.dumps(data), "plan.json") == data
    jsonschema.validate(data, network_plan_file_schema())
    assert plan.margins is not None
    rows = {each["name"]: tuple(each["rows"]) for each in data["margins"]["tensors"] if each["covered"]}
    assert rows == plan.margins.rows
    for change, said in (
        ({"rounds": -1}, "margins.rounds: "),
        ({"exact": 1}, "margins.exact: "),
        ({"tensors": []}, "cost is "),
        ({"tensors": [*data["margins"]["tensors"], data["margins"]["tensors"][0]]}, "names one tensor twice"),
    ):
        wrong = {**data, "margins": {**data["margins"], **change}}
        with pytest.raises(InputError, match=said):
            parse_network_plan(json.dumps(wrong), "plan.json")
    forward = {**data, "kept": []}
    with pytest.raises(InputError, match="neither of inference nor of training"):
        parse_network_plan(json.dumps(forward), "plan.json")


def test_the_report_tells_what_margins_cost_and_save(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    plan = plan_of(0.25)
    assert plan.margins is not None
    asked = ["plan", str(file), "--procs", "4", "--recompute", "25%"]
    assert main(asked) == 0
    text = capsys.readouterr().out
    assert f"margins: {plan.margins.extra_work:.1%} more multiply-adds" in text
    assert f"in {plan.margins.rounds} rounds of messages, without margins" in text
    assert "rows of others" in text
    assert main([*asked, "--explain"]) == 0
    assert "words are fetched in place of" in capsys.readouterr().out


# -- seconds ---------------------------------------------------------------------------------------------


def chain_yaml(layers: int, rows: int, pool: bool = False) -> str:
    """Convolutions of 3 by 3; a ReLU and a pooling behind the first where asked."""
    lines = ["network: chain", f"input: [1, 8, {rows}, {rows}]", "layers:"]
    for number in range(layers):
        lines += [f"  - {{name: c{number}, conv2d: {{out_channels: 8, kernel: 3, padding: 1}}}}"]
        if pool and not number:
            lines += ["  - {name: r, relu: {}}", "  - {name: p, pool: {kernel: 3, stride: 2, padding: 1}}"]
    return "\n".join(lines)


@pytest.mark.parametrize("grid", [PerAxis(h=4), PerAxis(h=2, w=2), PerAxis(h=4, w=2)])
@pytest.mark.parametrize("machine", [flat(), load_machine("h100")], ids=["flat", "h100"])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_without_margins_the_seconds_are_those_of_the_layers(
    grid: PerAxis, machine: Machine, training: bool
) -> None:
    """The halo of a layer, from its schedule, and the rows that are fetched of its input, from the graph.

    In training the whole weights of each layer are updated on every rank, where nothing hides moves of Ker.
    """
    network = parse_network(chain_yaml(3, 24), "chain.yaml")
    request = NetworkRequest(grid.size, "time", machine=machine, recompute=0)
    step = {"training": True, "ahead": 0, "input_gradient": False}
    request = replace(request, **(step if training else {"resident_weights": True}))  # type: ignore[arg-type]
    planner = _NetworkPlanner(network, request, "auto", lambda text: None)
    _, make = planner.with_grid(grid, planner.run())
    plain = make()
    made = with_margins(replace(plain, request=replace(request, recompute=0.1)), {}, planner.steps, [0])
    assert made.margins is not None
    assert not any(map(any, made.margins.rows.values()))
    assert made.margins.seconds.keys() == made.margins.words.keys() == {"input", "c0", "c1"}
    assert made.timed is not None
    assert plain.timed is not None
    pairs = zip(made.timed.layers, plain.timed.layers, strict=True)
    updates = sum(one.update - other.update for one, other in pairs)
    assert (updates > 0) == training
    assert made.cost == pytest.approx(plain.cost + updates, rel=1e-12)
    assert made.cost == pytest.approx(
        sum(each.total for each in made.timed.layers) + sum(made.margins.seconds.values())
    )


def test_the_seconds_of_rows_of_others_are_those_of_a_longer_layer() -> None:
    """A rank that computes 8 rows of a layer takes as long as one of a layer of 8 rows on one process."""
    machine = load_machine("h100")
    network = parse_network(chain_yaml(2, 24), "chain.yaml")
    graph = row_graph(network, [PlacedGrid(PerAxis(h=4))] * 2, 4)
    walked = evaluated(graph, {"c0": (0, 1, 0), "c1": (0, 0, 0)}).walked
    rows = walked.boxes["c0"].computed[3]
    assert (rows[1] - rows[0]).tolist() == [7, 8, 8, 7]
    prices = SecondPrices(network, machine)
    layer = network.planned[0].layer
    assert layer is not None
    more = prices.computing(graph["c0"], walked.boxes["c0"].computed)
    wide, own = (compute_seconds(machine, layer.nest, layer.nest.extents._replace(h=h), True) for h in (8, 6))
    assert more.tolist() == pytest.approx([wide - own])


@pytest.mark.parametrize("alpha", [1e-7, 1e-5])
@pytest.mark.one_in(2)
def test_the_choice_for_time_is_the_best_of_all(alpha: float) -> None:
    """More latency makes more margins pay; a plan for time is never slower than without margins."""
    level = Level("all", None, alpha, 1e-9)
    machine = Machine("flat", (level,), Compute(1e10, 1e9), algorithms=("ring",))
    network = parse_network(chain_yaml(3, 24, pool=True), "chain.yaml")
    graph = row_graph(network, [PlacedGrid(PerAxis(h=2, w=2))] * len(network.planned), 4)
    prices, tried = SecondPrices(network, machine), (0, 1, 3)
    names = [name for name, tensor in graph.items() if tensor.covered and not tensor.free]

    def seconds(rows: dict[str, Rows]) -> float:
        walked = evaluated(graph, rows).walked
        return sum(
            float(prices.fetching(graph[name], *boxes)[0] + prices.computing(graph[name], boxes.computed)[0])
            for name, boxes in walked.boxes.items()
        )

    every = [
        dict(zip(names, ((n,) * 3 for n in each), strict=True))
        for each in itertools.product(tried, repeat=len(names))
    ]
    best = min(map(seconds, every))
    choice = choose_cuts(graph, math.inf, {}, tried, prices)
    assert choice.exact
    assert seconds(choice.rows) == pytest.approx(best, rel=1e-12)
    request = NetworkRequest(4, "time", machine=machine, resident_weights=True)
    plans = [plan_network(network, replace(request, recompute=share)) for share in (0, 0.02, 0.2, None)]
    costs = [plan.cost for plan in plans]
    assert costs == sorted(costs, reverse=True)
    assert plans[0].margins is None
    assert (costs[-1] < 0.9 * costs[0]) == (alpha == 1e-5)
    data = to_json(plans[-1])
    assert parse_network_plan(json.dumps(data), "plan.json") == data
    jsonschema.validate(data, network_plan_file_schema())
    assert "seconds" in report(plans[-1])
    if plans[-1].margins is not None:
        _check_replay(plans[-1])
    asked = PredictionRequest(network, machine, NominalRate(machine), 4, 1, training=False)
    total = predict(asked, "plan").total
    assert total.compute + total.comm == pytest.approx(costs[-1], rel=1e-9)


def _check_replay(plan: NetworkPlan) -> None:
    """A replay fetches the rows of a plan, computes those of others, and has no halos beside them."""
    assert plan.margins is not None
    made = replay(plan)
    fetched = {task.name: task for task in made.tasks if task.name.endswith(" rows")}
    assert fetched.keys() == {f"{name} rows" for name in plan.margins.seconds}
    for name, seconds in plan.margins.seconds.items():
        task = fetched[f"{name} rows"]
        assert task.seconds[0] == pytest.approx(seconds)
        assert sum(task.sent) == plan.margins.words[name] * plan.word_bytes
    halos = {task.layer for task in made.tasks if task.name.endswith("halo")}
    assert not halos & plan.margins.layers
    computing = sum(layer.forward for layer in plan.timed.layers) if plan.timed else 0.0
    assert made.computing <= computing * (1 + 1e-9)


def test_a_replay_has_the_margins_of_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also of a plan for words; the command plans as `synth plan` does."""
    net, machine = tmp_path / "net.yaml", tmp_path / "flat.yaml"
    net.write_text(SMALL)
    machine.write_text(
        "machine: flat\nlevels: [{name: all, alpha: 1e-5, beta: 1e-9}]\ncompute: {rate: 1e10}\n"
    )
    rates = load_machine(machine)
    request = NetworkRequest(4, machine=rates, resident_weights=True, recompute=0.25)
    plan = plan_network(parse_network(SMALL, "small.yaml"), request)
    assert plan.margins is not None
    made = replay(plan)
    moved = {task.name: sum(task.sent) for task in made.tasks if task.name.endswith(" rows")}
    assert moved == {f"{name} rows": words * plan.word_bytes for name, words in plan.margins.words.items()}
    asked = ["replay", str(net), "--procs", "4", "--machine", str(machine), "--json"]
    found = []
    for more in ([], ["--recompute", "0"], ["--objective", "words", "--recompute", "25%"]):
        assert main([*asked, *more]) == 0
        found.append(json.loads(capsys.readouterr().out)["seconds"])
    assert found[0] < found[1]
    assert found[2] == made.seconds


def test_a_plan_for_time_has_margins_unless_they_are_forbidden() -> None:
    known = NetworkRequest(4, "time", machine=flat(), resident_weights=True)
    for changes, most in (
        ({}, math.inf),
        ({"recompute": 0}, 0.0),
        ({"recompute": 0.3}, 0.3),
        ({"objective": "words"}, 0.0),
        ({"axes": "hw"}, 0.0),
        ({"procs": 8192}, 0.0),
        ({"resident_weights": False}, 0.0),
        ({"resident_weights": False, "training": True}, 0.0),
        ({"resident_weights": False, "training": True, "whole_weights": True}, math.inf),
    ):
        assert replace(known, **changes).most_recompute == most


# -- memory ----------------------------------------------------------------------------------------------


def test_within_a_limit_of_memory_margins_get_narrower() -> None:
    network = parse_network(chain_yaml(5, 48).replace("[1, 8,", "[1, 1,"), "chain.yaml")
    request = NetworkRequest(4, resident_weights=True, recompute=1.0, axes="h")
    free = plan_network(network, request)
    least = plan_network(network, replace(request, recompute=0.0))
    costs, widths = [], []
    for limit in (free.held_bytes, free.held_bytes - 1):
        plan = plan_network(network, replace(request, limit_bytes=limit))
        assert plan.held_bytes <= limit
        assert plan.margins is not None
        assert all(placed.grid == PerAxis(h=4) for placed in plan.placed_grids)
        costs.append(plan.cost)
        widths.append(max(map(max, plan.margins.rows.values())))
    assert costs[0] == free.cost < costs[1] < least.cost
    assert widths == sorted(widths, reverse=True)
    with pytest.raises(InfeasibleError, match="would do") as fault:
        plan_network(network, replace(request, limit_bytes=1000))
    assert fault.value.enough_bytes is not None
    limit = (fault.value.enough_bytes + free.held_bytes) // 2
    tight = plan_network(network, replace(request, limit_bytes=limit))
    assert tight.held_bytes <= limit
    assert tight.margins is not None
    assert free.cost < tight.cost < least.cost
    data = to_json(tight)
    assert parse_network_plan(json.dumps(data), "plan.json") == data


@pytest.mark.parametrize("whole", [False, True], ids=["shards", "whole"])
def test_a_training_step_for_time_has_margins_where_they_save_seconds(whole: bool) -> None:
    """High latencies are saved; the replay has what returns in the backward pass, and no halos.

    Gradients of layers with margins are summed in buckets where weights may be whole, else layer by layer.
    """
    network = parse_network(chain_yaml(5, 48, pool=True), "chain.yaml")
    for alpha, pays in ((1e-4, True), (1e-9, False)):
        machine = Machine(
            "slow", (Level("all", None, alpha, 1e-9),), Compute(1e10, 1e9), algorithms=("ring",)
        )
        request = NetworkRequest(4, "time", training=True, machine=machine, whole_weights=whole, axes="h")
        request = replace(request, exact_procs=True)
        plan, without = (plan_network(network, replace(request, recompute=share)) for share in (0.5, 0.0))
        assert (plan.margins is not None) == pays
        assert plan.cost < without.cost if plan.margins else plan.cost == without.cost
        data = to_json(plan)
        assert parse_network_plan(json.dumps(data), "plan.json") == data
        if plan.margins is None:
            continue
        pairs = zip(network.planned, plan.whole, strict=True)
        inside = {
            node.name: each for node, each in pairs if node.name in plan.margins.layers and node.weighted
        }
        assert inside
        assert {*inside.values()} == {whole}
        tasks = replay(plan).tasks
        back = {task.name: task for task in tasks if task.name.endswith("rows back")}
        assert back.keys() == {f"{name} rows back" for name, words in plan.margins.back.items() if words}
        for name, words in plan.margins.back.items():
            assert sum(back[f"{name} rows back"].sent) == words * plan.word_bytes
        sums = {
            how: {task.layer for task in tasks if task.name.endswith(how)} & inside.keys()
            for how in ("Ker sums", "Ker bucket")
        }
        assert sums == {
            "Ker sums": set() if whole else {*inside},
            "Ker bucket": {*inside} if whole else set(),
        }
        assert not {task.layer for task in tasks if task.name.endswith("halo")} & plan.margins.layers


def test_a_training_step_for_time_has_margins_by_itself_where_they_save_a_tenth() -> None:
    network = parse_network(chain_yaml(5, 48).replace("[1, 8,", "[1, 1,"), "chain.yaml")
    found = set()
    for alpha in (1e-3, 1e-4, 1e-6, 1e-9):
        machine = Machine(
            "slow", (Level("all", None, alpha, 1e-9),), Compute(1e10, 1e9), algorithms=("ring",)
        )
        asked = NetworkRequest(4, "time", training=True, machine=machine, whole_weights=True)
        own, wide, without = (plan_network(network, replace(asked, recompute=x)) for x in (None, 1.0, 0.0))
        found.add(own.margins is not None)
        assert own.cost <= without.cost * (0.9 if own.margins else 1)
        if own.margins is None:
            assert own.cost == without.cost
            assert wide.cost >= without.cost * 0.9
    assert found == {False, True}


def test_a_training_step_within_a_limit_of_memory_has_margins() -> None:
    """Its words are those of weights that are moved twice, also where other layers gather them again."""
    network = parse_network(chain_yaml(5, 48).replace("[1, 8,", "[1, 1,"), "chain.yaml")
    request = NetworkRequest(4, training=True, recompute=1.0, axes="h")
    free = plan_network(network, request)
    assert free.margins is not None
    widths = []
    for limit in (free.held_bytes, free.held_bytes - 1, free.held_bytes * 9 // 10):
        plan = plan_network(network, replace(request, limit_bytes=limit))
        without = plan_network(network, replace(request, limit_bytes=limit, recompute=0.0))
        assert max(plan.held_bytes, without.held_bytes) <= limit
        assert plan.cost <= without.cost
        assert moved_words(plan) == pytest.approx(plan.cost)
        widths.append(max(map(max, plan.margins.rows.values())) if plan.margins else 0)
        data = to_json(plan)
        assert parse_network_plan(json.dumps(data), "plan.json") == data
    assert widths == sorted(widths, reverse=True)
    assert widths[1] > 0


def test_what_margins_do_not_go_with_is_refused() -> None:
    known = {"resident_weights": True, "recompute": 0.1}
    for fields, said in (
        ({"recompute": 0.1}, "is of a forward pass with resident weights; leave it out"),
        ({"resident_weights": True, "recompute": -0.1}, "recompute is -0.1; it must be from 0"),
        ({"resident_weights": True, "recompute": "a"}, "recompute is 'a'; it must be from 0"),
    ):
        with pytest.raises(UsageError, match=said):
            NetworkRequest(4, **fields)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="is planned for up to 4096 processes, but procs is 8192"):
        NetworkRequest(8192, **known)  # type: ignore[arg-type]
