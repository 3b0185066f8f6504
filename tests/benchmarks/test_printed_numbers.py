"""Every checkable number of the papers, recomputed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.papers.printed_numbers import (
    DISAGREE,
    SWCAFFE_FORWARD,
    activation_gib,
    conv_gflop,
    cosmoflow,
    model_mib,
    swcaffe_gflops,
)
from synth.network.file import load_network, parse_network
from synth.network.graph import Network

NETWORKS = Path(__file__).resolve().parents[2] / "examples/networks"


@pytest.mark.parametrize(
    ("width", "forward", "total", "gib"),
    [(128, 18.52, 55.55, 0.824), (256, 147.9, 443.8, 6.59), (512, 1183, 3550, 52.7)],
)
def test_cosmoflow_table_2(width: int, forward: float, total: float, gib: float) -> None:
    network = cosmoflow(width)
    assert conv_gflop(network) == pytest.approx(forward, rel=5e-4)
    assert 3 * conv_gflop(network) == pytest.approx(total, rel=5e-4)
    assert round(network.parameters / 1e6, 2) == 9.44
    assert activation_gib(network) == pytest.approx(gib, rel=1e-3)


def test_cosmoflow_table_1() -> None:
    """GFlop of conv2 and conv3 at W = 128; conv1 only with one input channel."""
    by_name = {node.name: 2 * node.operations / 1e9 for node in cosmoflow(128).planned}
    assert by_name["conv3d1"] / 4 == pytest.approx(1.81, abs=0.005)
    assert by_name["conv3d2"] == pytest.approx(7.25, abs=0.005)
    assert by_name["conv3d3"] == pytest.approx(3.62, abs=0.005)


def alexnet() -> Network:
    """AlexNet of Krizhevsky et al. with two groups, batch norms instead of local response normalization."""
    text = """
network: alexnet
input: [1, 3, 227, 227]
layers:
  - conv2d: {out_channels: 96, kernel: 11, stride: 4, bias: true}
  - pool: {kernel: 3, stride: 2}
  - conv2d: {out_channels: 256, kernel: 5, padding: 2, groups: 2, bias: true}
  - pool: {kernel: 3, stride: 2}
  - conv2d: {out_channels: 384, kernel: 3, padding: 1, bias: true}
  - conv2d: {out_channels: 384, kernel: 3, padding: 1, groups: 2, bias: true}
  - conv2d: {out_channels: 256, kernel: 3, padding: 1, groups: 2, bias: true}
  - pool: {kernel: 3, stride: 2}
  - flatten: {}
  - linear: {out_features: 4096}
  - linear: {out_features: 4096}
  - linear: {out_features: 1000}
"""
    return parse_network(text, "alexnet.yaml")


def test_model_sizes_of_swcaffe() -> None:
    assert model_mib(alexnet().parameters) == pytest.approx(232.6, abs=0.06)
    resnet = load_network(NETWORKS / "resnet50.yaml")
    norms = [node for node in resnet.nodes.values() if node.kind == "batchnorm"]
    statistics = sum(2 * node.shape[1] for node in norms)
    assert model_mib(resnet.parameters, statistics, len(norms)) == pytest.approx(97.7, abs=0.06)


def test_vgg_sizes_are_element_counts() -> None:
    vgg = load_network(NETWORKS / "vgg16.yaml")
    assert vgg.nodes["fc6"].parameters - 4096 == 102_760_448
    assert vgg.nodes["conv1_1"].parameters - 64 == 1_728
    assert any("102" in said for said, _ in DISAGREE)


def test_swcaffe_forward_rates() -> None:
    for name, channels, filters, size, seconds, printed in SWCAFFE_FORWARD:
        assert swcaffe_gflops(channels, filters, size, seconds) == pytest.approx(printed, rel=0.025), name


def test_vgg_of_the_oracle_paper_has_169_million_parameters() -> None:
    """226-pixel input, ceil pooling: the map before the first fully connected layer is 8x8, not 7x7."""
    text = (NETWORKS / "vgg16.yaml").read_text().replace("224, 224", "226, 226")
    text = text.replace("pool: {kernel: 2}", "pool: {kernel: 2, ceil: true}")
    vgg = parse_network(text, "vgg.yaml")
    biases = sum(node.shape[1] for node in vgg.planned if node.bias)
    assert vgg.parameters - biases == 169_801_408  # weights alone


def test_resnet_of_the_oracle_paper_has_25_million_parameters() -> None:
    assert 25 <= load_network(NETWORKS / "resnet50.yaml").parameters / 1e6 <= 26
