"""No plan with margins receives fewer words than the bound of layers that may compute words again."""

from __future__ import annotations

import itertools

import pytest

from synth.bounds.least_inputs import Axis
from synth.layer.layer import Layer
from synth.network.file import parse_network
from synth.network.graph import Network
from synth.network.plan.recomputation import _ratio, recomputing_assumptions, recomputing_words
from synth.network.plan.report import report
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest
from tests.support.effort import tried
from tests.support.problems.small_network_files import small_network

NETWORKS = {
    "chain": """
network: chain
input: [1, 2, 48, 40]
layers:
  - {name: a, conv2d: {out_channels: 16, kernel: 3, padding: 1}}
  - {name: r, relu: {}}
  - {name: b, conv2d: {out_channels: 16, kernel: 5, padding: 2}}
  - {name: n, groupnorm: {groups: 4}}
  - {name: c, conv2d: {out_channels: 16, kernel: 3, padding: 1}}
  - {name: s, add: {}, from: [c, r]}
  - {name: d, conv2d: {out_channels: 2, kernel: 3}}
""",
    "u": """
network: u
input: [1, 3, 64, 64]
layers:
  - {name: a, conv2d: {out_channels: 8, kernel: 3, padding: 1}}
  - {name: b, conv2d: {out_channels: 8, kernel: 3, padding: 1}}
  - {name: p, pool: {kernel: 2, stride: 2}}
  - {name: c, conv2d: {out_channels: 16, kernel: 3, padding: 1}}
  - {name: q, conv2d: {out_channels: 32, kernel: 3, stride: 2, padding: 1}}
  - {name: e, conv2d: {out_channels: 32, kernel: 3, padding: 2, dilation: 2}}
  - {name: v, conv2d: {out_channels: 16, kernel: 4, stride: 2, padding: 1, transposed: true}}
  - {name: u, upsample: {scale: 2}}
  - {name: j, cat: {}, from: [u, b]}
  - {name: f, conv2d: {out_channels: 8, kernel: 3, padding: 1}}
  - {name: g, conv2d: {out_channels: 8, kernel: 3, padding: 1, groups: 8}}
  - {name: h, conv2d: {out_channels: 12, kernel: 3, padding: 1}}
  - {name: x, pixelshuffle: {factor: 2}}
  - {name: o, conv2d: {out_channels: 3, kernel: 3, padding: 1}}
""",
    "volumes": """
network: volumes
input: [2, 4, 16, 16, 16]
layers:
  - {name: a, conv3d: {out_channels: 16, kernel: 3, padding: 1}}
  - {name: b, conv3d: {out_channels: 16, kernel: [1, 3, 3], padding: [0, 1, 1]}}
  - {name: c, conv3d: {out_channels: 4, kernel: 3, padding: 1}}
""",
}


@pytest.mark.parametrize("procs", [2, 4, 9, 16])
@pytest.mark.parametrize("name", list(NETWORKS))
@pytest.mark.one_in(4)
def test_no_plan_receives_fewer(name: str, procs: int) -> None:
    network = parse_network(NETWORKS[name], "one.yaml")
    for recompute in (0.0, 0.1, 1.0):
        request = NetworkRequest(procs, resident_weights=True, recompute=recompute)
        plan = plan_network(network, request)
        words = recomputing_words(plan)
        assert 0 <= words <= plan.cost
        assert words or procs == 2 or plan.cost == 0 or recompute > 0.1 or name == "volumes"
        text = report(plan)
        assert ("even one that computes words again" in text) == (plan.margins is not None and words > 0)
        assert plan.margins is None or not words or all(each in text for each in recomputing_assumptions())


def test_no_plan_of_a_random_network_receives_fewer() -> None:
    some = 0
    for seed in range(tried(25, 800)):
        network = parse_network(small_network(seed), "one.yaml")
        procs, recompute = (2, 3, 4, 6, 8, 16)[seed % 6], (0.0, 0.05, 0.1, 0.5, 1.0)[seed % 5]
        plan = plan_network(network, NetworkRequest(procs, resident_weights=True, recompute=recompute))
        words = recomputing_words(plan)
        assert words <= plan.cost, (seed, procs, recompute)
        some += words > 0
    assert some > 8


def test_more_work_lowers_it_and_training_has_none() -> None:
    network: Network = parse_network(NETWORKS["chain"], "one.yaml")
    found = []
    for recompute in (0.02, 0.1, 0.5):
        plan = plan_network(network, NetworkRequest(4, resident_weights=True, recompute=recompute))
        found.append(recomputing_words(plan))
        assert plan.cost <= 2.5 * found[-1]
    assert found == sorted(found, reverse=True)
    trained = plan_network(network, NetworkRequest(4, training=True, recompute=0.1))
    assert "computes words again" not in report(trained)


@pytest.mark.parametrize("taps", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True], ids=["", "transposed"])
def test_every_set_of_a_line_reads_its_share(taps: int, stride: int, transposed: bool) -> None:
    """Strides, dilations and transposed layers, beside all sets of outputs."""
    for size, padding, dilation in itertools.product((5, 8), range(taps), (1, 2)):
        if transposed and (dilation > 1 or 2 * padding >= taps + stride):
            continue
        if not transposed and size + 2 * padding <= dilation * (taps - 1):
            continue
        numbers = {"kernel": taps, "stride": stride, "padding": padding, "dilation": dilation}
        layer = Layer.conv1d((1, 1, size), 1, transposed=transposed, **numbers)
        outputs = layer.output_shape[2]
        reads = [set[int]() for _ in range(outputs)]
        for one, tap in itertools.product(range(size if transposed else outputs), range(taps)):
            other = stride * one + dilation * tap - padding
            if 0 <= other < (outputs if transposed else size):
                reads[other if transposed else one].add(one if transposed else other)
        ratio = _ratio(Axis(outputs, taps, padding, padding), stride, dilation, size, transposed)
        masks = [sum(1 << each for each in read) for read in reads]
        for chosen in range(1, 1 << min(outputs, 11)):
            union = 0
            for at in range(outputs):
                union |= masks[at] if chosen >> at & 1 else 0
            assert union.bit_count() >= ratio * chosen.bit_count() - 1e-9
