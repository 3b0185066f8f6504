"""Candidates counted on few ranks, and in the order of lower bounds, are those of an exhaustive count."""

from __future__ import annotations

import random

import numpy as np
import pytest

from synth.layer.axes import TENSORS, PerAxis
from synth.layer.layer import Layer
from synth.network.grids.grid_table import grids_of, parts_of
from synth.network.grids.layer_class import LayerClass
from synth.network.grids.owned_boxes import OwnedBoxes, PlacedGrid
from synth.network.grids.word_bounds import least_words
from synth.network.planner import counted_grids
from synth.network.planner.candidates import GridCandidates, search_together
from synth.network.planner.counted_grids import count_words, see_words
from synth.network.request import NetworkRequest
from synth.schedule.distribution import Distribution

LAYERS = (
    Layer.conv2d((8, 16, 14, 14), 32, 3, padding=1),  # uneven blocks of equal rows of In
    Layer.conv2d((3, 22, 16, 16), 30, 5, padding=2, groups=2),
    Layer.conv2d((4, 48, 28, 28), 7, 3, stride=2, padding=1),
    Layer.conv2d((8, 3, 32, 32), 16, 7, padding=3),
    Layer.conv2d((3, 16, 32, 32), 16, 3, padding=2, dilation=2),
    Layer.conv2d((16, 64, 7, 7), 64, 2, stride=2),
    Layer.conv2d((2, 6, 13, 13), 10, 1),
)
REQUESTS = (
    NetworkRequest(60, balance=0.4),
    NetworkRequest(64, training=True, balance=0.2),
    NetworkRequest(30, training=True, saves=frozenset(TENSORS), balance=0.5),
    NetworkRequest(96, resident_weights=True, balance=0.3),
)


def _exact(candidates: GridCandidates, grids: list[PerAxis], turned: tuple[str, ...] = ()) -> list[int]:
    """Words counted on all ranks."""
    request, kind = candidates.request, candidates.layer_class
    nest = kind.nest.turn(turned)  # type: ignore[arg-type]
    boxes = OwnedBoxes(nest, [PlacedGrid(grid) for grid in grids], request.procs, request.resident)
    found: list[int] = boxes.words(kind.passes(request.training), kind.weighted, request.saves)[0].tolist()
    return found


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.one_in(6)
def test_bounds_are_below_the_words_of_all_ranks(layer: Layer, transposed: bool) -> None:
    rng, ratios = random.Random(str(layer)), list[float]()
    for request in REQUESTS:
        kind = LayerClass(layer.nest, True, tuple(layer.input[2:]) if transposed else ())
        candidates = GridCandidates(kind, request)
        grids = rng.sample(grids_of(candidates.grids.rows), min(12, len(candidates.grids.rows)))
        words = _exact(candidates, grids)
        counted = candidates.counted
        assert counted_grids._counted([(counted, (), grids)]) == [words]
        least = least_words(kind.nest, kind, request, parts_of(np.array(grids)))
        assert (least <= words).all()
        assert (least >= [np.floor(candidates.grids.bound(grid)) for grid in grids]).all()
        seen = see_words({counted: grids})[counted]
        count_words({counted: grids})
        assert all(seen[grid] <= counted.words[grid] for grid in grids)
        counted.know(np.arange(counted.grids.size))
        ratios += [count / bound for count, bound in zip(words, least.tolist(), strict=True) if bound]
        for grid in grids:
            fewest = dict(zip(grids, words, strict=True))[grid]
            for turned, cut in counted.of_turned.items():
                if not turned or not all(counted.may_turn(axis, getattr(grid, axis)) for axis in turned):
                    continue
                (count,) = _exact(candidates, [grid], turned)
                assert counted_grids._counted([(counted, turned, [grid])]) == [[count]]
                assert counted._least_turned[turned].at([candidates.grids.places[grid]])[0] <= count
                assert (
                    cut[grid].shard_cuts == Distribution(cut.nest, grid, resident=request.resident).shard_cuts
                )
                assert counted._works[turned][candidates.grids.places[grid]] == (
                    cut[grid].load <= kind.nest.extents.blocks(grid).size
                )
                if cut[grid].load <= kind.nest.extents.blocks(grid).size:
                    fewest = min(fewest, count)
            assert candidates.cost(candidates.cut(PlacedGrid(grid))) == fewest
    assert np.median(ratios) < 1.25


@pytest.mark.parametrize("layer", LAYERS[:4], ids=str)
@pytest.mark.one_in(12)
def test_the_best_grids_are_those_of_an_exhaustive_count(layer: Layer) -> None:
    """Of equal words, the grid that comes first among all."""
    for request in REQUESTS[:2]:
        kind = LayerClass(layer.nest, True)
        candidates, counted, together = (GridCandidates(kind, request) for _ in range(3))
        grids = grids_of(counted.grids.rows)
        counted.placed(grids)
        costs = {grid: counted.cost(counted.cut(PlacedGrid(grid))) for grid in grids}
        selections = (("", False), ("", True), ("bhw", False), ("gck", False), ("bgdhwk", False))
        search_together([together], [(5, axes, full) for axes, full in selections])
        for axes, full in selections:
            within = [
                grid
                for grid in grids
                if (not full or grid.size == request.procs)
                and all(parts == 1 or axis in (axes or "bgdhwck") for axis, parts in grid._asdict().items())
            ]
            wanted = sorted(within, key=lambda grid: costs[grid])[:5]
            found = candidates.best(5, axes, full=full)
            assert [placed.grid for _, placed in found] == wanted
            assert [cost for cost, _ in found] == [costs[grid] for grid in wanted]
            assert together.found[5, axes, full] == found
        assert together.counted.words == candidates.counted.words
        assert len(candidates.counted.words) < len(grids)
