"""Words and boxes over many grids at once agree with the interpreter of one grid and one rank at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.layer.axes import ROW_MAJOR, PerAxis
from synth.layer.layer import Layer, load_layer
from synth.layer.passes import GRADIENTS, sequences
from synth.machine.rank_groups import CHANNELS_SWAPPED
from synth.network.planner.owned_boxes import OwnedBoxes, PlacedGrid, sampled_ranks
from synth.network.planner.redistribution import moved_words, rows_read
from synth.schedule.distribution import Distribution
from synth.schedule.volume import received
from synth.search.training_step import pass_templates

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LAYERS = [
    load_layer(EXAMPLES / name).nest
    for name in (
        "small.yaml",
        "grouped.yaml",
        "conv1d.yaml",
        "resnet50/conv3_x_1x1_project.yaml",
        "cosmoflow/conv4.yaml",
    )
]


@settings(max_examples=30)
@given(
    st.sampled_from(LAYERS), st.lists(st.tuples(*[st.sampled_from([1, 1, 2, 3])] * 7), min_size=1, max_size=4)
)
def test_words_are_those_of_the_interpreter(nest, parts) -> None:  # type: ignore[no-untyped-def]
    grids = [PerAxis(*(min(n, p) for n, p in zip(nest.extents, each, strict=True))) for each in parts]
    boxes = OwnedBoxes(nest, [PlacedGrid(g) for g in grids], max(g.size for g in grids))
    forward, _ = boxes.words(("forward",), True)
    for kept in (frozenset({"Out"}), frozenset(), frozenset({"In", "Ker", "Out"}), frozenset({"Ker"})):
        for gradients in (GRADIENTS, ("In",), ("Ker",)):
            passes = sequences(gradients=gradients)[0]
            training, _ = boxes.words(passes, True, kept)
            for index, grid in enumerate(grids):
                d = Distribution(nest, grid)
                counted = [received(d, pass_plan).total for pass_plan in pass_templates(kept, passes)]
                assert forward[index] == counted[0].max()
                assert training[index] == sum(counted).max()  # type: ignore[union-attr]


def _pair(source: Layer, target: Layer, one: PlacedGrid, other: PlacedGrid, procs: int) -> tuple[int, int]:
    before, after = OwnedBoxes(source.nest, [one], procs), OwnedBoxes(target.nest, [other], procs)
    moved = moved_words(before.flat("Out")[:2], after.flat("In")[:2], rows_read(target.nest))
    return int(moved[0][0, 0]), int(moved[1][0, 0])


@pytest.mark.parametrize(("kernel", "padding"), [(1, 0), (3, 1)])
def test_out_cut_along_k_is_in_of_the_next_layer(kernel: int, padding: int) -> None:
    """P_c' = P_k, P_k' = P_c: nothing moves, whatever b is; with row-major ranks on both sides it does."""
    first = Layer.conv2d((8, 32, 14, 14), 64, kernel, padding=padding)
    second = Layer.conv2d((8, 64, 14, 14), 48, kernel, padding=padding)
    for c, k, b in ((2, 4, 1), (4, 4, 2), (2, 8, 4), (1, 4, 2)):
        grid, turned = PerAxis(b=b, c=c, k=k), PerAxis(b=b, c=k, k=c)
        assert _pair(first, second, PlacedGrid(grid), PlacedGrid(turned, CHANNELS_SWAPPED), b * c * k) == (
            0,
            0,
        )
        if c > 1:
            assert _pair(first, second, PlacedGrid(grid), PlacedGrid(turned, ROW_MAJOR), b * c * k)[0] > 0


def test_moved_words_by_sets_of_elements() -> None:
    """Against element sets: a strided 1x1 target reads every other row; the grids share nothing."""
    first = Layer.conv2d((2, 3, 9, 9), 6, 3, padding=1)
    second = Layer.conv2d((2, 6, 9, 9), 5, 1, stride=2)
    one, other, procs = PerAxis(h=3, k=2), PerAxis(b=2, w=2, c=3), 12
    before, after = Distribution(first.nest, one), Distribution(second.nest, other)
    window = second.nest.windows

    def out_of(rank: int) -> set[tuple[int, ...]]:
        if rank >= one.size:
            return set()
        b, _, k, _, h, w = before.owned("Out", before.at(rank))
        return {(i, j, y, x) for i in range(*b) for j in range(*k) for y in range(*h) for x in range(*w)}

    def in_of(rank: int) -> set[tuple[int, ...]]:
        b, _, c, _, h, w = after.owned("In", after.at(rank))
        return {
            (i, j, window["h"].source(y), window["w"].source(x))
            for i in range(*b) for j in range(*c) for y in range(*h) for x in range(*w)
        }  # fmt: skip

    forward = max(len(in_of(r) - out_of(r)) for r in range(procs))
    assert _pair(first, second, PlacedGrid(one), PlacedGrid(other), procs)[0] == forward


def test_same_grid_moves_halo_only_within_the_layer() -> None:
    layer = Layer.conv2d((4, 16, 12, 12), 16, 3, padding=1)
    placed = PlacedGrid(PerAxis(b=2, h=3))
    assert _pair(layer, layer, placed, placed, 6) == (0, 0)


def test_ranks_are_sampled_only_where_there_are_very_many() -> None:
    assert len(sampled_ranks(1024)) == 1024
    many = sampled_ranks(1 << 20)
    assert len(many) <= 8192
    assert (many[0], many[-1]) == (0, (1 << 20) - 1)
    assert np.array_equal(many, sampled_ranks(1 << 20))
