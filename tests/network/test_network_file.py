"""Network files: shipped ones are the published networks; wrong ones are refused with their place."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from synth.base.errors import InputError
from synth.layer.layer import load_layer
from synth.network.file import load_network, parse_network

ROOT = Path(__file__).resolve().parents[2]
NETWORKS = ROOT / "examples/networks"
TABLES = json.loads((ROOT / "tests/data/layer_tables.json").read_text())


@pytest.mark.parametrize("name", TABLES)
def test_convolutions_are_those_of_the_layer_files(name: str) -> None:
    network = load_network(NETWORKS / f"{name}.yaml")
    convs = [node.layer for node in network.planned if node.kind.startswith("conv")]
    found = Counter(replace(layer, name="x") for layer in convs if layer)
    listed = {
        replace(load_layer(ROOT / f"examples/{name}/{file}.yaml"), name="x"): times
        for file, times in TABLES[name]["layers"].items()
    }
    assert found == Counter(listed)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("resnet50", 25_557_032), ("wrn50_2", 68_883_240), ("vgg16", 138_357_544), ("cosmoflow", 9_437_636)],
)
def test_parameters(name: str, parameters: int) -> None:
    assert load_network(NETWORKS / f"{name}.yaml").parameters == parameters


def test_edges_of_a_residual_block() -> None:
    network = load_network(NETWORKS / "resnet50.yaml")
    edges = {(e.source, e.target, e.role) for e in network.edges}
    assert ("conv2_c.1", "conv2_c.2", "out") in edges  # the identity shortcut ends where the sum lies
    assert ("conv2_project", "conv2_expand", "out") in edges
    assert ("pool1", "conv2_project", "in") in edges


def test_a_fully_connected_layer_over_a_map_is_a_convolution() -> None:
    layer = load_network(NETWORKS / "vgg16.yaml").nodes["fc6"].layer
    assert layer is not None
    assert (layer.kind, layer.kernel, layer.input) == ("conv2d", (7, 7), (32, 512, 7, 7))


HEAD = "network: n\ninput: [4, 8, 6, 6]\nlayers:\n"
WRONG = [
    ("", "n.yaml:1:1: the file holds no network"),
    ("input: [4]\nlayers:\n  - relu: {}", "n.yaml:1:8: input is a list; write N, C"),
    (HEAD + "  - convv2d: {}", "n.yaml:4:5: layer kind convv2d is unknown; did you mean conv2d?"),
    (HEAD + "  - relu: {}\n    from: nothing", "n.yaml:5:11: relu1 takes nothing, which no layer is named"),
    (
        HEAD + "  - {name: a, relu: {}, from: b}\n  - {name: b, relu: {}, from: a}",
        "form a cycle: a -> b -> a",
    ),
    (
        HEAD + "  - {name: a, relu: {}}\n  - {name: a, relu: {}}",
        "n.yaml:5:5: layer a is named twice, first on line 4",
    ),
    (HEAD + "  - conv2d: {out_channels: 4}", "conv2d1: conv2d lacks kernel"),
    (HEAD + "  - conv2d: {out_channels: 4, kernel: 9}", "n.yaml:4:39: conv2d1: kernel 9 does not fit"),
    (
        HEAD + "  - {conv2d: {out_channels: 4, kernel: 1}, relu: {}}",
        "n.yaml:4:5: the layer has conv2d and relu",
    ),
    (HEAD + "  - conv3d: {out_channels: 4, kernel: 1}", "conv3d needs 5 dimensions"),
    (
        HEAD + "  - {name: a, conv2d: {out_channels: 4, kernel: 1}}\n  - {add: {}, from: [a, input]}",
        "only equal shapes",
    ),
    (HEAD + "  - repeat: 0\n    layers: []", "n.yaml:4:13: repeat is 0"),
    (HEAD + "  - pool: {kernel: 2, ceil: yes}", "ceil is yes; write true or false"),
    (HEAD + "  - relu: {x: 1}", "unknown key x of relu"),
    (
        HEAD + "  - {name: g, gathered: {shape: [2, 3], divided: part}}",
        "g: divided is part; did you mean parts?",
    ),
    ("layers: []", "n.yaml:1:1: the network lacks input"),
    (HEAD.replace("6, 6", "6, x") + "  - relu: {}", "n.yaml:2:18: an entry of input is x, not an integer"),
]


@pytest.mark.parametrize(("text", "message"), WRONG, ids=range(len(WRONG)))
def test_wrong_networks_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as fault:
        parse_network(text, "n.yaml")
    said = str(fault.value)
    assert any(part in said for part in message.split("|")), said
    assert said.startswith("n.yaml:")
    assert "\n" not in said
