"""Reductions of network files: what lies where its input lies, what moves, and what is refused."""

from __future__ import annotations

import pytest

from synth.base.errors import InputError
from synth.network.file import parse_network
from synth.network.plan.plan import NetworkPlan
from synth.network.planner.planner import plan_network
from synth.network.reductions import Reduction
from synth.network.request import NetworkRequest
from synth.network.write import network_text

GATED = """
network: gated
input: [2, 3, 12, 10]
layers:
  - {name: a, conv2d: {out_channels: 8, kernel: 3, padding: 1}}
  - {name: mean, globalpool: {}}
  - {name: gate, conv2d: {out_channels: 8, kernel: 1}}
  - {name: gated, mul: {}, from: [a, gate]}
  - {name: own, globalpool: {max: true}}
  - {name: again, mul: {}, from: [gated, own]}
  - {name: rows, globalpool: {dims: [2]}}
  - {name: joined, cat: {}, from: [again, a]}
  - {name: both, globalpool: {max: true}}
  - {name: few, globalpool: {out: [5, 4]}, from: [a]}
  - {name: some, globalpool: {dims: [3], out: 3, max: true}, from: [a]}
  - {name: mean_of_few, globalpool: {}, from: [few]}
"""


def moved(plan: NetworkPlan) -> dict[str, int]:
    """Reduction -> words that a rank receives at most, of parts and of gradients."""
    paths = {edge: edge.target_path[-1] for edge in plan.edge_words if edge.moves_rows}
    return {path.name: plan.edge_words[e] for e, path in paths.items() if isinstance(path, Reduction)}


def test_a_file_says_what_is_reduced() -> None:
    network = parse_network(GATED, "gated.yaml")
    assert [node.name for node in network.planned] == ["a", "gate"]
    shapes = {name: node.shape for name, node in network.nodes.items()}
    assert shapes["mean"] == shapes["own"] == (2, 8, 1, 1)
    assert shapes["rows"] == (2, 8, 1, 10)
    assert (shapes["few"], shapes["some"]) == ((2, 8, 5, 4), (2, 8, 12, 3))
    nodes = {name: [part.node for part in network.parts[name]] for name in ("both", "few", "mean_of_few")}
    assert nodes == {
        "both": ["a", "a"],
        "few": ["a"],
        "mean_of_few": [None],
    }  # several blocks share windows of `few`
    assert parse_network(network_text(network), "gated.yaml").nodes == network.nodes


@pytest.mark.parametrize(("axes", "procs", "ranks"), [("b", 2, 1), ("h", 4, 4), ("w", 5, 5), ("hw", 6, 6)])
@pytest.mark.parametrize("training", [False, True])
def test_words_of_parts(axes: str, procs: int, ranks: int, training: bool) -> None:
    """Of 16 values that s ranks share, 16 / s, rounded up, are owned by one: it gets s - 1 parts of each."""
    text = GATED.partition("  - {name: joined")[0]
    request = NetworkRequest(procs, training=training, axes=axes, strict_axes=False)
    words = moved(plan_network(parse_network(text, "gated.yaml"), request))
    own = 2 * -(-8 // ranks)  # the longer dimension, channels, is cut
    fewest = 2 * (8 // ranks)
    there, back = (ranks - 1) * own, (16 - fewest) * training
    assert words["mean"] == there + back
    assert words["own"] == 2 * there + back  # with a maximum goes the number of rows that have it
    if axes == "w":
        assert words["rows"] == 0


@pytest.mark.parametrize("training", [False, True])
def test_words_of_windows(training: bool) -> None:
    """Of five windows of 12 rows, each of four blocks shares one with the next: a row there, and one back."""
    request = NetworkRequest(4, training=training, axes="h", strict_axes=False)
    network = parse_network(GATED.replace("[5, 4]", "[5, 10]"), "gated.yaml")
    words = moved(plan_network(network, request))
    row = 2 * 8 * 10  # of the result
    assert words["few"] == row * (1 + training)
    assert words["both.0"] == words["both.1"] == 2 * 3 * 4 + 12 * training
    assert words["some"] == 0  # along columns, which no rank divides


@pytest.mark.parametrize("out", ["0", "[3, 4, 5]", "[2, -1]"])
def test_other_extents_are_refused(out: str) -> None:
    with pytest.raises(InputError, match="give an extent of 1 or more for each of the 2 positions"):
        parse_network(GATED.replace("[5, 4]", out), "gated.yaml")


@pytest.mark.parametrize("dims", ["[1]", "[2, 4]", "0"])
def test_other_dimensions_are_refused(dims: str) -> None:
    text = GATED.replace("dims: [2]", f"dims: {dims}")
    with pytest.raises(InputError, match="use positions, from 2 to 3"):
        parse_network(text, "gated.yaml")
