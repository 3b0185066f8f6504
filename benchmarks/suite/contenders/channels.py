"""Filter and channel parallelism by hand: activations are split along channels, before and after.

Filter: a rank has some filters; In is gathered, Out is split, dIn is reduce-scattered.
Channel: a rank has some input channels of all filters; Out is reduce-scattered, dOut is gathered.
Both are given In cut along C and leave Out cut along K, so that either can follow either.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import once_differentiable

from benchmarks.suite.contenders.collectives import gathering, scattering
from benchmarks.suite.contenders.contender import (
    Contender,
    NotApplicableError,
    Whole,
    copied_weight,
    even,
    frame,
    split,
)
from benchmarks.suite.contenders.kernels import Kernel, shapes
from synth.layer.layer import Layer
from synth.runtime.grid.boxes import Box, within


class FilterConv(torch.autograd.Function):
    """Out of the rank's filters, from all of In."""

    @staticmethod
    def forward(ctx: Any, share: torch.Tensor, weight: torch.Tensor, kernel: Kernel) -> torch.Tensor:
        """[N, C/P, ...] and [K/P, C, ...] to [N, K/P, ...]."""
        inputs = gathering(share, 1)()
        ctx.kernel = kernel
        ctx.save_for_backward(inputs, weight)
        return kernel.forward(inputs, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """The terms of dIn travel while dKer is computed."""
        inputs, weight = ctx.saved_tensors
        terms, _ = ctx.kernel.gradients(dout, inputs, weight, "In")
        finish = scattering(terms, 1)
        _, dker = ctx.kernel.gradients(dout, inputs, weight, "Ker")
        return finish(), dker, None


class ChannelConv(torch.autograd.Function):
    """Partial sums of Out from the rank's channels, reduced over the ranks."""

    @staticmethod
    def forward(ctx: Any, share: torch.Tensor, weight: torch.Tensor, kernel: Kernel) -> torch.Tensor:
        """[N, C/P, ...] and [K, C/P, ...] to [N, K/P, ...]."""
        ctx.kernel = kernel
        ctx.save_for_backward(share, weight)
        return scattering(kernel.forward(share, weight), 1)()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Both gradients from the whole dOut."""
        din, dker = ctx.kernel.gradients(gathering(dout, 1)(), *ctx.saved_tensors)
        return din, dker, None


class ByHand(nn.Module):
    """A layer whose passes are an autograd function and whose weight is a shard."""

    def __init__(self, function: Any, weight: torch.Tensor, *rest: Any) -> None:
        super().__init__()
        self.function, self.weight, self.rest = function, nn.Parameter(weight), rest

    def forward(self, share: torch.Tensor) -> torch.Tensor:
        """This rank's shard of Out."""
        out: torch.Tensor = self.function.apply(share, self.weight, *self.rest)
        return out


def _cut_channels(layer: Layer, weight_dim: int) -> dict[str, Box]:
    if layer.groups != 1:
        raise NotApplicableError(f"{layer.groups} groups, and it is written for one")
    sizes, procs, rank = shapes(layer), dist.get_world_size(), dist.get_rank()
    for name in ("In", "Out"):
        even(sizes[name], 1, procs)
    dims = {"In": 1, "Ker": weight_dim, "Out": 1}
    return {name: split(sizes[name], {dim: (procs, rank)}) for name, dim in dims.items()}


def by_hand(name: str, function: Any, boxes: dict[str, Box], whole: Whole, *rest: Any) -> Contender:
    """A contender made from an autograd function."""
    whole_box = frame(whole["Ker"].shape)
    if boxes["Ker"] == whole_box:
        weight = copied_weight(whole)
    else:
        weight = whole["Ker"][within(boxes["Ker"], whole_box)].clone()
    return Contender(name, ByHand(function, weight, *rest), boxes)


def filters(layer: Layer, whole: Whole, training: bool) -> Contender:
    """Filter parallelism (K split)."""
    return by_hand("filter", FilterConv, _cut_channels(layer, 0), whole, Kernel(layer))


def channels(layer: Layer, whole: Whole, training: bool) -> Contender:
    """Channel parallelism (C split)."""
    return by_hand("channel", ChannelConv, _cut_channels(layer, 1), whole, Kernel(layer))
