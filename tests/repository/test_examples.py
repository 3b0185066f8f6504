"""The example layers: they load, they satisfy the schema, and together they are the published networks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from synth.layer.layer import Layer, layer_file_schema, load_layer

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
TABLES: dict[str, Any] = json.loads((ROOT / "tests/data/layer_tables.json").read_text())
FILES = sorted(path for path in EXAMPLES.rglob("*.yaml") if path.parent.name != "networks")
SCHEMA = jsonschema.Draft202012Validator(layer_file_schema())

Shape = tuple[int, int, int, int, int]  # input channels, filters, kernel, stride, input size


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_loads_round_trips_and_satisfies_the_schema(path: Path) -> None:
    layer = load_layer(path)
    assert Layer.from_json(json.loads(json.dumps(layer.to_json())), "p", layer.name) == layer
    SCHEMA.validate(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize("network", TABLES)
def test_tables_and_folders_list_the_same_files(network: str) -> None:
    assert {path.stem for path in (EXAMPLES / network).iterdir()} == set(TABLES[network]["layers"])


@pytest.mark.parametrize("network", TABLES)
def test_totals_of_a_network(network: str) -> None:
    table = TABLES[network]
    weights = multiply_adds = 0
    for name, times in table["layers"].items():
        path = EXAMPLES / network / f"{name}.yaml"
        layer = load_layer(path)
        assert layer.name == f"{network} {name}"
        assert layer.input[0] == table["batch"]
        said = {1: "once", 2: "twice"}.get(times, f"{times} times")
        schema, remark, *_ = path.read_text().splitlines()
        assert schema == "# yaml-language-server: $schema=../schemas/layer.json"
        assert remark.startswith(f"# {said} in the network")
        assert f"| `{network}/{name}.yaml` | {times} |" in (EXAMPLES / "README.md").read_text()
        weights += times * layer.nest.words["Ker"]
        multiply_adds += times * layer.nest.work // table["batch"]
    assert (weights, multiply_adds) == (table["weights"], table["multiply_adds_per_sample"])
    assert f"| {weights:,} | {multiply_adds:,} |" in (EXAMPLES / "README.md").read_text()


def bottleneck_convolutions(width: int) -> Iterator[Shape]:
    """Every convolution of ResNet-50 at 224x224 whose 3x3 convolutions are `width` times as wide."""
    yield 3, 64, 7, 2, 224
    channels, size = 64, 56
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner, out = 64 * 2**stage * width, 256 * 2**stage
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            yield channels, inner, 1, 1, size
            yield inner, inner, 3, stride, size
            if block == 0:
                yield channels, out, 1, stride, size
            channels, size = out, size // stride
            yield inner, out, 1, 1, size


def vgg16_convolutions() -> Iterator[Shape]:
    channels = 3
    for stage, (filters, count) in enumerate([(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)]):
        for _ in range(count):
            yield channels, filters, 3, 1, 224 // 2**stage
            channels = filters


def listed(network: str) -> Counter[Shape]:
    """The network as its files and their multiplicities say."""
    shapes: Counter[Shape] = Counter()
    for name, times in TABLES[network]["layers"].items():
        layer = load_layer(EXAMPLES / network / f"{name}.yaml")
        kernel, stride = layer.kernel[0], layer.stride[0]
        assert layer.padding == (kernel // 2,) * len(layer.kernel)
        assert layer.output_shape[2:] == (layer.input[2] // stride,) * len(layer.kernel)
        shapes[layer.input[1], layer.out_channels, kernel, stride, layer.input[2]] += times
    return shapes


@pytest.mark.parametrize(
    ("network", "convolutions"),
    [
        ("resnet50", bottleneck_convolutions(1)),
        ("wrn50_4", bottleneck_convolutions(4)),
        ("vgg16", vgg16_convolutions()),
    ],
)
def test_files_are_the_network_layer_by_layer(network: str, convolutions: Iterator[Shape]) -> None:
    assert listed(network) == Counter(convolutions)


def test_published_totals() -> None:
    """Parameters and operations as the papers and torchvision give them."""
    resnet = TABLES["resnet50"]
    norms = sum(2 * filters for _, filters, *_ in bottleneck_convolutions(1))
    assert resnet["weights"] + norms + 2048 * 1000 + 1000 == 25_557_032
    assert resnet["multiply_adds_per_sample"] + 2048 * 1000 == 4_089_184_256
    wide = list(bottleneck_convolutions(2))  # the loop, at the width whose total is well known
    assert sum(c * k * r * r + 2 * k for c, k, r, *_ in wide) + 2048 * 1000 + 1000 == 68_883_240
    vgg = TABLES["vgg16"]
    biases = sum(filters for _, filters, *_ in vgg16_convolutions())
    connected = 25088 * 4096 + 4096 + 4096 * 4096 + 4096 + 4096 * 1000 + 1000
    assert vgg["weights"] + biases + connected == 138_357_544


def test_cosmoflow_is_what_its_paper_counts() -> None:
    """Table 2 at W = 128: 9.44 M parameters, 18.52 GFlop forward and 55.55 in all per sample."""
    cosmo = TABLES["cosmoflow"]
    connected = (2048 + 1) * 2048 + (2048 + 1) * 256 + (256 + 1) * 4
    assert round((cosmo["weights"] + connected) / 1e6, 2) == 9.44
    assert round(2 * cosmo["multiply_adds_per_sample"] / 1e9, 2) == 18.52
    assert round(3 * 2 * cosmo["multiply_adds_per_sample"] / 1e9, 2) == 55.55
