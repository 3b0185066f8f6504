"""The search for margins looks at few ranks and few boxes, however many there are."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import random_network

from synth.layer.axes import PerAxis
from synth.network.file import parse_network
from synth.network.grids.owned_boxes import PlacedGrid
from synth.network.margins import choose as choosing
from synth.network.margins.choose import choose, choose_cuts, evaluated
from synth.network.margins.row_graph import RowGraph, RowTensor, of_different_ranks, row_graph


def graph_of(seed: int, grids: list[PerAxis]) -> RowGraph:
    """A random network of two dimensions, each of whose layers has one of some grids."""
    draw = random.Random(seed)
    network = parse_network(random_network(seed, 6, dims=2), "random.yaml")
    some = [PlacedGrid(draw.choice(grids)) for _ in network.planned]
    return row_graph(network, some, max(grid.size for grid in grids))


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_ranks_that_differ_by_a_shift_of_samples_change_no_choice(seed: int, limited: bool) -> None:
    graph = graph_of(seed, [PerAxis(b=3, h=2), PerAxis(b=6), PerAxis(b=2, h=3), PerAxis(b=3, w=2)])
    limit = 1e7 if limited else math.inf
    with pytest.MonkeyPatch.context() as patch:
        found = choose_cuts(graph, limit, {})
        patch.setattr(choosing, "of_different_ranks", lambda graph: graph)
        assert choose_cuts(graph, limit, {}) == found


def test_one_rank_stands_for_all_samples() -> None:
    graph = graph_of(1, [PerAxis(b=8, h=2)])
    assert {each.own.shape[2] for each in graph.values()} == {16}
    assert {each.own.shape[2] for each in of_different_ranks(graph).values()} == {2}


@pytest.mark.parametrize("keys", [4, 64])
def test_what_is_computed_of_a_tensor_takes_few_forms(keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block multiplies the combinations of margins, up to a bound; some margins are then not tried."""
    lines = ["network: blocks", "input: [1, 8, 56, 56]", "layers:", "  - {name: r0, relu: {}}"]
    conv = "conv2d: {out_channels: 8, kernel: 3, padding: 1}"
    for i in range(1, 9):
        lines += [f"  - {{name: a{i}, {conv}, from: r{i - 1}}}", f"  - {{name: b{i}, {conv}, from: a{i}}}"]
        lines.append(f"  - {{name: r{i}, add: {{}}, from: [b{i}, r{i - 1}]}}")
    network = parse_network("\n".join([*lines, ""]), "blocks.yaml")
    graph = row_graph(network, [PlacedGrid(PerAxis(h=16))] * len(network.planned), 16)
    best, none, whole = choose(graph, math.inf), evaluated(graph, {}), choosing._Factors._computed
    forms = list[int]()

    def counted(
        self: choosing._Factors, tensor: RowTensor, needs: Sequence[int]
    ) -> dict[tuple[int, int], int]:
        found = whole(self, tensor, needs)
        if not tensor.free:
            forms.append(len(set(found.values())))
        return found

    monkeypatch.setattr(choosing._Factors, "_computed", counted)
    monkeypatch.setattr(choosing, "MOST_KEYS", keys)
    chosen = choose(graph, math.inf)
    assert best.exact
    assert not chosen.exact
    assert best.cost <= chosen.cost <= none.cost
    assert max(forms) <= math.isqrt(keys)
