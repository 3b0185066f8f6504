"""Words and boxes over many grids at once agree with the interpreter of one grid and one rank at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_problems import windows

from synth.layer.axes import AXES, ROW_MAJOR, TENSORS, PerAxis, strides
from synth.layer.interval_arrays import Spans, covered, cut
from synth.layer.layer import Layer, load_layer
from synth.layer.passes import GRADIENTS, sequences
from synth.machine.rank_groups import CHANNELS_SWAPPED
from synth.network.edges.edge_prices import EdgePrices
from synth.network.edges.moved_words import moved_words
from synth.network.edges.user_rows import windows_with_gaps
from synth.network.file import parse_network
from synth.network.grids.box_rows import BoxRows
from synth.network.grids.grid_family import family
from synth.network.grids.grid_table import grids_of
from synth.network.grids.layer_class import LayerClass
from synth.network.grids.owned_boxes import OwnedBoxes, PlacedGrid, row_numbers, sampled_ranks
from synth.network.grids.rank_kinds import padded, ranks_of_kinds
from synth.network.grids.row_bank import RowBank
from synth.network.request import NetworkRequest
from synth.schedule.distribution import Distribution
from synth.schedule.ownership import strides_of
from synth.schedule.reread_rows import reached, visited
from synth.schedule.volume import received
from synth.search.training_step import pass_templates

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
EDGES = """
network: edges
input: [8, 6, 12, 12]
layers:
  - {name: a, conv2d: {out_channels: 16, kernel: 3, padding: 1}}
  - {name: b, conv2d: {out_channels: 24, kernel: 3, padding: 1}}
  - {name: c, conv2d: {out_channels: 24, kernel: 1}, from: a}
  - {name: s, add: {}, from: [b, c]}
  - {name: t, cat: {}, from: [s, a]}
  - {name: d, conv2d: {out_channels: 8, kernel: 1, stride: 2}}
"""
ORDERS = (ROW_MAJOR, CHANNELS_SWAPPED)
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
    kinds = padded([ranks_of_kinds(each, Distribution(nest, each.grid), TENSORS) for each in boxes.placed])
    on_kinds = OwnedBoxes(nest, boxes.placed, boxes.procs, ranks=kinds)
    for kept in (frozenset({"Out"}), frozenset(), frozenset({"In", "Ker", "Out"}), frozenset({"Ker"})):
        for gradients in (GRADIENTS, ("In",), ("Ker",)):
            passes = sequences(gradients=gradients)[0]
            training, _ = boxes.words(passes, True, kept)
            if not kept:
                assert np.array_equal(training, on_kinds.words(passes, True, kept)[0])
            for index, grid in enumerate(grids):
                d = Distribution(nest, grid)
                counted = [received(d, pass_plan).total for pass_plan in pass_templates(kept, passes)]
                assert forward[index] == counted[0].max()
                assert training[index] == sum(counted).max()  # type: ignore[union-attr]


@given(st.lists(st.tuples(*[st.integers(1, 5)] * 7), min_size=1, max_size=4), st.permutations(AXES))
def test_strides_of_several_grids_are_those_of_each(parts, order) -> None:  # type: ignore[no-untyped-def]
    orders = [tuple(order) if i % 2 else ROW_MAJOR for i in range(len(parts))]
    wanted = [strides(PerAxis(*each), o) for each, o in zip(parts, orders, strict=True)]
    found = strides_of(np.array(parts, np.int32), orders)
    assert found.tolist() == [[each[axis] for axis in AXES] for each in wanted]


@given(windows(), st.lists(st.integers(1, 9), min_size=1, max_size=4), st.data())
def test_rows_that_blocks_read_are_counted_alike(window, counts, data) -> None:  # type: ignore[no-untyped-def]
    """In closed form for several numbers of blocks, and block by block."""
    window = data.draw(st.sampled_from([each for each in (window, window.turned) if each.divisor == 1]))
    low = data.draw(st.integers(0, window.size))
    within = (np.array([[low]]), np.array([[data.draw(st.integers(low, window.size))]]))
    every = np.zeros((1, 1), np.int64), np.full((1, 1), window.out)
    found = visited(window, every, np.array(counts)[:, None], within)
    for count, rows in zip(counts, found.tolist(), strict=True):
        blocks = reached(window, cut((0, window.out), count, np.arange(count)))
        assert rows == covered(blocks, within)[0].tolist()


def _pair(source: Layer, target: Layer, one: PlacedGrid, other: PlacedGrid, procs: int) -> tuple[int, int]:
    before, after = OwnedBoxes(source.nest, [one], procs), OwnedBoxes(target.nest, [other], procs)
    moved = moved_words(before.rows("Out"), after.rows("In"), windows_with_gaps(target.nest))
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


def test_words_of_many_pairs_are_those_of_all_ranks() -> None:
    """Bounds from few ranks and from single dimensions decide most pairs; grids divide evenly or not."""
    rng = np.random.default_rng(0)
    first = Layer.conv2d((8, 12, 14, 14), 32, 3, padding=1)
    for second, procs in (
        (Layer.conv2d((8, 32, 14, 14), 16, 3, padding=1), 128),
        (Layer.conv2d((8, 32, 14, 14), 16, 1, stride=2), 150),
    ):
        boxes = []
        for nest in (first.nest, second.nest):
            grids = grids_of(family(nest, procs, 0.5))
            some = [PlacedGrid(grids[i], order) for i in rng.integers(0, len(grids), 8) for order in ORDERS]
            boxes.append(OwnedBoxes(nest, some, procs))
        rows = boxes[0].rows("Out"), boxes[1].rows("In")
        for tensor, each, found in zip(("Out", "In"), boxes, rows, strict=True):
            assert all(map(np.array_equal, each.flat(tensor)[:2], found.spans))  # type: ignore[arg-type]
        windows = windows_with_gaps(second.nest)
        tables = {at: np.array([w.source(i) for i in range(w.size)]) for at, w in windows.items()}
        counted = _counted(*(each.spans for each in rows), tables)
        assert all(map(np.array_equal, counted, moved_words(*rows, windows)))
        some = rows[0].take([3, 0]), rows[1].take([5, 5, 1])
        there, back = moved_words(*some, windows, back=False)
        assert np.array_equal(there, counted[0][np.ix_([3, 0], [5, 5, 1])])
        assert not back.any()


def test_words_of_a_redistribution_and_its_gradient_are_added_beyond_32_bits() -> None:
    """Each is below 2**31, and their sum above: the U-Net of the examples at 2048**3 had negative words."""
    extents, ranks = (1, 3 * 2**14, 1, 2**18, 1), 8

    def cut_along(dim: int) -> BoxRows:
        low, high = [], []
        for at, size in enumerate(extents):
            part = size // ranks if at == dim else size
            first = np.arange(ranks) * part if at == dim else np.zeros(ranks, np.int64)
            low.append(first[None].astype(np.int32))
            high.append(low[-1] + np.int32(part))
        return BoxRows(tuple(low), tuple(high), (np.zeros(1, np.intp),) * len(extents))

    own = 3 * 2**32 // ranks
    there, back = moved_words(cut_along(3), cut_along(1), {})
    assert (there + back).tolist() == [[2 * (own - own // ranks)]]
    assert own < 2**31 < 2 * (own - own // ranks)


def _counted(source: Spans, target: Spans, tables: dict[int, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    low, high = (np.array(each) for each in source)
    for at, rows in tables.items():
        low[at], high[at] = np.searchsorted(rows, low[at]), np.searchsorted(rows, high[at])
    most = np.minimum(high[:, :, None], target[1][:, None]), np.maximum(low[:, :, None], target[0][:, None])
    common = np.maximum(most[0] - most[1], 0).prod(axis=0)
    want, have = ((b - a).clip(0).prod(axis=0) for a, b in (target, (low, high)))
    return (want - common).max(axis=2), (have[:, None] - common).max(axis=2)


def test_prices_of_several_tables_are_those_of_each_alone() -> None:
    """A pair of grids is priced once, whatever the options that come with it."""
    network = parse_network(EDGES, "edges.yaml")
    request = NetworkRequest(96, training=True)
    classes = [LayerClass.of(node) for node in network.planned]
    rng = np.random.default_rng(1)
    families = [grids_of(family(each.nest, 96, 0.3)) for each in classes]
    growing = EdgePrices(network, request, classes, range(len(classes)))
    for _ in range(3):
        table = [
            [PlacedGrid(grids[i], order) for i in rng.integers(0, len(grids), 4) for order in ORDERS]
            for grids in families
        ]
        alone = EdgePrices(network, request, classes, range(len(classes))).of(table)
        for edge, (words, cost) in growing.of(table).items():
            assert np.array_equal(words, alone[edge][0])
            assert np.array_equal(cost, alone[edge][1])


def test_rows_that_layers_share_change_no_words() -> None:
    """Two layers with rows in one bank, asked twice, as with rows of their own."""
    nests = [Layer.conv2d((8, c, 14, 14), k, 3, padding=1).nest for c, k in ((12, 32), (32, 12))]
    bank = RowBank(sampled_ranks(128))
    rng = np.random.default_rng(1)
    for _ in range(2):
        rows, own = [], []
        for nest, tensor in zip(nests, ("Out", "In"), strict=True):
            grids = grids_of(family(nest, 128, 0.9))
            some = [PlacedGrid(grids[i], order) for i in rng.integers(0, len(grids), 6) for order in ORDERS]
            own.append(OwnedBoxes(nest, some, 128).rows(tensor))  # type: ignore[arg-type]
            rows.append(bank.boxes(row_numbers(bank, nest, tensor, some)))  # type: ignore[arg-type]
            assert all(map(np.array_equal, own[-1].spans, rows[-1].spans))
        alone, shared = moved_words(own[0], own[1], {}), moved_words(rows[0], rows[1], {})
        assert all(map(np.array_equal, alone, shared))
        assert alone[0].any()
