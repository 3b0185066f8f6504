"""Small networks and plans of them, for tests that compare ranks with one process."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from synth.network.plan.plan import NetworkPlan
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest
from synth.parallel.front_end.trace_model import trace_model

PLANS: dict[str, Any] = {
    "free": None,
    "data": "data",
    "spatial": "spatial",
    "channel": "channel",
    "filter": "filter",
    "hybrid": {"b": 2, "k": 2},
    "rows_channels": {"h": 2, "c": 2},
    "mixed": {
        "stem": {"b": 4},
        "a.one": {"h": 2, "w": 2},
        "a.two": {"c": 4},
        "b.one": {"k": 4},
        "b.two": {"b": 2, "h": 2},
        "b.short": {"c": 2, "k": 2},
        "head": {"b": 2, "k": 2},
    },
    "volume": {"d": 2, "h": 2},
    "idle": None,  # see `some_idle`
}


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.two = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.relu = nn.ReLU(inplace=True)
        self.short: nn.Module = nn.Conv2d(before, after, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.norm2(self.two(self.relu(self.norm1(self.one(x)))))
        out += self.short(x)
        return self.relu(out)


class Residual(nn.Module):
    """A small ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.a, self.b = Block(8, 8, 1), Block(8, 12, 2)
        self.mean, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(12, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(torch.relu(self.norm(self.stem(x))))
        x = self.mean(self.b(self.a(x)))
        return self.head(x.view(x.size(0), -1))


class Cosmo(nn.Module):
    """Like CosmoFlow: volumes, pooled until few values are left."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv3d(2, 4, 3, padding=1), nn.LeakyReLU(), nn.AvgPool3d(2)),
            *(nn.Conv3d(4, 6, 3, padding=1), nn.BatchNorm3d(6), nn.LeakyReLU(), nn.MaxPool3d(2)),
        )
        self.tail = nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.tail(self.body(x))


class Odd(nn.Module):
    """Layers that cannot be cut, grouped convolutions, uneven everything."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, stride=2)
        self.depth, self.pairs = nn.Conv2d(6, 6, 3, padding=1, groups=6), nn.Conv2d(6, 9, 3, groups=3)
        self.norm = nn.LayerNorm([9, 5, 4])
        self.pool = nn.AvgPool2d(2, padding=1, count_include_pad=False)
        self.last = nn.Conv2d(9, 5, 1, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pairs(torch.relu(self.depth(self.first(x))))
        return self.last(self.pool(self.norm(x))).mean((2, 3))


def biases() -> nn.Module:
    """Several layers whose biases ranks share."""
    convs = (nn.Conv2d(n, n + 4, 3, padding=1) for n in (3, 7, 11, 15))
    return nn.Sequential(*(each for conv in convs for each in (conv, nn.Tanh())))


class Decoder(nn.Module):
    """Layers with fewer output than input channels, of stride 1, 2 and transposed: cut by input rows."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 12, 3, padding=1)
        self.down = nn.Conv2d(12, 4, 5, stride=2, padding=2)
        self.up = nn.ConvTranspose2d(4, 12, 4, stride=2, padding=1)
        self.head = nn.Conv2d(12, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.down(torch.relu(self.stem(x))))
        out: torch.Tensor = self.head(torch.relu(self.up(x)))
        return out


MODELS = {
    "decoder": (Decoder, (1, 2, 48, 40)),
    "decoder_by_channels": (Decoder, (1, 2, 32, 24)),
    "biases": (biases, (4, 3, 8, 8)),
    "residual": (Residual, (5, 3, 13, 13)),
    "cosmo": (Cosmo, (2, 2, 8, 8, 8)),
    "odd": (Odd, (3, 3, 15, 13)),
}


def near(one: torch.Tensor, other: torch.Tensor) -> float:
    """Checks that values are the same up to rounding; the largest difference, relative to values above 1."""
    torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-4)
    if not other.numel():
        return 0.0
    return float((one - other).abs().max() / other.abs().max().clamp(min=1))


def some_idle(whole: nn.Module, shape: tuple[int, ...]) -> NetworkPlan:
    """A plan that leaves ranks idle in layers with weights where it need not."""
    procs = dist.get_world_size()
    network = trace_model(whole, shape).network
    found = plan_network(network, NetworkRequest(procs, training=True, balance=0.3))
    assert min(placed.grid.size for placed in found.placed_grids) < procs
    return found
