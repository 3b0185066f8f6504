"""The bound of any schedule of a network is the sum of those of its layers, and below its plan."""

from __future__ import annotations

from fractions import Fraction

import pytest

from synth.bounds.surface import surface_words
from synth.bounds.training_step import training_bound
from synth.bounds.universal import universal_bound
from synth.layer.layer import Layer
from synth.network.file import load_network, parse_network
from synth.network.plan.report import report
from synth.network.plan.universal import assumptions, loads, universal_words
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest
from synth.schedule.distribution import Distribution

IMAGE = """
network: image
input: [1, 16, 96, 96]
layers:
  - {name: a, conv2d: {out_channels: 32, kernel: 3, padding: 1}}
  - {name: p, pool: {kernel: 2, stride: 2}}
  - {name: b, conv2d: {out_channels: 32, kernel: 3, padding: 1}}
  - {name: u, conv2d: {out_channels: 16, kernel: 2, stride: 2, transposed: true}}
  - {name: c, conv2d: {out_channels: 2, kernel: 3, padding: 1}}
"""
VOLUME = """
network: volume
input: [1, 8, 32, 32, 32]
layers:
  - {name: a, conv3d: {out_channels: 16, kernel: 3, padding: 1}}
  - {name: b, conv3d: {out_channels: 4, kernel: 3, padding: 1}}
"""


@pytest.mark.parametrize("text", [IMAGE, VOLUME], ids=["image", "volume"])
@pytest.mark.parametrize("procs", [2, 4, 8, 16])
@pytest.mark.one_in(2)
def test_it_is_the_sum_of_the_layers_and_below_the_plan(text: str, procs: int) -> None:
    network = parse_network(text, "one.yaml")
    for mode in ("training", "resident_weights", "forward"):
        request = NetworkRequest(procs, **({} if mode == "forward" else {mode: True}))  # type: ignore[arg-type]
        plan, total = plan_network(network, request), 0.0
        for kind, placed in zip(plan.layer_classes, plan.placed_grids, strict=True):
            nest = kind.nest
            load = max(
                Distribution(nest.turn(placed.turned), placed.grid).most_real_work,
                -(-nest.real_work // procs),
            )
            halos = surface_words(nest, procs, load) / procs
            if mode == "resident_weights" or not kind.weighted:
                total += halos
            elif mode == "training":
                passes = kind.passes(training=True)
                total += max(training_bound(nest, procs, load, passes).words, (len(passes) - 1) * halos)
            else:
                assert universal_bound(nest, procs, None, load).words <= sum(plan.layer_costs)
        found = universal_words(plan)
        assert found <= sum(plan.layer_costs) <= plan.cost
        if mode != "forward":
            assert found == pytest.approx(total)
        assert found > 0 or (mode == "resident_weights" and procs == 2)


STRIDED = """
network: strided
input: [1, 4, 96, 96]
layers:
  - {name: a, conv2d: {out_channels: 8, kernel: 7, stride: 2, padding: 3}}
  - {name: p, pool: {kernel: 3, stride: 2, padding: 1}}
  - {name: b, conv2d: {out_channels: 8, kernel: 4, padding: 1}}
  - {name: c, conv2d: {out_channels: 8, kernel: 3, dilation: 2, padding: 2}}
"""


@pytest.mark.parametrize("procs", [16, 25])
def test_strides_pools_even_windows_and_dilations_have_bounds(procs: int) -> None:
    """On 4 processes the last layer has no bound: each takes residue classes, and receives nothing."""
    plan = plan_network(parse_network(STRIDED, "one.yaml"), NetworkRequest(procs, resident_weights=True))
    words = [
        surface_words(kind.nest, procs, load)
        for kind, load in zip(plan.layer_classes, loads(plan), strict=True)
    ]
    assert min(words) > 0
    assert universal_words(plan) == Fraction(sum(words), procs) <= sum(plan.layer_costs)


def test_extents_are_not_walked() -> None:
    huge = 2**40
    for window in ({"padding": 1}, {"stride": 2, "padding": 1}, {"dilation": 2**20, "padding": 2**20}):
        layer = Layer.conv2d((1, 8, huge, huge), 8, 3, **window)  # type: ignore[arg-type]
        for procs in (4, 2**20 + 1):
            assert surface_words(layer.nest, procs, -(-layer.nest.real_work // procs)) >= 0


def test_inference_has_a_bound_that_names_what_it_assumes() -> None:
    """Weights move in no layer, so halos are all that is proved to move."""
    plan = plan_network(parse_network(IMAGE, "one.yaml"), NetworkRequest(4, resident_weights=True))
    words = universal_words(plan)
    assert plan.cost / 5 < words < plan.cost
    lines = report(plan).splitlines()
    (at,) = [i for i, each in enumerate(lines) if each.startswith("any schedule of these layers receives")]
    assert f"at least {int(words):,}".replace(",", " ") in lines[at]
    assert lines[at + 1] == "  given: " + "; ".join(assumptions(plan))
    assert "In and Out, at the start and at the end (weights may be everywhere)" in lines[at + 1]
    training = plan_network(plan.network, NetworkRequest(4, training=True))
    assert "In, Ker and Out" in "; ".join(assumptions(training))


def test_examples_in_training_are_within_two_of_it() -> None:
    for name in ("resnet50", "vgg16", "tutorial"):
        network = load_network(f"examples/networks/{name}.yaml")
        plan = plan_network(network, NetworkRequest(16, training=True))
        assert universal_words(plan) < plan.cost < 2 * universal_words(plan)
