"""What is computed from parts of a concatenation is computed where they lie, and slices read them there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import fx, nn
from torch.nn import functional

from synth.parallel.front_end.trace_model import trace_model

Call = Callable[["Joined", torch.Tensor, torch.Tensor], torch.Tensor]


class Joined(nn.Module):
    """A call on what two convolutions make, of 8 and of 4 channels."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 1), nn.Conv2d(3, 4, 1)
        self.scale, self.norm = nn.Parameter(torch.randn(12, 1, 1)), nn.BatchNorm2d(12)
        self.act, self.call = nn.ELU(), call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(self, self.one(x), self.two(x))


def joined(*parts: torch.Tensor) -> torch.Tensor:
    return torch.cat(parts, 1)


def halves(_: Joined, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    one, other = torch.tanh(joined(a, b)).chunk(2, 1)
    return one * torch.sigmoid(other)


def coupled(_: Joined, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Two layers of a flow, whose halves change places in between."""
    for _ in range(2):
        x, y = torch.exp(joined(b, a) * 0.1).flip(1).split([4, 8], 1)
        b, a = x + 1, y * y.sigmoid()
    return joined(a, b)


def normed(model: Joined, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Each channel has a number of its own, and a map of another layer is added."""
    x = model.act(joined(a, b) * model.scale + joined(b, a))
    return x[:, 8:] - x[:, :4]


def shuffled(_: Joined, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return functional.pixel_shuffle(torch.relu(joined(a, b, a)), 2)


def together(_: Joined, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Two parts of two channels make one channel together."""
    return functional.pixel_shuffle(joined(a[:, :2], a[:, 3:5], b), 2)


def smaller(_: Joined, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return functional.pixel_unshuffle(joined(a, b[:, 1:]), 2)


CALLS: dict[str, tuple[Call, list[str]]] = {
    "halves": (halves, ["relu", "relu", "reindex", "reindex", "cat", "relu", "mul"]),
    "coupled": (coupled, []),
    "normed": (normed, []),
    "shuffled": (shuffled, ["relu"] * 3 + ["pixelshuffle"] * 3 + ["cat"]),
    "together": (together, ["reindex", "reindex", "cat", "pixelshuffle", "pixelshuffle", "cat"]),
    "smaller": (smaller, ["reindex", "pixelunshuffle", "pixelunshuffle", "cat"]),
}


@pytest.mark.parametrize("name", CALLS)
def test_parts_give_what_the_whole_gives(name: str) -> None:
    call, kinds = CALLS[name]
    model, x = Joined(call).eval(), torch.randn(2, 3, 4, 6)
    found = trace_model(model, tuple(x.shape))
    made = fx.Interpreter(fx.GraphModule(model, found.graph)).run(x)
    assert torch.allclose(made[0], model(x), atol=1e-6)
    nodes = [node.kind for node in found.network.nodes.values() if node.kind != "conv2d"]
    assert not kinds or nodes == kinds
    if name != "together":  # whose middle parts are one value for the shuffle
        known = (part.node for parts in found.network.parts.values() for part in parts)
        assert list(known).count(None) == 1  # the network's input


def read_whole(_: Joined, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.tanh(joined(a, b)).sin()


def along_rows(_: Joined, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.tanh(joined(a, b))[:, :, 1:]


def of_statistics(model: Joined, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return model.norm(joined(a, b))[:, :6]


@pytest.mark.parametrize("call", [read_whole, along_rows, of_statistics])
def test_other_concatenations_stay(call: Call) -> None:
    found = trace_model(Joined(call).eval(), (2, 3, 4, 6))
    kinds = [node.kind for node in found.network.nodes.values()]
    assert kinds.index("cat") == 2
    if call is of_statistics:  # the slice lies where the first part does
        assert [part.node for part in found.network.parts["getitem"]] == ["one"]
