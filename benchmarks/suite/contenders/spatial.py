"""Spatial parallelism by hand: rows are split, neighbours exchange halos, weights are whole on every rank.

The grid over the spatial dimensions is the one with the fewest halo words. It works for layers with stride
and dilation 1 and "same" padding: the halo is as wide as the padding, with zeros at the border.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from benchmarks.suite.contenders.channels import by_hand
from benchmarks.suite.contenders.contender import Contender, NotApplicableError, Whole, frame, split
from benchmarks.suite.contenders.kernels import Kernel, shapes
from synth.layer.layer import Layer

Parts = tuple[int, ...]  # per spatial dimension


class Halo:
    """The exchange of this rank with its neighbours on a grid over the spatial dimensions.

    parts: ranks per spatial dimension, the last varying fastest. halo: rows on either side, per dimension.
    """

    def __init__(self, parts: Parts, halo: tuple[int, ...]) -> None:
        self.halo, rank = halo, dist.get_rank()
        self.at = [rank // math.prod(parts[dim + 1 :]) % n for dim, n in enumerate(parts)]
        self.cut = [dim for dim, n in enumerate(parts) if n > 1]
        self.neighbours: dict[int, tuple[int | None, int | None]] = {}
        for dim in self.cut:
            stride = math.prod(parts[dim + 1 :])
            low = rank - stride if self.at[dim] > 0 else None
            high = rank + stride if self.at[dim] < parts[dim] - 1 else None
            self.neighbours[dim] = low, high

    def inner(self, wide: torch.Tensor, dims: list[int]) -> torch.Tensor:
        """The tensor without the halos along some spatial dimensions."""
        for dim in dims:
            rows = wide.shape[dim + 2] - 2 * self.halo[dim]
            wide = wide.narrow(dim + 2, self.halo[dim], rows)
        return wide

    def widen(self, own: torch.Tensor) -> torch.Tensor:
        """The own rows with the halo, zeros at the border; corners travel through neighbours."""
        sizes = [n + 2 * self.halo[dim] * (dim in self.cut) for dim, n in enumerate(own.shape[2:])]
        wide = own.new_empty(*own.shape[:2], *sizes)
        self.inner(wide, self.cut).copy_(own)
        for place, dim in enumerate(self.cut):
            region = self.inner(wide, self.cut[place + 1 :])
            rows, n = self.halo[dim], region.shape[dim + 2]
            strips = [region.narrow(dim + 2, start, rows) for start in (rows, n - 2 * rows)]
            received = self.swap(dim, strips)
            for start, strip in zip((0, n - rows), received, strict=True):
                edge = region.narrow(dim + 2, start, rows)
                edge.zero_() if strip is None else edge.copy_(strip)
        return wide

    def fold(self, wide: torch.Tensor) -> torch.Tensor:
        """The adjoint: gradients of a neighbour's rows are returned and added there."""
        for place, dim in reversed(list(enumerate(self.cut))):
            region = self.inner(wide, self.cut[place + 1 :])
            rows, n = self.halo[dim], region.shape[dim + 2]
            received = self.swap(dim, [region.narrow(dim + 2, start, rows) for start in (0, n - rows)])
            for start, strip in zip((rows, n - 2 * rows), received, strict=True):
                if strip is not None:
                    region.narrow(dim + 2, start, rows).add_(strip)
        return self.inner(wide, self.cut)

    def swap(self, dim: int, strips: list[torch.Tensor]) -> list[torch.Tensor | None]:
        """Strips from the lower and the upper neighbour; None for a missing neighbour."""
        operations, received = [], list[torch.Tensor | None]()
        for peer, strip in zip(self.neighbours[dim], strips, strict=True):
            buffer = None if peer is None else strip.new_empty(strip.shape)
            received.append(buffer)
            if buffer is not None:
                operations.append(dist.P2POp(dist.isend, strip.contiguous(), peer))
                operations.append(dist.P2POp(dist.irecv, buffer, peer))
        for request in dist.batch_isend_irecv(operations) if operations else ():
            request.wait()
        return received


class SpatialConv(torch.autograd.Function):
    """Own rows of Out from own rows of In and all weights."""

    @staticmethod
    def forward(
        ctx: Any, share: torch.Tensor, weight: torch.Tensor, kernel: Kernel, halo: Halo
    ) -> torch.Tensor:
        """The halo is saved for the backward pass."""
        wide = halo.widen(share)
        ctx.kernel, ctx.halo = kernel, halo
        ctx.save_for_backward(wide, weight)
        return kernel.forward(wide, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        """The all-reduce of dKer runs while dIn is computed."""
        wide, weight = ctx.saved_tensors
        _, dker = ctx.kernel.gradients(dout, wide, weight, "Ker")
        request = dist.all_reduce(dker, async_op=True)
        din, _ = ctx.kernel.gradients(dout, wide, weight, "In")
        din = ctx.halo.fold(din).contiguous()
        request.wait()
        return din, dker, None, None


def best_parts(layer: Layer, procs: int) -> Parts:
    """The grid with the fewest halo words whose parts are at least as wide as the halo."""
    rows, halo = layer.input[2:], layer.padding
    found: list[tuple[int, Parts]] = []
    divisors = [d for d in range(1, procs + 1) if procs % d == 0]
    for parts in itertools.product(divisors, repeat=len(rows)):
        if math.prod(parts) != procs or any(
            n > 1 and size // n < max(1, p) for n, size, p in zip(parts, rows, halo, strict=True)
        ):
            continue
        sizes = [-(-size // n) for size, n in zip(rows, parts, strict=True)]
        words = 0
        for dim, n in enumerate(parts):  # one neighbour if there are two parts, else two
            words += min(n - 1, 2) * halo[dim] * math.prod(sizes) // sizes[dim]
        found.append((words, parts))
    if not found:
        raise NotApplicableError(f"rows {rows} cannot be cut into {procs} parts as wide as the halo")
    return min(found)[1]


def spatial(layer: Layer, whole: Whole, training: bool) -> Contender:
    """Spatial parallelism (rows split)."""
    if layer.kind == "matmul":
        raise NotApplicableError("a matrix product has no rows and columns of pixels")
    same = tuple(2 * p + 1 for p in layer.padding) == layer.kernel
    if not same or {*layer.stride, *layer.dilation, layer.groups} != {1}:
        raise NotApplicableError('it is written for stride 1, one group and "same" padding')
    parts = best_parts(layer, dist.get_world_size())
    halo = Halo(parts, layer.padding)
    mine = {dim + 2: (n, halo.at[dim]) for dim, n in enumerate(parts) if n > 1}
    sizes = shapes(layer)
    boxes = {"In": split(sizes["In"], mine), "Ker": frame(sizes["Ker"]), "Out": split(sizes["Out"], mine)}
    padding = tuple(0 if n > 1 else p for n, p in zip(parts, layer.padding, strict=True))
    made = by_hand("spatial", SpatialConv, boxes, whole, Kernel(layer, padding), halo)
    made.copied = ("Ker",)
    return made
