"""Transposed convolutions: torch's shapes, exchanged roles, words of networks that have them."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import synth
from synth.base.errors import InputError, UsageError
from synth.layer.intervals import overlap, volume
from synth.layer.layer import Layer, parse_layer
from synth.network.file import parse_network
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest
from synth.planning.plan_file import parse_plan
from synth.schedule.distribution import Distribution
from synth.simulation.simulate import simulated

UP = Layer.conv2d((4, 8, 7, 6), 6, 3, stride=2, padding=1, transposed=True, output_padding=1, name="up")


@given(
    st.integers(1, 7),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 2),
    st.integers(1, 3),
    st.integers(0, 3),
)
def test_shapes_are_those_of_torch(
    size: int, kernel: int, stride: int, padding: int, dilation: int, more: int
) -> None:
    numbers = {"stride": stride, "padding": padding, "dilation": dilation, "output_padding": more}
    try:
        layer = Layer.conv1d((2, 4, size), 6, kernel, transposed=True, groups=2, **numbers)
    except UsageError:
        return
    module = torch.nn.ConvTranspose1d(4, 6, kernel, groups=2, **numbers)
    assert layer.output_shape == module(torch.zeros(2, 4, size)).shape
    assert layer.conv.output_shape == layer.input
    weight = layer.conv.out_channels, layer.conv.input[1] // 2, *layer.kernel
    assert weight == tuple(module.weight.shape)


@pytest.mark.parametrize("pass_", ["forward", "backward-data", "backward-filter", "training"])
def test_a_pass_is_the_exchanged_pass_of_the_convolution(pass_: str) -> None:
    plan = synth.plan(UP, 8, pass_=pass_)
    swapped = {"forward": "backward-data", "backward-data": "forward"}.get(pass_, pass_)
    same = synth.plan(UP.conv, 8, pass_=swapped)
    assert plan.words["total"] == same.words["total"]
    assert plan.pass_ == pass_
    simulated(plan)
    text = json.dumps(plan.to_json())
    again = parse_plan(text, "plan.json")
    assert again.id == plan.id
    assert again.layer == UP
    assert "as the backward-data pass of conv2d 4x6x14x12 to 4x8x7x6" in synth.report(plan)


def test_training_keeps_what_it_is_given() -> None:
    plan = synth.plan(UP, 8, pass_="training")
    assert [t.pass_ for t in plan.pass_plans] == ["backward-data", "forward", "backward-filter"]
    first, second, last = plan.pass_plans
    assert first.saves == {"Ker", "Out"}
    assert (second.reuses, second.saves) == ({"Ker"}, {"In"})
    assert last.reuses == {"In", "Out"}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            "output_padding: 1",
            "output_padding is [1], but the layer is not transposed; write transposed: true",
        ),
        (
            "transposed: true\n  output_padding: 2",
            "output_padding 2 is not less than the stride 2; use at most",
        ),
        ("transposed: maybe", "transposed is 'maybe'; write true or false"),
        ("transposed: true\n  padding: 9", "padding 9 leaves -8 output positions, not 1 to"),
    ],
)
def test_wrong_files(lines: str, said: str) -> None:
    text = f"conv1d:\n  input: [2, 4, 5]\n  out_channels: 3\n  kernel: 2\n  stride: 2\n  {lines}\n"
    with pytest.raises(InputError) as caught:
        parse_layer(text, "layer.yaml")
    assert said in str(caught.value)


NETWORK = """
input: [4, 6, 8, 8]
layers:
  - {name: a, conv2d: {out_channels: 8, kernel: 3, padding: 1}}
  - {name: b, conv2d: {out_channels: 4, kernel: 2, stride: 2}}
  - {name: up, upsample: {scale: 2, linear: true}}
  - {name: both, cat: {}, from: [a, up]}
  - {name: gate, globalpool: {}, from: a}
  - {name: c, conv2d: {out_channels: 8, kernel: 3, padding: 1}, from: both}
  - {name: gated, mul: {}, from: [c, gate]}
"""


def test_words_between_layers_by_hand() -> None:
    """The words of joins, upsamplings and gates, against boxes that are intersected one by one."""
    network = parse_network(NETWORK, "net.yaml")
    assert network.nodes["up"].shape == (4, 4, 8, 8)
    assert network.nodes["both"].shape == (4, 12, 8, 8)
    for procs in (4, 6):
        plan = plan_network(network, NetworkRequest(procs))
        grids = {n.name: p for n, p in zip(network.planned, plan.placed_grids, strict=True)}
        assert all(p.order == plan.placed_grids[0].order for p in plan.placed_grids)
        words = {(e.source, e.target): n for e, n in plan.edge_words.items() if e.role == "in"}
        for source, first, count in (("a", 0, 8), ("up", 8, 4)):
            assert words[source, "c"] == _received(network, grids, source, first, count)


def _received(network, grids, source, first, count):  # type: ignore[no-untyped-def]
    """Words that the most-receiving rank lacks of what the layer c reads of a source."""

    def boxes(name, tensor):  # type: ignore[no-untyped-def]
        distribution = Distribution(network.nodes[name].layer.nest, grids[name].grid)
        for at in distribution.ranks:
            b, g, c, *rows = distribution.owned(tensor, distribution.at(at))
            width = distribution.nest.extents.c if tensor == "In" else distribution.nest.extents.k
            channels = (g[0] * width + c[0], (g[1] - 1) * width + c[1])
            yield (b, channels, *rows)

    have = list(boxes(source, "In" if source == "up" else "Out"))
    lacks = []
    for mine, (b, channels, *rows) in itertools.zip_longest(have, boxes("c", "In"), fillvalue=None):
        low, high = (min(max(end - first, 0), count) for end in channels)
        want = (b, (low, high), *rows)
        held = volume(overlap(want, mine)) if mine else 0
        lacks.append(volume(want) - held)
    return max(lacks)
