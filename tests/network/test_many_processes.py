"""Networks on a hundred thousand processes: words of layers are exact, and the work is bounded."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
from counted_work import at_most
from random_networks import distinct_layers

from synth.network.edges import edge_prices
from synth.network.file import parse_network
from synth.network.grids.layer_class import LayerClass
from synth.network.grids.owned_boxes import MAX_EXACT_RANKS, OwnedBoxes, PlacedGrid
from synth.network.planner.candidates import GridCandidates
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest
from synth.schedule import shard_cuts

PROCS = 100_000


def chain(layers: int) -> str:
    """A network of so many layers, no two alike."""
    rows = [f"  - {{conv2d: {{out_channels: {64 + each}, kernel: 3, padding: 1}}}}" for each in range(layers)]
    return "\n".join(["network: chain", "input: [256, 64, 56, 56]", "layers:", *rows])


def test_words_of_a_layer_are_those_of_the_rank_with_most_of_all() -> None:
    procs = 40_000
    assert procs > MAX_EXACT_RANKS
    network = parse_network(chain(2), "chain.yaml")
    kind, request = LayerClass.of(network.planned[1]), NetworkRequest(procs, training=True)
    candidates = GridCandidates(kind, request)
    for _, placed in candidates.best(3):
        ranks = np.arange(procs, dtype=np.int32)[None]
        boxes = OwnedBoxes(kind.nest.turn(placed.turned), [PlacedGrid(placed.grid)], procs, ranks=ranks)
        words, _ = boxes.words(kind.passes(True), True, request.saves)
        assert candidates.cost(placed) == words[0]


def test_arrays_find_the_shards_that_a_walk_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(1)
    for _ in range(300):
        members = chance.choice([PROCS, 65536, 720, 5040, 1000, 96, 7, 3 * 2**10])
        sizes = [chance.choice([1, 2, 3, 56, 57, 256, 1000, 2**20]) for _ in range(chance.randint(1, 4))]
        extents = tuple(
            (dim, size, max(1, size - chance.randint(0, 1))) for dim, size in zip("cgbh", sizes, strict=False)
        )
        found = []
        for many in (2, 10**9):
            monkeypatch.setattr(shard_cuts, "MANY", many)
            found.append(shard_cuts.shard_cut.__wrapped__(members, extents))
        assert found[0] == found[1], (members, extents)


def test_layers_on_many_processes_take_bounded_work() -> None:
    """Before, their words were counted on 8190 ranks of every grid."""
    network = parse_network(chain(3), "chain.yaml")
    with at_most(12_000_000):
        plan = plan_network(network, NetworkRequest(PROCS, training=True))
    assert len(plan.placed_grids) == len(network.nodes)


@pytest.mark.slow
def test_30_layers_are_planned_within_a_minute_of_processor_time() -> None:
    began = time.process_time()
    plan_network(parse_network(chain(30), "chain.yaml"), NetworkRequest(PROCS, training=True))
    assert time.process_time() - began < 60


@pytest.mark.slow
def test_distinct_layers_are_planned_in_linear_time() -> None:
    """Seconds per layer differ between machines; that twice the layers take twice the time does not."""
    seconds = []
    for count in (250, 500):
        network, began = parse_network(distinct_layers(count), "distinct.yaml"), time.process_time()
        plan = plan_network(network, NetworkRequest(4096))
        seconds.append(time.process_time() - began)
        assert len(set(plan.layer_classes)) == count
    assert seconds[1] < 3 * seconds[0]


def test_what_is_not_kept_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Boxes of few classes are held: a plan does not depend on it."""
    network, request = parse_network(chain(6), "chain.yaml"), NetworkRequest(64, training=True)
    plan = plan_network(network, request)
    monkeypatch.setattr(edge_prices, "HELD_BYTES", 0)
    made = plan_network(network, request)
    assert (made.cost, made.placed_grids) == (plan.cost, plan.placed_grids)
