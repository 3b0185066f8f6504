"""The seconds of a step: closed forms of data parallelism, and plans never slower than strategies."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from flat_machine import ALPHA, BANDWIDTH, BETA, RATE, flat
from four_layers import CHAIN, OPERATIONS, WORDS

from synth.base.errors import InputError, UsageError
from synth.base.user_files import digest_of
from synth.layer.axes import TENSORS, PerAxis
from synth.machine.file import load_machine
from synth.machine.hierarchy import Compute, Level, Machine
from synth.machine.layer_time import LayerTimer, along
from synth.machine.rank_groups import ORDERS
from synth.network.file import parse_network
from synth.network.graph import Network
from synth.network.grids.layer_class import LayerClass
from synth.network.grids.owned_boxes import PlacedGrid
from synth.network.plan.plan import NetworkPlan, SingleStrategy
from synth.network.plan.plan_json import parse_network_plan, to_json
from synth.network.plan.step_words import moved_words
from synth.network.planner.options import LayerOption
from synth.network.planner.planner import _NetworkPlanner, plan_network
from synth.network.request import NetworkRequest
from synth.network.solve import Solution
from synth.network.step_time.between import Between, between
from synth.network.step_time.buckets import LARGEST, SMALLEST, Gradient, bucket_bytes, exposed
from synth.network.step_time.layer_times import PANELS, layer_times
from synth.network.step_time.step import StepSeconds
from synth.parallel.layer_plans import LayerPlans
from synth.prediction.replay import replay
from synth.schedule.distribution import Distribution
from synth.schedule.memory import Footprints

PROCS = 8
RESIDUAL = """
network: residual
input: [16, 8, 16, 16]
layers:
  - {name: a, conv2d: {out_channels: 32, kernel: 3, padding: 1}}
  - batchnorm: {}
  - relu: {}
  - repeat: 2
    layers:
      - {name: b, conv2d: {out_channels: 32, kernel: 3, padding: 1}}
      - batchnorm: {}
      - {name: c, conv2d: {out_channels: 32, kernel: 1}}
      - {name: s, add: {}, from: [c, entry]}
  - globalpool: {}
  - flatten: {}
  - linear: {out_features: 10}
"""
BRANCHES = """
network: branches
input: [2, 4, 32, 32]
layers:
  - {name: a, conv2d: {out_channels: 16, kernel: 3, padding: 1}}
  - {name: p, pool: {kernel: 2, stride: 2}}
  - {name: b, conv2d: {out_channels: 32, kernel: 3, padding: 1}}
  - {name: u, conv2d: {out_channels: 16, kernel: 2, stride: 2, transposed: true}}
  - {name: j, cat: {}, from: [a, u]}
  - {name: e, conv2d: {out_channels: 8, kernel: 3, padding: 1}}
  - {name: n, groupnorm: {}}
"""


def data_parallel(machine: Machine, whole: bool) -> float:
    """Seconds of a step of CHAIN, samples split over all ranks."""
    network = parse_network(CHAIN, "four.yaml")
    request = NetworkRequest(PROCS, "time", True, machine=machine, saves=frozenset(TENSORS))
    placed = [PlacedGrid(PerAxis(b=PROCS))]
    rows = [layer_times(LayerClass.of(node), request, placed) for node in network.planned]
    step = StepSeconds(machine, rows, [Between()] * 4, [True] * 4, True, True)
    return step.seconds([0] * 4, [whole] * 4)


@pytest.mark.parametrize("beta", [1e-11, BETA, 1e-9, 1e-8])
@pytest.mark.parametrize("overlap", [0.0, 0.5, 1.0])
def test_whole_weights_are_data_parallelism_as_ddp_has_it(beta: float, overlap: float) -> None:
    """Computing, the update, and the last bucket, beside which nothing computes.

    Of the slowest links buckets are so small that the last layer fills one.
    """
    one_pass = [64 * each / PROCS / RATE for each in OPERATIONS]
    update = 8 * 4 * sum(WORDS) / BANDWIDTH
    full = bucket_bytes(flat(beta), PROCS)
    assert (full < 4 * sum(WORDS)) == (beta == 1e-8)
    each = 2 * (PROCS - 1) * (ALPHA + full / PROCS * beta) * 4 / full  # seconds per word
    late = each * sum(WORDS)
    if beta == 1e-8:
        first, last = each * WORDS[-1], each * sum(WORDS[:-1])
        late = max(last, first + last - overlap * 2 * sum(one_pass[:-1]))
    found = data_parallel(flat(beta, overlap), whole=True)
    assert found == pytest.approx(3 * sum(one_pass) + update + late)


def test_buckets_are_small_where_latency_is() -> None:
    """Latencies are a twentieth of the seconds of a bucket, within bounds."""
    assert [bucket_bytes(flat(beta), PROCS) for beta in (1e-11, 1e-6)] == [LARGEST, SMALLEST]
    assert bucket_bytes(flat(1e-9), PROCS) == pytest.approx(1_600_000, abs=1)
    machine = flat(1e-9)
    latency, per_byte = PROCS * ALPHA, 1_600_000 * 1e-9
    assert latency == pytest.approx(0.05 * per_byte)
    assert bucket_bytes(machine, 1) == bucket_bytes(None, PROCS) == LARGEST


def test_ranks_that_share_cores_compute_faster_while_others_are_idle() -> None:
    level = Level("node", 8, ALPHA, BETA)
    machine = Machine("two cores", (level,), Compute(RATE, BANDWIDTH, crowd=4.0), algorithms=("ring",))
    assert [machine.crowded(float(busy)) for busy in (1, 2, 4, 8)] == [0.25, 0.25, 0.5, 1.0]
    kind = LayerClass.of(parse_network(CHAIN, "four.yaml").planned[1])
    request = NetworkRequest(PROCS, "time", True, machine=machine, saves=frozenset(TENSORS))
    placed = [PlacedGrid(PerAxis(b=parts)) for parts in (1, 2, 4, 8)]
    times = layer_times(kind, request, placed)
    alone = 64 * OPERATIONS[1] / RATE
    expected = [alone / 4, alone / 2 / 4, alone / 4 / 2, alone / 8]
    assert times.computing_forward == pytest.approx(expected)
    assert LayerTimer(machine, Footprints(Distribution(kind.nest, PerAxis(b=2))), placed[1].order).computing(
        "forward"
    ) == (pytest.approx(expected[1]))


def test_a_head_is_cut_by_input_rows_where_that_is_faster() -> None:
    """Of 64 channels and 2 filters few words of Out are shared. Slow links; a step holds gradients, too."""
    head = """
network: head
input: [1, 16, 128, 128]
layers:
  - {name: a, conv2d: {out_channels: 64, kernel: 3, padding: 1}}
  - {name: b, conv2d: {out_channels: 2, kernel: 5, padding: 2}}
"""
    network, machine = parse_network(head, "head.yaml"), flat(1e-9)
    for request in (
        NetworkRequest(4, "time", machine=machine, resident_weights=True, exact_procs=True),
        NetworkRequest(4, "time", training=True, machine=machine, exact_procs=True),
    ):
        plan = plan_network(network, request)
        by_outputs = _NetworkPlanner(network, request, "auto", lambda text: None, input_rows=False).run()
        assert plan.placed_grids[1].turned
        assert not plan.placed_grids[0].turned  # with more filters than channels
        assert plan.lower_bound <= plan.cost < by_outputs.cost
        assert moved_words(plan) < moved_words(by_outputs)
        assert to_json(plan)["layers"][1]["turned"] == list(plan.placed_grids[1].turned)


def test_a_bucket_starts_when_its_last_gradient_is_there() -> None:
    """Six layers; the backward pass ends with the first. Links carry one bucket at a time."""
    half, free = Gradient(1.0, 0.0, 0.5), [2.0] * 5
    assert exposed([half] * 2 + [None] * 4, free) == 2.0  # ready at the end
    assert exposed([None] * 4 + [half] * 2, free) == 0.0  # four layers compute for 8 s
    assert exposed([None] * 4 + [half] * 2, [0.1] * 5) == pytest.approx(1.6)
    assert exposed([half, None, None, None, half, half], free) == 1.0  # the second bucket is half full
    other = Gradient(3.0, 1.0, 0.1)
    assert exposed([other, None, half, None, half, None], free) == 3.0  # another group, another bucket
    assert exposed([other, None, half, None, half, None], [0.0] * 5) == 5.0
    assert exposed([None] * 6, free) == 0.0
    full = Gradient(1.0, 0.0, 1.0)
    assert exposed([half, full, None, None, None, half], free) == 2.0  # both halves, at the end
    assert exposed([None, full, None, None, half, half], free) == 0.0


@pytest.mark.parametrize("beta", [1e-11, BETA, 1e-9, 1e-8])
@pytest.mark.parametrize("overlap", [0.0, 0.5, 1.0])
def test_shards_are_data_parallelism_as_fsdp_has_it(beta: float, overlap: float) -> None:
    """Every gather and every sum may hide behind one neighbour; the first layer's have none."""
    one_pass = [64 * each / PROCS / RATE for each in OPERATIONS]
    moves = [(PROCS - 1) * (ALPHA + 4 * words / PROCS * beta) for words in WORDS]
    exposed = 2 * moves[0]
    for move, before in zip(moves[1:], one_pass, strict=False):
        exposed += max(0.0, move - overlap * before) + max(0.0, move - overlap * 2 * before)
    update = 8 * 4 * sum(WORDS) / PROCS / BANDWIDTH
    assert data_parallel(flat(beta, overlap), whole=False) == pytest.approx(
        3 * sum(one_pass) + update + exposed
    )


@pytest.mark.parametrize("beta", [1e-11, BETA])
def test_a_replay_of_whole_weights_sends_gradients_in_buckets(beta: float) -> None:
    """The moves of Ker are the parts of layers in buckets, which travel while the layers before compute."""
    plan = planned(CHAIN, flat(beta, 1.0), PROCS, axes="b", margin=0.99)
    assert plan.whole == (True,) * 4
    played = replay(plan)
    moves = [task for task in played.tasks if task.stream == "network" and " Ker " in task.name]
    assert [task.name for task in moves] == [f"{layer} Ker bucket" for layer in "dcba"]
    per_byte = 2 * (PROCS - 1) * (ALPHA / bucket_bytes(flat(beta), PROCS) + beta / PROCS)
    assert [task.seconds[0] for task in moves] == pytest.approx([4 * w * per_byte for w in WORDS[::-1]])
    assert played.computing == pytest.approx(3 * sum(64 * each / PROCS / RATE for each in OPERATIONS))
    least = max(played.computing + moves[-1].seconds[0], sum(task.seconds[0] for task in moves))
    assert least <= played.seconds * (1 + 1e-9)
    assert played.seconds <= played.computing + sum(task.seconds[0] for task in moves) * (1 + 1e-9)


@pytest.mark.parametrize("name", ["lassen", "abci-nccl"])
def test_all_grids_at_once_take_what_each_takes_alone(name: str) -> None:
    """The schedule trees of `LayerTimer` price the same passes one grid at a time."""
    machine = load_machine(name)
    node = parse_network(CHAIN, "four.yaml").planned[2]
    kind = LayerClass.of(node)
    request = NetworkRequest(16, "time", machine=machine, resident_weights=True)
    grids = [PerAxis(b=16), PerAxis(b=2, c=2, k=4), PerAxis(c=16), PerAxis(h=2, w=2, k=4), PerAxis(b=4, k=4)]
    # groups whose number divides no channels cut rows, too, and then a halo is smaller
    grids += [
        PerAxis(h=3, c=4),
        PerAxis(b=3, k=5),
        PerAxis(h=3, k=3),
        PerAxis(b=2, h=2, k=3),
        PerAxis(w=2, k=7),
    ]
    placed = [
        PlacedGrid(grid, order, turned)
        for grid in grids
        for order in ORDERS
        for turned in ((), ("h",), ("h", "w"))
        if all(getattr(grid, axis) > 1 and axis in kind.nest.turnable for axis in turned)
    ]
    found = layer_times(kind, request, placed).forward
    for each, seconds in zip(placed, found, strict=True):
        there = Distribution(kind.nest.turn(each.turned), each.grid, resident=frozenset({"Ker"}))
        timer = LayerTimer(machine, Footprints(there), each.order, steps=("forward",))
        alone = min(
            timer.passed("forward", tensor, panels).total
            for tensor in TENSORS
            for panels in PANELS
            if panels <= (timer.most_panels(tensor) if along(tensor) == "b" else timer.streams(tensor))
        )
        assert seconds == pytest.approx(alone), each


def test_norms_exchange_statistics_along_the_ranks_that_share_a_channel() -> None:
    network = parse_network(RESIDUAL, "residual.yaml")
    placed = [PlacedGrid(PerAxis(b=8)), PlacedGrid(PerAxis(b=4, h=2)), PlacedGrid(PerAxis(k=8))]
    kind = LayerClass.of(network.planned[0])
    seconds = {}
    for statistics in ("global", "local"):
        request = NetworkRequest(PROCS, "time", True, machine=flat(), batch_norm=statistics)
        seconds[statistics] = layer_times(kind, request, placed).norm.tolist()
    words = 2 * 32 * 4 * BETA  # two per channel from each of the others, which send at once
    assert seconds["global"] == pytest.approx([ALPHA + 7 * words, ALPHA + 7 * words, 0.0])
    assert seconds["local"] == pytest.approx([0.0, ALPHA + words, 0.0])
    # with calls that take time; a ring is faster where they take more than a latency
    for call, expected in ((ALPHA / 4, ALPHA + 7 * (ALPHA / 4 + words)), (2 * ALPHA, 7 * (ALPHA + words))):
        machine = replace(flat(), compute=replace(flat().compute, overhead=call))
        request = NetworkRequest(PROCS, "time", True, machine=machine)
        assert layer_times(kind, request, placed[:1]).norm.tolist() == pytest.approx([expected])


def test_ranks_compute_for_exchanges_of_statistics() -> None:
    """What a machine file calls `shared` is added to what travels."""
    machine = replace(flat(), compute=replace(flat().compute, shared=1e-3))
    request = NetworkRequest(PROCS, "time", True, machine=machine)
    kind = LayerClass.of(parse_network(CHAIN, "four.yaml").planned[1])
    placed = [PlacedGrid(PerAxis(b=PROCS)), PlacedGrid(PerAxis(k=PROCS))]
    words = 2 * 32 * 4 * BETA
    assert layer_times(kind, request, placed).norm.tolist() == pytest.approx([ALPHA + 7 * words + 1e-3, 0.0])


def test_layers_that_exchange_words_take_calls() -> None:
    """What a machine file calls `exchange`: in each pass, and to gather Ker and to sum dKer."""
    kind, call = LayerClass.of(parse_network(CHAIN, "four.yaml").planned[1]), 1e-3
    placed = [PlacedGrid(each) for each in (PerAxis(b=PROCS), PerAxis(k=PROCS), PerAxis(h=2), PerAxis())]
    found = []
    for exchange in (0.0, call):
        machine = replace(flat(), compute=replace(flat().compute, exchange=exchange))
        found.append(layer_times(kind, NetworkRequest(PROCS, "time", True, machine=machine), placed))
    more = {name: getattr(found[1], name) - getattr(found[0], name) for name in found[0]._fields}
    assert more["computing_forward"] == pytest.approx([0.0, call, call, 0.0])
    assert more["computing_backward"] == pytest.approx([0.0, call, call, 0.0])
    assert more["update"] == pytest.approx([2 * call, 0.0, 2 * call, 0.0])
    assert more["update_whole"] == pytest.approx([0.0] * 4)


def test_a_kernel_that_writes_dker_has_a_rate_of_its_own() -> None:
    """In times of one layer, and of many grids; without the rate, that of Ker holds."""
    kind = LayerClass.of(parse_network(CHAIN, "four.yaml").planned[1])
    placed, seconds = [PlacedGrid(PerAxis(b=PROCS)), PlacedGrid(PerAxis(k=2, c=2))], {}
    for gradients in (None, 1e6):
        compute = replace(flat().compute, weights=4e6, gradients=gradients)
        machine = replace(flat(), compute=compute)
        request = NetworkRequest(PROCS, "time", True, machine=machine)
        found = layer_times(kind, request, placed)
        timer = LayerTimer(machine, Footprints(Distribution(kind.nest, placed[1].grid)), placed[1].order)
        assert timer.computing("forward") == pytest.approx(found.computing_forward[1])
        both = timer.computing("backward-data") + timer.computing("backward-filter")
        assert both == pytest.approx(found.computing_backward[1])
        seconds[gradients] = found
    assert seconds[1e6].computing_forward == pytest.approx(seconds[None].computing_forward)
    words = kind.nest.words["Ker"] * np.array([1, 1 / 4])
    more = seconds[1e6].computing_backward - seconds[None].computing_backward
    assert more == pytest.approx(4 * words * (1 / 1e6 - 1 / 4e6))


def test_every_step_of_a_network_is_dispatched_once_per_pass() -> None:
    network = parse_network(CHAIN.replace("- {name: b", "- relu: {}\n  - {name: b"), "four.yaml")
    seconds = []
    for dispatch in (0.0, 1e-2):
        machine = replace(flat(BETA, 0.0), compute=replace(flat().compute, dispatch=dispatch))
        request = NetworkRequest(PROCS, "time", True, machine=machine, margin=0.9)
        seconds.append(plan_network(network, request).cost)
    assert seconds[1] - seconds[0] == pytest.approx(2 * 5e-2)  # four convolutions and a relu


def test_what_follows_a_layer_counts_with_it() -> None:
    network = parse_network(RESIDUAL, "residual.yaml")
    found = between(network, PROCS, flat())
    first = found[network.planned[0].name]
    assert (first.norms, first.touched_forward, first.touched_backward) == (1, 3 + 2, 5 + 3)
    assert (first.kernels_forward, first.kernels_backward) == (2, 2)
    joined = found[next(node.name for node in network.planned if node.name.startswith("c"))]
    assert (joined.norms, joined.touched_forward, joined.touched_backward) == (0, 3, 0)


def planned(text: str, machine: Machine, procs: int, **changes: object) -> NetworkPlan:
    request = NetworkRequest(procs, "time", True, machine=machine, whole_weights=True)
    network: Network = parse_network(text, "n.yaml")
    return plan_network(network, replace(request, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "machine", "procs", "whole"),
    [
        (CHAIN, "lassen", 16, True),
        (CHAIN, "flat", 6, False),
        (RESIDUAL, "lassen", 8, True),
        (RESIDUAL, "a100", 6, False),
        (RESIDUAL, "abci-nccl", 2, True),
        (BRANCHES, "a100", 16, True),
        (BRANCHES, "lassen", 6, False),
        (BRANCHES, "flat", 4, True),
    ],
)
@pytest.mark.one_in(2)
def test_a_plan_is_never_slower_than_a_strategy(text: str, machine: str, procs: int, whole: bool) -> None:
    plan = planned(text, flat() if machine == "flat" else load_machine(machine), procs, whole_weights=whole)
    usable = {single.name: single.cost for single in plan.single_strategies if single.cost is not None}
    assert {"stationary-w", "3D"} <= usable.keys()
    assert plan.cost <= min(usable.values()) * (1 + 1e-9)
    assert plan.lower_bound <= plan.cost * (1 + 1e-9)
    assert plan.timed is not None
    moved = sum(plan.edge_costs.values())
    assert plan.cost == pytest.approx(sum(each.total for each in plan.timed.layers) + moved)


def test_a_faster_strategy_is_taken_over_a_choice_for_prices() -> None:
    """A solution is replaced by the choice of a strategy that is faster, and by no other."""
    plan = planned(CHAIN, flat(), 4)
    planner = _NetworkPlanner(plan.network, plan.request, "auto", lambda text: None)
    grids = [PlacedGrid(PerAxis(b=4)), PlacedGrid(PerAxis(k=4))]
    table = [[LayerOption(placed, 1.0) for placed in grids] for _ in planner.classes]
    slow = Solution((1,) * 4, 2.0, 1.0, "chain")
    fast, slower = (SingleStrategy(n, cost, "", (grids[0],) * 4) for n, cost in (("2D", 1.5), ("data", 2.5)))
    found = planner._or_single(table, slow, [slower, fast])
    assert (found.chosen, found.cost) == ((0,) * 4, 1.5)
    assert planner._or_single(table, slow, [slower]) == slow


def test_of_plans_within_the_margin_the_one_that_moves_fewer_words_is_taken() -> None:
    """Here thin blocks seem faster by a little, so the fastest plan cuts channels and moves more words."""
    thin = replace(flat(1e-12), compute=replace(flat().compute, narrow=((17, 1.5 * RATE),)))
    free = planned(CHAIN, thin, 2)
    data = next(single for single in free.single_strategies if single.name == "data")
    assert data.cost is not None
    gain = 1 - free.cost / data.cost
    assert gain > 0.01
    for margin, plain in ((0.9 * gain, False), (1.1 * gain, True)):
        plan = planned(CHAIN, thin, 2, margin=margin)
        assert all(each.grid == PerAxis(b=2) for each in plan.placed_grids) == plain
        assert plan.lower_bound <= plan.cost
        assert (moved_words(plan) < moved_words(free)) == plain
    assert all(plan.whole)


def test_whole_weights_are_taken_where_they_are_faster_and_fit() -> None:
    plan = planned(CHAIN, flat(), 4)
    shards = planned(CHAIN, flat(), 4, whole_weights=False)
    assert plan.timed is not None
    assert any(plan.timed.whole)
    assert plan.cost < shards.cost
    assert plan.used_words > shards.used_words
    tight = planned(CHAIN, replace(flat(), limit_bytes=shards.used_words * 4), 4)
    assert tight.timed is not None
    assert sum(tight.timed.whole) < sum(plan.timed.whole)


def test_a_plan_file_says_which_weights_are_whole() -> None:
    plan = planned(CHAIN, flat(), 4)
    data = to_json(plan)
    assert parse_network_plan(json.dumps(data), "plan.json") == data
    assert tuple(row["whole"] for row in data["layers"]) == plan.whole
    assert {row["words"]["ker"] == 0 for row in data["layers"] if row["whole"]} == {True}
    kept = LayerPlans.read(data)
    assert kept.whole == LayerPlans.of(plan).whole
    layers = [node.layer for node in plan.network.planned if node.layer]
    for layer, whole, placed in zip(layers, plan.whole, plan.placed_grids, strict=True):
        assert kept.plan(layer, 4).resident == (frozenset({"Ker"}) if whole else frozenset())
        assert kept.plan(layer, 4).grid == placed.grid
    for wrong, said in (
        ({"whole": 1}, r"layers\[0\].whole: expected `bool`, got `int`"),
        ({"words": {"in": 0, "ker": 5, "out": 0}}, "words.ker is 5, but whole weights do not move"),
    ):
        edited = json.loads(json.dumps(data))
        edited["layers"][0].update(wrong)
        with pytest.raises(InputError, match=said):
            parse_network_plan(json.dumps({**edited, "digest": digest_of(edited)}), "plan.json")
    earlier = to_json(planned(CHAIN, flat(), 4, whole_weights=False))
    for row in earlier["layers"]:
        del row["whole"]  # files of before
    earlier["digest"] = digest_of(earlier)
    assert not any(row["whole"] for row in parse_network_plan(json.dumps(earlier), "p.json")["layers"])
    with pytest.raises(UsageError, match="whole weights are of training for time"):
        NetworkRequest(4, training=True, whole_weights=True)


def test_whole_weights_count_in_the_memory_of_a_step_and_in_its_limit() -> None:
    plan = planned(CHAIN, flat(), 4)
    shards = planned(CHAIN, flat(), 4, whole_weights=False)
    more = sum(words - words // 4 for words, whole in zip(WORDS, plan.whole, strict=True) if whole)
    assert plan.memory.weights[0] == shards.memory.weights[0] + more
    held = shards.memory.most * 4
    assert plan.memory.most * 4 > held
    limited = planned(CHAIN, flat(), 4, limit_bytes=held)
    assert not any(limited.whole)
    assert limited.placed_grids == shards.placed_grids
