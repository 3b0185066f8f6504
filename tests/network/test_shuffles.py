"""Shuffles of network files: where they lie, what moves, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth.base.errors import InputError
from synth.layer.axes import PerAxis
from synth.network.file import parse_network
from synth.network.grids.owned_boxes import PlacedGrid
from synth.network.margins.row_graph import row_graph
from synth.network.plan.plan import NetworkPlan
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest
from synth.network.shuffles import Shuffle, boxes_of_shuffle, shuffle_words
from synth.network.write import network_text

NETWORK = """
network: larger
input: [2, 3, 12, 10]
layers:
  - {name: a, conv2d: {out_channels: 36, kernel: 3, padding: 1}}
  - {name: up, pixelshuffle: {factor: [3, 2]}}
  - {name: act, relu: {}}
  - {name: b, conv2d: {out_channels: 4, kernel: 3, padding: 1}}
  - {name: down, pixelunshuffle: {factor: 2}}
  - {name: c, conv2d: {out_channels: 2, kernel: 1}}
"""


def test_a_file_says_what_is_shuffled() -> None:
    network = parse_network(NETWORK, "larger.yaml")
    shapes = {name: node.shape for name, node in network.nodes.items()}
    assert (shapes["up"], shapes["down"]) == ((2, 6, 36, 20), (2, 16, 18, 10))
    assert [part.node for name in ("act", "down") for part in network.parts[name]] == ["a", "b"]
    assert parse_network(network_text(network), "larger.yaml").nodes == network.nodes


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[3, 2]", "[5, 2]", "up: factor is (5, 2) for 2x36x12x10; 10 must divide the channels"),
        ("[3, 2]", "0", "up: factor is 0 for 2x36x12x10; 0 must divide the channels"),
        ("[3, 2]", "[2, 2, 2]", "up: factor has 3 entries, needs 2"),
        ("factor: 2", "factor: 5", "down: factor is 5 for 2x4x36x20; every factor must divide its extent"),
        ("factor: 2", "by: 2", "down: unknown key by of pixelunshuffle"),
        ("factor: 2", "", "down: pixelunshuffle lacks factor"),
        ("input: [2, 3, 12, 10]", "input: [2, 36]", "up: pixelshuffle needs a feature map"),
    ],
)
def test_wrong_factors_are_refused(old: str, new: str, said: str) -> None:
    text = NETWORK.replace(old, new)
    text = (
        text.replace("conv2d: {out_channels: 36, kernel: 3, padding: 1}", "relu: {}")
        if "36]" in new
        else text
    )
    with pytest.raises(InputError) as caught:
        parse_network(text, "larger.yaml")
    assert said in str(caught.value)


JOINED = """
network: joined
input: [2, 3, 12, 10]
layers:
  - {name: a, conv2d: {out_channels: 8, kernel: 3, padding: 1}}
  - {name: b, conv2d: {out_channels: 4, kernel: 3, padding: 1}, from: [input]}
  - {name: cat, cat: {}, from: [a, b]}
  - {name: act, relu: {}}
  - {name: up, pixelshuffle: {factor: 2}}
  - {name: c, conv2d: {out_channels: 2, kernel: 3, padding: 1}}
  - {name: last, reindex: {rows: [[1, 6, 6]]}, from: [act]}
  - {name: mean, channelmean: {size: 2}}
  - {name: d, conv2d: {out_channels: 2, kernel: 3, padding: 1}}
"""


def test_channels_of_a_concatenation_lie_where_its_parts_do() -> None:
    """A shuffle is one of each part, and a slice is of the parts that it reads."""
    network = parse_network(JOINED, "joined.yaml")
    parts = {name: [(each.node, each.count) for each in network.parts[name]] for name in network.nodes}
    assert parts["up"] == [("a", 2), ("b", 1)]
    assert parts["last"] == [("a", 2), ("b", 4)]
    assert parts["mean"] == [("a", 1), ("b", 2)]
    assert [each.path[-1].name for each in network.parts["mean"]] == ["mean.0", "mean.1"]
    assert parse_network(network_text(network), "joined.yaml").nodes == network.nodes
    for axes, most in (("hw", 0), ("k", 10**4)):
        request = NetworkRequest(4, training=True, axes=axes, strict_axes=False)
        words = moved(plan_network(network, request))
        assert set(words) == {"up.0", "up.1", "last.0", "mean.0", "mean.1"}
        assert max(words.values()) <= most
    uneven = parse_network(JOINED.replace("[1, 6, 6]", "[1, 5, 6]"), "joined.yaml")
    assert [part.node for part in uneven.parts["mean"]] == [None]  # a mean is of channels of both
    assert [part.node for part in uneven.parts["last"]] == ["a", "b"]


@pytest.mark.parametrize("size", ["5", "0", "[2, 1]"])
def test_means_are_of_channels_that_their_size_divides(size: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_network(JOINED.replace("size: 2", f"size: {size}"), "joined.yaml")
    shown = size.replace("[", "(").replace("]", ")")
    assert f"mean: size is {shown}; it must divide the 6 channels" in str(caught.value)


def moved(plan: NetworkPlan) -> dict[str, int]:
    """Shuffle -> words that a rank receives at most."""
    paths = {edge: edge.target_path[-1] for edge in plan.edge_words if edge.moves_rows}
    return {path.name: plan.edge_words[edge] for edge, path in paths.items()}


@pytest.mark.parametrize("training", [False, True])
def test_nothing_moves_where_a_rank_has_all_channels(training: bool) -> None:
    request = NetworkRequest(6, training=training, axes="hw")
    assert moved(plan_network(parse_network(NETWORK, "larger.yaml"), request)) == {"up": 0, "down": 0}


@pytest.mark.parametrize("training", [False, True])
def test_channels_that_are_cut_within_a_position_move(training: bool) -> None:
    """Of 36 channels, six for a position, each of four ranks has nine: 12, 6, 12 and 6 are wanted."""
    network = parse_network(NETWORK, "larger.yaml")
    words = moved(plan_network(network, NetworkRequest(4, training=training, axes="k", strict_axes=False)))
    assert words["up"] == 3 * 2 * 12 * 10 * (1 + training)


@given(st.data())
def test_words_of_means_are_those_of_index_sets(data: st.DataObject) -> None:
    """A rank receives the channels that its means read and that it lacks; their gradients return."""
    size, n = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    cuts = sorted(data.draw(st.lists(st.integers(0, n * size), max_size=3)))
    ends = list(zip([0, *cuts], [*cuts, n * size], strict=True))
    first, end = (
        np.array([[each[side] if at == 1 else side for each in ends] for at in range(5)])[:, None]
        for side in (0, 1)
    )
    last = Shuffle("m", (1, n * size, 1), (1, n, 1))
    made = boxes_of_shuffle((first, end), last)
    read = [set(range(a * size, b * size)) for a, b in zip(*(bound[1, 0] for bound in made), strict=True)]
    own = [set(range(*each)) for each in ends]
    assert sum(map(len, read)) == n * size
    lacks = [len(one - other) for one, other in zip(read, own, strict=True)]
    back = [len(other - one) for one, other in zip(read, own, strict=True)]
    assert tuple(int(each[0]) for each in shuffle_words((first, end), last)) == (max(lacks), max(back))


@given(st.data())
def test_words_are_those_of_index_sets(data: st.DataObject) -> None:
    """For any blocks of a grid, the owner of the first word of a row owns it, and receives what it lacks."""
    small = [data.draw(st.integers(1, 4)) for _ in range(4)]
    factors = [data.draw(st.integers(1, 3)) for _ in range(2)]
    words = factors[0] * factors[1]
    wide = (small[0], small[1] * words, *small[2:])
    tall = (*small[:2], small[2] * factors[0], small[3] * factors[1])
    before, after = data.draw(st.permutations([wide, tall]))
    parts = np.arange(np.prod(wide)).reshape(small[0], small[1], *factors, *small[2:])
    places = parts.transpose(0, 1, 4, 2, 5, 3).reshape(tall)  # of the words of `wide` in `tall`
    if before == tall:
        places = np.argsort(places.ravel())[parts].reshape(wide)
    cuts = [sorted(data.draw(st.lists(st.integers(0, n), max_size=2))) for n in before]
    ends = [list(zip([0, *cut], [*cut, n], strict=True)) for cut, n in zip(cuts, before, strict=True)]
    grid = [(a, b, (0, 1), c, d) for a in ends[0] for b in ends[1] for c in ends[2] for d in ends[3]]
    first, end = (np.array([[box[at][side] for box in grid] for at in range(5)])[:, None] for side in (0, 1))
    blocks = first, end
    last = Shuffle("s", before, after)
    made = boxes_of_shuffle(blocks, last)
    numbers, taken = np.arange(np.prod(before)).reshape(before), np.zeros(after, int)
    there = back = 0
    for rank in range(len(grid)):
        own, out = (
            tuple(slice(int(low[at, 0, rank]), int(high[at, 0, rank])) for at in (0, 1, 3, 4))
            for low, high in (blocks, made)
        )
        taken[out] += 1
        mine, read = set(numbers[own].ravel().tolist()), set(places[out].ravel().tolist())
        there, back = max(there, len(read - mine)), max(back, len(mine - read))
    assert (taken == 1).all()
    assert tuple(int(each[0]) for each in shuffle_words(blocks, last)) == (there, back)


def test_margins_go_through_shuffles_whose_ranks_have_all_channels() -> None:
    network = parse_network(NETWORK, "larger.yaml")
    rows = row_graph(network, [PlacedGrid(PerAxis(h=5))] * 3, 5)
    assert {name for name, tensor in rows.items() if tensor.covered} == {*network.nodes}
    assert rows["down"].own[3].T.tolist() == [[0, 4], [4, 8], [8, 11], [11, 15], [15, 18]]
    cut = row_graph(network, [PlacedGrid(PerAxis(k=2)), *[PlacedGrid(PerAxis(h=2))] * 2], 2)
    assert {name for name, tensor in cut.items() if tensor.covered} == {"b", "down", "c"}
