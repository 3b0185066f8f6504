"""A model with one call behind convolutions, and what such calls are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Call = Callable[[Any, torch.Tensor, torch.Tensor], Any]
SHAPES = {1: (4, 2, 8), 2: (4, 2, 6, 6), 3: (4, 2, 4, 4, 4)}
UNBATCHED = {dims: shape[1:] for dims, shape in SHAPES.items()}
CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


class Called(nn.Module):
    """A call of two maps of 8 channels, h and g, with whatever else the model has.

    call: takes the model, h and g. dims: spatial dimensions. parts: modules, parameters, and tensors, which
    become buffers. batch: whether the maps have one.
    """

    def __init__(self, call: Call, dims: int = 1, batch: bool = True, **parts: Any) -> None:
        super().__init__()
        self.conv, self.other = CONVS[dims](2, 8, 3, padding=1), CONVS[dims](2, 8, 1)
        self.shape = SHAPES[dims] if batch else UNBATCHED[dims]
        for name, each in parts.items():
            if isinstance(each, torch.Tensor) and not isinstance(each, nn.Parameter):
                self.register_buffer(name, each)
            else:
                setattr(self, name, each)
        self.call = [call]

    def forward(self, x: torch.Tensor) -> Any:
        return self.call[0](self, self.conv(x), self.other(x))


class Part(nn.Module):
    """A function with parameters that a part of a model has."""

    def __init__(self, call: Callable[[Any, torch.Tensor], torch.Tensor], **parameters: nn.Parameter) -> None:
        super().__init__()
        for name, each in parameters.items():
            setattr(self, name, each)
        self.call = [call]

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return self.call[0](self, h)


def param(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.rand(*shape) + 0.5)


def rows(h: torch.Tensor) -> torch.Tensor:
    """A map of (samples, channels, positions) as rows of features."""
    return h.transpose(1, 2)


def alone(module: nn.Module, dims: int = 1, batch: bool = True) -> Called:
    """A module that takes a map, and nothing else."""
    return Called(lambda m, h, g: m.module(h), dims, batch, module=module)


def loss(module: nn.Module, call: Call, **parts: Any) -> Callable[[], Called]:
    """A loss as a module, of what a call of the model gives it."""
    return lambda: Called(lambda m, h, g: m.module(*call(m, h, g)), module=module, **parts)


def labels() -> torch.Tensor:
    return torch.arange(4 * 8).view(4, 8) % 8


def signs() -> torch.Tensor:
    return torch.arange(4 * 8 * 8).view(4, 8, 8) % 2 * 2.0 - 1


def causal() -> torch.Tensor:
    return torch.triu(torch.full((8, 8), -torch.inf), 1)


def padded() -> torch.Tensor:
    return torch.arange(4 * 8).view(4, 8) % 8 > 5
