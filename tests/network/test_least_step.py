"""The lower bound of a step counts no redistribution that is not needed, and takes the best of a forest."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from flat_machine import flat

from synth.layer.axes import PerAxis
from synth.layer.layer import Layer
from synth.network.edges.moved_words import moved_words
from synth.network.edges.user_rows import windows_with_gaps
from synth.network.file import parse_network
from synth.network.forest import LazyTable, least_of_forest, least_sum
from synth.network.grids.box_rows import Array
from synth.network.grids.grid_family import family
from synth.network.grids.grid_table import grids_of
from synth.network.grids.owned_boxes import OwnedBoxes, PlacedGrid
from synth.network.planner.planner import _NetworkPlanner
from synth.network.request import NetworkRequest
from synth.network.solve import Table
from synth.network.step_time.choice import box_sizes, least_moved

POOLED = """
network: pooled
input: [4, 4, 32, 32]
layers:
  - {name: a, conv2d: {out_channels: 32, kernel: 5, padding: 2}}
  - {name: p, pool: {kernel: 3, stride: 2, padding: 1}}
  - {name: b, conv2d: {out_channels: 32, kernel: 5, padding: 2}}
"""


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (Layer.conv2d((8, 6, 14, 14), 24, 3, padding=1), Layer.conv2d((8, 24, 14, 14), 10, 3, padding=1)),
        (Layer.conv2d((3, 8, 16, 16), 12, 3, groups=4), Layer.conv2d((3, 12, 14, 14), 6, 1, groups=2)),
        (Layer.conv2d((4, 8, 16, 16), 16, 1), Layer.conv2d((4, 16, 16, 16), 16, 3, padding=1, groups=16)),
    ],
    ids=str,
)
def test_redistributions_move_at_least_the_bound(source: Layer, target: Layer) -> None:
    rng, procs = random.Random(0), 24
    grids = [
        rng.sample(some, min(12, len(some)))
        for some in (grids_of(family(layer.nest, procs, 0.5)) for layer in (source, target))
    ]
    before, after = (
        OwnedBoxes(layer.nest, list(map(PlacedGrid, some)), procs)
        for layer, some in zip((source, target), grids, strict=True)
    )
    there, again = moved_words(before.rows("Out"), after.rows("In"), windows_with_gaps(target.nest))
    sizes = box_sizes(source.nest, grids[0], "Out"), box_sizes(target.nest, grids[1], "In")
    least = least_moved(*sizes, source.nest.words["Out"], False)
    both = least_moved(*sizes, source.nest.words["Out"], True)
    assert (least <= there).all()
    assert (both <= there + again).all()
    assert (both > 0).any()
    same = box_sizes(source.nest, [PerAxis(b=2), PerAxis(h=2)], "Out")
    assert (np.diag(least_moved(same, same, source.nest.words["Out"], True)) == 0).all()


def test_the_best_of_a_forest() -> None:
    """Against all choices; the edge that closes a cycle is left out."""
    rng = np.random.default_rng(1)
    costs = [rng.random(3) for _ in range(6)]
    edges = {pair: rng.random((3, 3)) for pair in ((0, 1), (1, 2), (1, 3), (4, 5), (2, 3))}
    tree = {pair: table for pair, table in edges.items() if pair != (2, 3)}
    totals = {
        chosen: sum(cost[at] for cost, at in zip(costs, chosen, strict=True))
        + sum(table[chosen[one], chosen[other]] for (one, other), table in tree.items())
        for chosen in itertools.product(range(3), repeat=6)
    }
    least, more = least_of_forest(costs, edges)
    assert least == pytest.approx(min(totals.values()))
    alone, _ = least_of_forest(costs, {})
    assert alone == pytest.approx(sum(cost.min() for cost in costs))
    for node, option in itertools.product((0, 2, 3), range(3)):  # of one tree
        with_it = min(total for chosen, total in totals.items() if chosen[node] == option)
        assert more[node][option] == pytest.approx(with_it - least)


def test_the_least_sum_looks_at_few_pairs() -> None:
    rng, options = np.random.default_rng(0), 300
    costs = [np.sort(rng.random(options)) for _ in range(6)]
    tables = {ends: rng.random((options, options)) / 8 for ends in ((0, 1), (2, 1), (1, 3), (0, 3), (4, 5))}
    asked = []

    def lazy(table: Table) -> LazyTable:
        def at(some: Array, others: Array) -> Table:
            asked.append(len(some) * len(others))
            return table[np.ix_(some, others)]

        return LazyTable((options, options), at)

    edges = {ends: lazy(table) for ends, table in tables.items()}
    assert least_sum(costs, edges) == pytest.approx(least_of_forest(costs, tables)[0], rel=1e-12)
    assert 0 < sum(asked) < 2 * options**2  # of four edges


def test_redistributions_raise_the_bound_of_a_step() -> None:
    """Cut by channels a pooling needs no halo, but the layer before would send it nearly all its output."""
    network = parse_network(POOLED, "pooled.yaml")
    planner = _NetworkPlanner(
        network, NetworkRequest(8, "time", True, machine=flat(1e-9)), "auto", lambda text: None
    )
    plan = planner.run()
    free = planner.steps.least(network, lambda words, size, back: np.zeros_like(words), plan.cost)
    assert free < plan.lower_bound <= plan.cost * (1 + 1e-9)
