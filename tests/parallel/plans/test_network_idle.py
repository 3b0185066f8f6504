"""Networks whose layers leave processes idle: never worse than bad cuts, and words between them."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from synth.layer.axes import PerAxis
from synth.layer.layer import Layer
from synth.layer.nest import Nest
from synth.network.edges.moved_words import moved_words
from synth.network.edges.user_rows import windows_with_gaps
from synth.network.file import load_network
from synth.network.grids.grid_family import family
from synth.network.grids.grid_table import grids_of
from synth.network.grids.layer_class import LayerClass
from synth.network.grids.owned_boxes import OwnedBoxes, PlacedGrid
from synth.network.plan.report import report
from synth.network.planner.candidates import GridCandidates
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest
from synth.schedule.distribution import Distribution
from synth.search.grids import Space, all_grids, work_cap

NETWORKS = Path(__file__).resolve().parents[3] / "examples/networks"


def nests(name: str) -> list[Nest]:
    return list(dict.fromkeys(LayerClass.of(n).nest for n in load_network(NETWORKS / f"{name}.yaml").planned))


@pytest.mark.parametrize("name", ["resnet50", "vgg16", "wrn50_4"])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.one_in(6)
def test_one_more_process_than_sixty_is_no_bad_cut(name: str, training: bool) -> None:
    network = load_network(NETWORKS / f"{name}.yaml")
    odd, even = (plan_network(network, NetworkRequest(p, training=training)) for p in (61, 60))
    assert odd.cost <= even.cost * 1.05
    assert all(placed.grid.size <= 61 for placed in odd.placed_grids)
    assert "processes idle: some in" in report(odd)


@pytest.mark.slow
def test_a_looser_balance_is_never_worse() -> None:
    network = load_network(NETWORKS / "resnet50.yaml")
    costs = [plan_network(network, NetworkRequest(61, balance=balance)).cost for balance in (0.1, 0.5, 1.0)]
    assert costs[1] <= costs[0]
    assert costs[2] <= costs[0]


def test_who_asks_for_all_processes_gets_them() -> None:
    network = load_network(NETWORKS / "vgg16.yaml")
    free, exact = (
        plan_network(network, NetworkRequest(62, training=True, exact_procs=each)) for each in (False, True)
    )
    weighted = [p.grid.size for n, p in zip(network.planned, exact.placed_grids, strict=True) if n.weighted]
    assert set(weighted) == {62}
    assert free.cost <= exact.cost
    assert "processes idle" in report(free)


@pytest.mark.parametrize(("procs", "balance"), [(61, 0.1), (24, 0.0), (30, 2.0)])
def test_the_family_is_every_balanced_grid(procs: int, balance: float) -> None:
    for nest in nests("vgg16")[:8]:
        space = Space(nest, procs, {}, False)
        cap = work_cap(space.least_work or 1, balance)
        wanted = {g for g in all_grids(space, procs) if nest.extents.blocks(g).size <= cap}
        found = grids_of(family(nest, procs, balance))
        assert len(found) == len(set(found))
        if nest.extents.g == 1:
            assert set(found) == wanted
        assert set(found) <= wanted


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.one_in(2)
def test_bounds_are_below_the_words(training: bool) -> None:
    for node in load_network(NETWORKS / "cosmoflow.yaml").planned:
        candidates = GridCandidates(LayerClass.of(node), NetworkRequest(13, training=training))
        for grid in grids_of(candidates.grids.rows[:40]):
            assert candidates.grids.bound(grid) <= candidates.cost(PlacedGrid(grid))


def test_words_between_layers_that_leave_different_ranks_idle() -> None:
    """Against sets of elements, forward and of the gradient on the way back, for all pairs of grids."""
    first = Layer.conv2d((3, 4, 7, 7), 6, 3, padding=1)
    second = Layer.conv2d((3, 6, 7, 7), 5, 1, stride=2)
    procs, window = 7, second.nest.windows
    grids = [PerAxis(b=3, k=2), PerAxis(h=5), PerAxis(c=2, k=3), PerAxis(b=2, h=3), PerAxis(w=7), PerAxis()]

    def box(of: Distribution, tensor: str, rank: int, rows: bool) -> set[tuple[int, ...]]:
        if rank >= of.grid.size:
            return set()
        spans = of.owned(tensor, of.at(rank))  # type: ignore[arg-type]
        b, channels, h, w = spans[0], spans[2], spans[-2], spans[-1]
        ways = {
            axis: [window[axis].source(i) if rows else i for i in range(*span)]  # type: ignore[index]
            for axis, span in (("h", h), ("w", w))
        }
        return set(itertools.product(range(*b), range(*channels), ways["h"], ways["w"]))

    read = {window["h"].source(i) for i in range(window["h"].size)}
    for one, other in itertools.product(grids, grids):
        before, after = Distribution(first.nest, one), Distribution(second.nest, other)
        boxes = (
            OwnedBoxes(first.nest, [PlacedGrid(one)], procs),
            OwnedBoxes(second.nest, [PlacedGrid(other)], procs),
        )
        ahead, back = moved_words(boxes[0].rows("Out"), boxes[1].rows("In"), windows_with_gaps(second.nest))
        have = [
            {e for e in box(before, "Out", r, False) if e[2] in read and e[3] in read} for r in range(procs)
        ]
        want = [box(after, "In", r, True) for r in range(procs)]
        assert int(ahead[0, 0]) == max(len(w - h) for w, h in zip(want, have, strict=True))
        assert int(back[0, 0]) == max(len(h - w) for w, h in zip(want, have, strict=True))
