"""Words and seconds of normalizations and of calls without a layout in plans of network files."""

from __future__ import annotations

from dataclasses import replace

import pytest
from flat_machine import ALPHA, BANDWIDTH, BETA, FLAT, RATE
from torch import Tensor, nn

from synth.layer.axes import PerAxis
from synth.network.file import parse_network
from synth.network.graph import Network, Node
from synth.network.grids.layer_class import LayerClass
from synth.network.grids.owned_boxes import PlacedGrid
from synth.network.plan.report import report
from synth.network.plan.statistics import group_statistics
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest
from synth.network.step_time.between import Between, between
from synth.network.step_time.calls import call_costs
from synth.network.step_time.layer_times import layer_times
from synth.network.write import network_text
from synth.parallel.plan_model import plan_model

NORMED = """
network: normed
input: [2, 8, 16, 16]
layers:
  - {name: a, conv2d: {out_channels: 16, kernel: 3, padding: 1}}
  - {name: g, groupnorm: {groups: 4}}
  - {name: b, conv2d: {out_channels: 16, kernel: 3, padding: 1}}
  - {name: i, instancenorm: {affine: true}}
  - {name: c, conv2d: {out_channels: 8, kernel: 1}}
"""


class Normed(nn.Module):
    """The same as a torch model."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.g = nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(4, 16)
        self.b, self.i = nn.Conv2d(16, 16, 3, padding=1), nn.InstanceNorm2d(16, affine=True)
        self.c = nn.Conv2d(16, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Convolutions and normalizations."""
        out: Tensor = self.c(self.i(self.b(self.g(self.a(x)))))
        return out


@pytest.mark.parametrize(("mode", "procs"), [("training", 6), ("inference", 4)])
def test_words_are_those_of_the_steps(mode: str, procs: int) -> None:
    """The network of the model, planned as a file is, has the words of the model's plan."""
    model = Normed().train(mode == "training")
    plan = plan_model(model, (2, 8, 16, 16), procs, mode=mode)
    found = group_statistics(plan)
    assert set(found) == {"g", "i"}
    for name, (forward, backward) in found.items():
        there, back = plan.words.calls[name]
        assert forward == max(there) > 0
        if mode == "training":
            assert backward == max(back)


def test_the_number_of_groups_is_written_and_read() -> None:
    plan = plan_model(Normed(), (2, 8, 16, 16), 4)
    assert plan.network.nodes["g"].groups == 4
    text = network_text(plan.network)
    assert "groups: 4" in text
    assert parse_network(text, "written.yaml").nodes["g"].groups == 4


def test_the_report_has_the_words() -> None:
    network = parse_network(NORMED, "normed.yaml")
    plan = plan_network(network, NetworkRequest(4, resident_weights=True))
    words = sum(forward for forward, _ in group_statistics(plan).values())
    assert plan.group_statistics_words == words > 0
    assert f"group, instance and layer normalizations exchange {words} words more" in report(plan)


def test_norms_of_samples_exchange_among_the_ranks_of_a_sample() -> None:
    """Cut by samples they are free; a layer normalization is free unless channels are cut."""
    kind = LayerClass.of(parse_network(NORMED, "normed.yaml").planned[0])
    placed = [PlacedGrid(PerAxis(b=2)), PlacedGrid(PerAxis(h=2)), PlacedGrid(PerAxis(k=2))]
    request = NetworkRequest(2, "time", machine=FLAT)
    found = layer_times(kind, request, placed)
    numbers = 2 * 2 * 16 * 4  # bytes of two numbers per sample and channel; one round of one message
    assert found.group_norm.tolist() == pytest.approx([0.0, ALPHA + numbers * BETA, 0.0])
    positions = 2 * 2 * 16 * 16 * 4
    assert found.layer_norm.tolist() == pytest.approx([0.0, 0.0, ALPHA + positions * BETA])
    followed = Between(group_norms=2, groups=2 * 4 / 16)  # twice four groups
    grouped = layer_times(kind, request, placed, followed)
    assert grouped.group_norm.tolist() == pytest.approx([0.0, ALPHA + numbers / 4 * BETA, 0.0])


def test_many_groups_on_many_ranks_go_by_owners() -> None:
    """On 64 ranks one round would move 32 times the words of two."""
    kind = LayerClass.of(parse_network(NORMED, "normed.yaml").planned[0])
    placed = [PlacedGrid(PerAxis(h=8, w=8))]
    found = layer_times(kind, NetworkRequest(64, "time", machine=FLAT), placed)
    numbers = 2 * 2 * 16 * 4
    assert found.group_norm.tolist() == pytest.approx([2 * 63 * (ALPHA + numbers / 64 * BETA)])


CALLS = """
network: calls
input: [4, 8, 16, 16]
layers:
  - {name: a, conv2d: {out_channels: 8, kernel: 3, padding: 1}}
  - {name: sort, gathered: {shape: [4, 8, 16, 16]}}
  - {name: b, from: sort, conv2d: {out_channels: 8, kernel: 3, padding: 1}}
"""


def test_a_gathered_call_has_words_and_seconds_in_the_plan() -> None:
    """Every rank receives what it does not have, and touches the whole input and output."""
    network = parse_network(CALLS, "calls.yaml")
    words = 4 * 8 * 256
    (call,) = call_costs(network, 4, FLAT)
    gather, touch = 3 * (ALPHA + words * BETA), 2 * words * 4 / BANDWIDTH  # a quarter of 4 bytes a word
    assert (call.name, call.what, call.words) == ("sort", "gathered", words * 3 // 4)
    assert (call.forward, call.backward) == pytest.approx((gather + touch, gather + 2 * touch))
    found = between(network, 4, FLAT)["a"]
    assert (found.fixed, found.fixed_backward) == (call.forward, call.backward)
    plan = plan_network(network, NetworkRequest(4, "time", machine=FLAT, resident_weights=True))
    assert plan.cost > call.forward
    assert f"calls without a layout of their own: 1, {call.forward * 1e3:.3g} ms" in report(plan)


def test_attention_computes_and_gathers_keys_and_values() -> None:
    """Of one sample and head the ranks divide the queries; each reads all keys and values."""
    nodes = {
        name: Node(name, "gathered", ("input",), (1, 1, 64, 8), (1, 1, 64, 8), divided="view")
        for name in ("q", "k", "v")
    }
    nodes["attend"] = Node(
        "attend", "gathered", ("q", "k", "v"), (1, 1, 64, 8), (1, 1, 64, 8), divided="product"
    )
    (call,) = call_costs(Network("attention", (1, 1, 64, 8), nodes), 4, FLAT)
    queries, keys = 64 * 8 // 4 * 3 // 4, 64 * 8 * 3 // 4
    assert call.words == queries + 2 * keys
    exchanges = 3 * ALPHA + call.words * 4 * BETA
    assert call.forward == pytest.approx(exchanges + 2 * 2 * 64 * 64 * 8 / 4 / RATE)


class Mixed(nn.Module):
    """A convolution, attention weights of its rows, and a call that needs them whole."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.c = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(b, 8, h, w) to (b, 8, h, h)."""
        y = self.a(x)
        out: Tensor = self.c((y @ y.transpose(2, 3)).renorm(2, 0, 1.0))
        return out


def test_calls_of_a_model_have_the_words_of_its_steps() -> None:
    plan = plan_model(Mixed().eval(), (1, 8, 16, 16), 4, mode="inference", objective="time", machine="h100")
    calls = {call.name: call for call in plan.calls}
    assert {call.what for call in calls.values()} == {"product", "gathered"}
    assert calls == {
        name: replace(call, words=max(plan.words.calls[name][0])) for name, call in calls.items()
    }
    assert all(call.words > 0 and call.forward > 0 for call in calls.values())
    assert "calls without a layout of their own: 2" in report(plan)
