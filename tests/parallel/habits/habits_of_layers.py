"""Layers that forward gives other weights or settings for a call, and has as they were afterwards."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from habits_of_models import conv, model_habit
from torch import nn
from torch.func import functional_call


class Twice(nn.Module):
    """A layer that is called as it is, and once more with something changed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layer, self.other = conv(3, 6), self.made(), self.made()
        self.scale = nn.Parameter(torch.full((1,), 1.5))

    def made(self) -> nn.Module:
        return conv(6, 6)

    def again(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.layer(x) + self.again(x)


@model_habit("weights that are computed, by functional_call")
class Computed(Twice):
    def again(self, x: torch.Tensor) -> torch.Tensor:
        weights = {name: values * self.scale for name, values in self.layer.named_parameters()}
        return functional_call(self.layer, weights, (x,))


@model_habit("weights of another layer, by functional_call")
class Others(Twice):
    def again(self, x: torch.Tensor) -> torch.Tensor:
        return functional_call(self.layer, dict(self.other.named_parameters()), (x,))


@model_habit("weights without gradients, by functional_call of a block")
class Detached(Twice):
    def made(self) -> nn.Module:
        return nn.Sequential(conv(6, 6), nn.BatchNorm2d(6))

    def again(self, x: torch.Tensor) -> torch.Tensor:
        weights = {name: values.detach() for name, values in self.layer.named_parameters()}
        return functional_call(self.layer, weights, (x,))


@model_habit("weights of a layer that every rank computes whole, by functional_call")
class Whole(Twice):
    def made(self) -> nn.Module:
        return nn.Bilinear(6, 6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).mean((2, 3))
        weights = {name: values * self.scale for name, values in self.layer.named_parameters()}
        return self.layer(x, x) + functional_call(self.layer, weights, (x, x))


def set_for_a_call(name: str, made: Callable[[], nn.Module], **settings: Any) -> None:
    """A layer that has other settings for one of two calls."""

    class Set(Twice):
        def made(self) -> nn.Module:
            return made()

        def again(self, x: torch.Tensor) -> torch.Tensor:
            before = {each: getattr(self.layer, each) for each in settings}
            for each, value in settings.items():
                setattr(self.layer, each, value)
            x = self.layer(x)
            for each, value in before.items():
                setattr(self.layer, each, value)
            return x

    model_habit(f"another {name} for a call")(Set)


set_for_a_call("dilation", lambda: conv(6, 6), dilation=(2, 2), padding=(2, 2))
set_for_a_call("bias, none,", lambda: conv(6, 6), bias=None)
set_for_a_call("momentum and eps", lambda: nn.BatchNorm2d(6), momentum=0.5, eps=0.1)
set_for_a_call("number of groups", lambda: nn.GroupNorm(2, 6), num_groups=3)
set_for_a_call("slope", lambda: nn.LeakyReLU(0.1), negative_slope=0.5)
set_for_a_call("share of dropped words", lambda: nn.Dropout(0.0), p=1.0)
set_for_a_call("class", nn.ReLU, __class__=nn.Tanh)


@model_habit("layers of complex weights")
class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts, self.last = conv(3, 8), conv(8, 3)
        self.rows, self.map = nn.Linear(6, 6, dtype=torch.complex128), nn.Linear(4, 4, dtype=torch.complex128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.complex(*self.parts(x).chunk(2, 1))
        x = self.map(self.rows(x).mT.contiguous().transpose(1, 3)).transpose(1, 3)
        return self.last(torch.cat([x.real, x.imag], 1))


def gated(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


with warnings.catch_warnings(action="ignore"):  # it is deprecated
    scripted: Any = torch.jit.script(gated)


@torch.compile(backend="eager")
def compiled(x: torch.Tensor) -> torch.Tensor:
    return x.tanh() + 1


@model_habit("functions of torch.jit.script and torch.compile")
class Written(Twice):
    def again(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = compiled(scripted(x))
        return made
