"""Network plans: counted one by one, the best of all, memory kept, solvers agree."""

from __future__ import annotations

import functools
import itertools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import synth
from synth.base.errors import InfeasibleError, UsageError
from synth.base.units import show_bytes, show_words
from synth.cli.main import main
from synth.layer.axes import AXES, DIMS, PerAxis, Tensor, strides
from synth.layer.nest import Nest
from synth.machine.file import load_machine
from synth.machine.hierarchy import Compute, Level, Machine
from synth.machine.layer_time import LayerTimer
from synth.machine.rank_groups import distinct_orders
from synth.network.file import load_network, parse_network
from synth.network.grids.grid_family import family
from synth.network.grids.grid_table import grids_of
from synth.network.grids.owned_boxes import PlacedGrid
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest
from synth.prediction.replay import replay, run
from synth.prediction.task_graph import Task
from synth.schedule.distribution import Distribution
from synth.schedule.memory import Footprints
from synth.schedule.pass_plan import PassPlan
from synth.schedule.volume import received
from synth.search.branch_and_bound import search
from synth.search.request import Request

NETWORKS = Path(__file__).resolve().parents[2] / "examples/networks"
LASSEN = load_machine("lassen")
BETA = 1e-9
LINKS = Machine("links", (Level("all", None, 0.0, BETA),), Compute(1e12, 1e11), algorithms=("ring",))
SMALL = """
network: small
input: [8, 16, 12, 12]
layers:
  - {name: a, conv2d: {out_channels: 32, kernel: 3, padding: 1}}
  - repeat: 2
    layers:
      - {name: b, conv2d: {out_channels: 32, kernel: 3, padding: 1}}
      - {name: c, conv2d: {out_channels: 32, kernel: 1}}
      - {name: s, add: {}, from: [c, entry]}
  - globalpool: {}
  - flatten: {}
  - linear: {out_features: 10}
"""


@pytest.mark.parametrize(
    ("name", "procs", "ratio"),
    [
        ("resnet50", 16, 1.0),  # stationary-w everywhere is the best
        ("resnet50", 64, 0.9675),
        ("wrn50_4", 16, 1.0),
        ("wrn50_4", 64, 0.9738),
        ("vgg16", 16, 1.0),
        ("vgg16", 64, 0.9929),
        ("cosmoflow", 16, 1.0),
        ("cosmoflow", 64, 1.0),
    ],
)
@pytest.mark.one_in(8)
def test_words_beside_the_best_single_strategy(name: str, procs: int, ratio: float) -> None:
    made = plan_network(load_network(NETWORKS / f"{name}.yaml"), NetworkRequest(procs))
    assert made.ratio == pytest.approx(ratio, abs=5e-4)
    assert made.free_edges
    for node, cost in zip(made.network.planned, made.layer_costs, strict=True):
        if node.layer is not None:  # no grid of a layer alone moves fewer words
            assert cost >= search(Request(node.layer.nest, procs)).tiling.words


CHAIN = """
network: chain
input: [4, 6, 5, 5]
layers:
  - {name: a, conv2d: {out_channels: 8, kernel: 3, padding: 1}}
  - {name: b, conv2d: {out_channels: 12, kernel: 3, padding: 1}}
  - {name: c, conv2d: {out_channels: 4, kernel: 1}}
"""


def place(placed: PlacedGrid, rank: int) -> PerAxis:
    """Where a rank stands on a grid."""
    steps = strides(placed.grid, placed.order)
    return PerAxis(*(rank // steps[axis] % parts for axis, parts in zip(AXES, placed.grid, strict=True)))


@functools.cache
def elements(nest: Nest, placed: PlacedGrid, rank: int, tensor: Tensor) -> frozenset[tuple[int, ...]]:
    """The elements (sample, channel, row, column) that a rank owns, one by one."""
    if rank >= placed.grid.size:
        return frozenset()
    box = Distribution(nest, placed.grid).owned(tensor, place(placed, rank))
    spans = dict(zip(DIMS[tensor], box, strict=True))
    channel = "c" if tensor == "In" else "k"
    return frozenset(itertools.product(*(range(*spans[dim]) for dim in ("b", channel, "h", "w"))))


def received_between(before: tuple[Nest, PlacedGrid], after: tuple[Nest, PlacedGrid], procs: int) -> int:
    """Words of a redistribution, of the rank that receives most: what it must own and does not own yet."""
    wanted = [elements(*after, rank, "In") for rank in range(procs)]
    return max(len(each - elements(*before, rank, "Out")) for rank, each in enumerate(wanted))


def layer_cost(request: NetworkRequest, nest: Nest, placed: PlacedGrid) -> float:
    """Words of the forward pass of one layer, or its seconds if Ker is there."""
    if request.machine is None:
        return received(Distribution(nest, placed.grid), PassPlan()).most()["total"]
    there = Distribution(nest, placed.grid, resident=frozenset({"Ker"}))
    timer = LayerTimer(request.machine, Footprints(there), placed.order, steps=("forward",))
    return timer.passed("forward").total


def waited(request: NetworkRequest, before: tuple[Nest, PerAxis] | None, nest: Nest, grid: PerAxis) -> float:
    """Seconds of the gather of Ker, on a ring without latency, that the layer before does not hide."""
    if request.machine is None:
        return 0.0
    ker = 4.0 * nest.taps * math.prod(-(-getattr(nest.extents, a) // getattr(grid, a)) for a in "gck")
    seconds = BETA * ker * (grid.x - 1) / grid.x
    if before is None:
        return seconds
    other, parts = before
    work = math.prod(-(-n // p) for n, p in zip(other.extents, parts, strict=True))
    return max(0.0, seconds - 2 * work * other.taps / request.machine.compute.rate)


@pytest.mark.parametrize("machine", [None, LINKS], ids=["words", "time"])
@pytest.mark.parametrize("procs", [2, 3, 4])
def test_a_plan_of_a_chain_is_the_best_of_all_combinations(procs: int, machine: Machine | None) -> None:
    """Layers are priced one grid at a time here, redistributions element by element."""
    request = NetworkRequest(procs, "time" if machine else "words", machine=machine)
    word = 4 * BETA if machine else 1  # seconds or words
    network = parse_network(CHAIN, "chain.yaml")
    nests = [node.layer.nest for node in network.planned if node.layer]
    options = [
        [
            PlacedGrid(grid, order)
            for grid in grids_of(family(nest, procs, request.balance, timed=bool(machine)))
            for order in distinct_orders(grid, request.orders)
        ]
        for nest in nests
    ]
    layers = [
        {placed: layer_cost(request, nest, placed) for placed in some}
        for nest, some in zip(nests, options, strict=True)
    ]
    edges = [
        {(a, b): word * received_between((one, a), (other, b), procs) for a in some for b in more}
        for (one, some), (other, more) in itertools.pairwise(zip(nests, options, strict=True))
    ]

    def cost(chosen: Sequence[PlacedGrid]) -> float:
        moved = sum(edge[pair] for edge, pair in zip(edges, itertools.pairwise(chosen), strict=False))
        before: tuple[Nest, PerAxis] | None = None
        for nest, placed in zip(nests, chosen, strict=False):
            moved += waited(request, before, nest, placed.grid)
            before = nest, placed.grid
        return moved + sum(layer[placed] for layer, placed in zip(layers, chosen, strict=False))

    made = plan_network(network, request)
    assert made.cost == pytest.approx(cost(made.placed_grids))
    reached = {placed: cost([placed]) for placed in options[0]}
    for index, some in enumerate(options[1:], 1):  # every path to every option
        reached = {
            other: layers[index][other]
            + min(
                reached[one]
                + edges[index - 1][one, other]
                + waited(request, (nests[index - 1], one.grid), nests[index], other.grid)
                for one in options[index - 1]
            )
            for other in some
        }
    assert made.cost == pytest.approx(min(reached.values()))


@pytest.mark.filterwarnings("ignore")
def test_solvers_agree_on_residual_edges() -> None:
    network = parse_network(SMALL, "small.yaml")
    costs = {
        m: plan_network(network, NetworkRequest(4, options_per_layer=3), m).cost
        for m in ("elimination", "mip")
    }
    assert costs["mip"] == pytest.approx(costs["elimination"])


def test_a_plan_prints_as_a_summary_and_reports_in_full() -> None:
    plan = plan_network(parse_network(SMALL, "small.yaml"), NetworkRequest(4))
    (summary,) = str(plan).splitlines()
    assert summary.startswith("small on 4 processes, forward pass: 6 layers, ")
    assert show_words(plan.cost) in summary
    assert show_bytes(plan.held_bytes) in summary
    lines = synth.report(plan).splitlines()
    rows = [line for line in lines if not line.startswith("  given: ")]
    assert [line.split()[0] for line in rows if " Out " in line or " Ker " in line or " In " in line] == [
        node.name for node in plan.network.planned
    ]
    assert sum("proven gap" in line for line in lines) == 1
    assert "optimal among the options that were looked at, by " in "\n".join(lines)


def test_what_is_proven_of_the_options_and_of_the_family() -> None:
    plan = plan_network(parse_network(SMALL, "small.yaml"), NetworkRequest(4))
    cost = plan.show_cost(plan.cost)
    best, above, mip = (
        replace(plan, lower_bound=plan.cost),
        replace(plan, lower_bound=plan.cost / 1.25),
        replace(plan, solution=replace(plan.solution, bound=plan.cost * 0.9)),
    )
    assert f"over the whole family: no plan costs less than {cost}, which this one costs" in synth.report(
        best
    )
    assert "; this one is at most 25.0% above the best\n" in synth.report(above)
    assert "\namong the options that were looked at, by " in synth.report(mip)
    assert "proven gap 10.00%" in synth.report(mip)


def test_training_counts_three_passes() -> None:
    network = parse_network(SMALL, "small.yaml")
    forward, training = (plan_network(network, NetworkRequest(8, training=t)).cost for t in (False, True))
    assert training > forward


def test_memory_is_respected_or_refused() -> None:
    network = parse_network(SMALL, "small.yaml")
    free = plan_network(network, NetworkRequest(4))
    limit = int(free.memory.most * 4 * 0.8)
    tight = plan_network(network, NetworkRequest(4, limit_bytes=limit))
    assert tight.memory.most * 4 <= limit
    with pytest.raises(InfeasibleError, match="would do"):
        plan_network(network, NetworkRequest(4, limit_bytes=2000))


@pytest.mark.parametrize("training", [False, True])
def test_an_ample_limit_changes_no_plan(training: bool) -> None:
    text = """
network: head
input: [1, 64, 64, 64]
layers:
  - {name: a, conv2d: {out_channels: 16, kernel: 3, padding: 1}}
  - {name: b, conv2d: {out_channels: 3, kernel: 3, padding: 1}}
"""
    network = parse_network(text, "head.yaml")
    free = plan_network(network, NetworkRequest(4, training=training))
    ample = plan_network(network, NetworkRequest(4, training=training, limit_bytes=1 << 40))
    assert any(placed.turned for placed in free.placed_grids)
    assert (ample.cost, ample.placed_grids) == (free.cost, free.placed_grids)


@pytest.mark.parametrize(
    ("name", "training"),
    [pytest.param(*each, marks=pytest.mark.slow) for each in (("vgg16", False), ("cosmoflow", True))],
)
def test_the_memory_that_a_refusal_names_is_enough(name: str, training: bool) -> None:
    network = load_network(NETWORKS / f"{name}.yaml")
    with pytest.raises(InfeasibleError) as fault:
        plan_network(network, NetworkRequest(16, limit_bytes=10 << 10, training=training))
    told = re.search(r"memory=(\d+) would do", str(fault.value))
    assert told is not None
    made = plan_network(network, NetworkRequest(16, limit_bytes=int(told[1]), training=training))
    assert made.memory.most * 4 == int(told[1])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--strategy 2.5D", "--strategy 2.5D is for one layer"),
        ("--explain", "--explain text is for one layer"),
        ("--stop-after grid", "--stop-after grid is for one layer"),
        ("--panels 3", "--panels 3 is for one layer"),
        ("--stationary in", "--stationary in is for one layer"),
        ("--pass backward-data", "--pass backward-data is for one layer"),
    ],
)
def test_flags_for_one_layer_are_refused(
    flags: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    assert main(["plan", str(file), "--procs", "4", *flags.split()]) == 2
    assert said in capsys.readouterr().err


def test_exact_procs_leaves_no_process_idle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    assert main(["plan", str(file), "--procs", "7", "--exact-procs", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["layers"]
    sizes = {row["name"]: math.prod(row["grid"].values()) for row in rows}
    assert {size for name, size in sizes.items() if name[0] in "abc"} == {7}


def test_contradicting_arguments() -> None:
    network = parse_network(SMALL, "small.yaml")
    with pytest.raises(UsageError, match="needs a machine"):
        plan_network(network, NetworkRequest(4, "time"))
    with pytest.raises(UsageError, match="nothing is to be planned"):
        plan_network(parse_network("input: [1, 2, 3]\nlayers:\n  - relu: {}", "n.yaml"), NetworkRequest(4))


def test_streams_overlap_and_collectives_wait_for_the_slower_rank() -> None:
    tasks = [
        Task("compute 0", "compute", (2.0, 1.0)),
        Task("gather", "network", (1.0, 1.0)),
        Task("reduce", "network", (1.0, 1.0), (0,)),
        Task("compute 1", "compute", (1.0, 1.0), (1, 2)),
    ]
    run(tasks)
    assert (tasks[1].start, tasks[1].end) == ([0, 0], [1, 1])
    assert tasks[2].start == [2, 2]  # the rank with less work waits
    assert tasks[3].end == [4, 4]


@pytest.mark.parametrize("training", [False, True])
def test_replay_agrees_with_the_plan(training: bool) -> None:
    wide = SMALL.replace("[8, 16, 12, 12]", "[32, 256, 24, 24]").replace("channels: 32", "channels: 256")
    network = parse_network(wide, "wide.yaml")  # a replay leaves out the kernels between layers
    made = plan_network(network, NetworkRequest(8, "time", training, machine=LASSEN))
    played = replay(made)
    assert played.computing <= played.seconds
    assert played.seconds == pytest.approx(made.cost, rel=0.05)
    assert all(task.end[0] >= task.start[0] >= 0 for task in played.tasks)
    trace = played.chrome_trace()
    assert {e["ph"] for e in trace["traceEvents"]} == {"M", "X"}
    assert len(played.link_bytes) == 3


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    assert main(["plan", str(file), "--procs", "4", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == "synth.network-plan/1"
    request = NetworkRequest(4, resident_weights=True)
    assert data["cost"] == plan_network(parse_network(SMALL, "small.yaml"), request).cost
    trace = tmp_path / "t.json"
    assert main(["replay", str(file), "--procs", "8", "--machine", "lassen", "--trace", str(trace)]) == 0
    assert json.loads(trace.read_text())["traceEvents"]
    file.write_text(SMALL.replace("conv2d", "conf2d"))
    assert main(["plan", str(file), "--procs", "4"]) == 3
    assert "layer kind conf2d is unknown" in capsys.readouterr().err
