"""Models with tensors as plain attributes, and calls that give several results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from called import Called, param
from torch import nn
from torch.nn import functional


class Detector(nn.Module):
    """Boxes of two maps, from strides that are an attribute and anchors that forward keeps for one shape."""

    def __init__(self) -> None:
        super().__init__()
        self.stride = torch.tensor([2.0, 4.0])
        self.down = nn.Conv2d(8, 8, 3, 2, 1)
        self.heads = nn.ModuleList(nn.Conv2d(8, 8 + 3, 1) for _ in range(2))
        self.shape: Any = None
        self.anchors = self.strides = torch.empty(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = [head(each) for head, each in zip(self.heads, (x, self.down(x)), strict=True)]
        if self.shape != x.shape:
            self.anchors, self.strides = (each.transpose(0, 1) for each in self.made(maps))
            self.shape = x.shape
        sides, classes = torch.cat([each.flatten(2) for each in maps], 2).split((8, 3), 1)
        sides = sides.view(len(x), 4, 2, -1).transpose(2, 1).softmax(1)
        places = torch.arange(2, dtype=x.dtype, device=x.device).view(1, 2, 1, 1)
        low, high = (sides * places).sum(1).chunk(2, 1)
        low, high = self.anchors.unsqueeze(0) - low, self.anchors.unsqueeze(0) + high
        boxes = torch.cat(((low + high) / 2, high - low), 1) * self.strides
        return torch.cat((boxes, classes.sigmoid()), 1)

    def made(self, maps: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Centers and strides of all positions."""
        points, strides = [], []
        for found, stride in zip(maps, self.stride, strict=True):
            settings: Any = {"dtype": found.dtype, "device": found.device}
            height, width = found.shape[2:]
            rows, columns = torch.arange(height, **settings) + 0.5, torch.arange(width, **settings) + 0.5
            grid = torch.meshgrid(rows, columns, indexing="ij")
            points.append(torch.stack(grid[::-1], -1).view(-1, 2))
            strides.append(torch.full((height * width, 1), stride, **settings))
        return torch.cat(points), torch.cat(strides)


def ran(module: nn.Module, x: torch.Tensor) -> nn.Module:
    """A module that has run in one process, and has kept what it made."""
    module.double().eval()(x.double())
    return module.train()


class Table(nn.Module):
    """A function of a map and of a tensor that is a plain attribute."""

    def __init__(self, call: Callable[[Any, torch.Tensor], torch.Tensor], *values: float) -> None:
        super().__init__()
        self.call, self.values = [call], torch.tensor(values)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return self.call[0](self, h)


def table(call: Callable[[Any, torch.Tensor], torch.Tensor], *values: float) -> Callable[[], Called]:
    return lambda: Called(lambda m, h, g: m.t(h), t=Table(call, *values))


def targets() -> Table:
    """A module that has a tensor as a plain attribute."""
    made = Table(lambda t, h: h)
    made.values = torch.arange(8).double()
    return made


def looped(t: Any, h: torch.Tensor) -> torch.Tensor:
    for each in t.values:
        h = h * each + float(each)
    return h


CONSTANTS: dict[str, Callable[[], Called]] = {
    "a detector": lambda: Called(lambda m, h, g: m.d(h), 2, d=Detector()),
    "a detector that has run": lambda: Called(
        lambda m, h, g: m.d(h), 2, d=ran(Detector(), torch.randn(4, 8, 6, 6))
    ),
    "a factor": table(lambda t, h: h * t.values, *range(8)),
    "a loop over values": table(looped, 0.5, 1.5),
    "a loss": lambda: Called(lambda m, h, g: m.loss(h[0, 0], m.t.values), loss=nn.HuberLoss(), t=targets()),
    "an item": table(lambda t, h: h[:, : int((t.values * 2).sum().item())], 1, 2),
    "a condition": table(lambda t, h: h * 2 if (t.values.to(h.device) > 1).any() else h, 1, 2),
    "a list": table(lambda t, h: h.split(t.values.long().tolist(), 1)[1], 3, 5),
}
SEVERAL: dict[str, Callable[[], Called]] = {
    "topk": lambda: Called(lambda m, h, g: sum(h.topk(3, 1))),
    "topk, values alone": lambda: Called(lambda m, h, g: h.topk(3, 1).values),
    "sort": lambda: Called(lambda m, h, g: (lambda found: found[0] * found[1])(h.sort(1))),
    "max": lambda: Called(lambda m, h, g: (lambda found: found.values + found.indices)(h.max(2))),
    "both states of a cell that reads a concatenation": lambda: Called(
        lambda m, h, g: sum(m.cell(torch.cat([h.mean(2), g.amax(2)], 1), (h[..., 0], g[..., 1]))),
        cell=nn.LSTMCell(16, 8),
    ),
    "svd": lambda: Called(lambda m, h, g: torch.linalg.svd(h)[1]),
    "native_group_norm": lambda: Called(
        lambda m, h, g: (lambda a, b, c: a * c.view(4, 2, 1, 1).flatten(1, 2)[:, :1] + b.mean())(
            *torch.native_group_norm(h, m.w, None, 4, 8, 8, 2, 1e-5)
        ),
        w=param(8),
    ),
    "native_batch_norm, output alone": lambda: Called(
        lambda m, h, g: torch.native_batch_norm(h, m.w, None, m.a, m.v, m.training, 0.1, 1e-5)[0],
        w=param(8),
        a=torch.zeros(8),
        v=torch.ones(8),
    ),
    "instance_norm that tracks": lambda: Called(
        lambda m, h, g: functional.instance_norm(h, m.a, m.v, use_input_stats=m.training),
        a=torch.zeros(8),
        v=torch.ones(8),
    ),
    "torch.batch_norm by mode": lambda: Called(
        lambda m, h, g: torch.batch_norm(h, None, None, m.a, m.v, m.training, 0.1, 1e-5, False),
        a=torch.zeros(8),
        v=torch.ones(8),
    ),
    "max_pool with indices": lambda: Called(
        lambda m, h, g: (lambda found: found[0] * found[1])(functional.max_pool1d(h, 2, return_indices=True))
    ),
}
