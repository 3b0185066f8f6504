"""Networks parallelized by hand, beside which ours is measured: spatial and tensor parallelism.

Spatial, as LBANN's DistConv and PhysicsNeMo's ShardTensor: the spatial dimensions are cut so that halos are
smallest, convolutions exchange halos with their neighbours, and weights are whole on every rank. DDP sums
their gradients. Batch normalizations have the statistics of a rank's block, group normalizations those of the
whole.

Tensor: every convolution and linear layer has some filters. Its input is gathered along the channels, and the
gradient of its input is reduced and scattered. Normalizations have their channels, and exact statistics.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from benchmarks.suite.contenders.collectives import gathering, scattering
from benchmarks.suite.contenders.contender import NotApplicableError
from benchmarks.suite.contenders.spatial import Halo, Parts

CONVS = nn.Conv2d, nn.Conv3d
KEPT = nn.ReLU, nn.LeakyReLU, nn.SiLU, nn.Identity, nn.Dropout, nn.Flatten


class Widen(torch.autograd.Function):
    """Own rows with those of the neighbours; gradients of these return and are added there."""

    @staticmethod
    def forward(ctx: Any, share: torch.Tensor, halo: Halo) -> torch.Tensor:
        """Zeros stand beyond the border."""
        ctx.halo = halo
        return halo.widen(share.contiguous())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The adjoint."""
        return ctx.halo.fold(gradient.clone(memory_format=torch.contiguous_format)).contiguous(), None


class SpatialConv(nn.Module):
    """A convolution of stride 1 and "same" padding, on one of `parts` blocks."""

    def __init__(self, plain: Any, parts: Parts) -> None:
        super().__init__()
        self.plain = plain
        moved = any(n > 1 and pad for n, pad in zip(parts, plain.padding, strict=True))
        self.halo = Halo(parts, plain.padding) if moved else None
        self.padding = tuple(0 if n > 1 else pad for n, pad in zip(parts, plain.padding, strict=True))

    def forward(self, share: torch.Tensor) -> torch.Tensor:
        """This rank's block of the output."""
        run: Any = functional.conv2d if len(self.padding) == 2 else functional.conv3d
        wide: torch.Tensor = share
        if self.halo is not None:
            wide = Widen.apply(share, self.halo)  # type: ignore[no-untyped-call]
        out: torch.Tensor = run(wide, self.plain.weight, self.plain.bias, padding=self.padding)
        return out


class SpatialGroupNorm(nn.Module):
    """A group normalization over all blocks, in inference: one all-reduce of two words per group."""

    def __init__(self, plain: nn.GroupNorm) -> None:
        super().__init__()
        self.plain = plain

    def forward(self, share: torch.Tensor) -> torch.Tensor:
        """This rank's block, normalized."""
        plain = self.plain
        each = share.reshape(len(share), plain.num_groups, -1)
        sums = torch.stack([each.sum(2), each.square().sum(2)])
        dist.all_reduce(sums)
        mean, square = sums / (each.shape[2] * dist.get_world_size())
        inverse = torch.rsqrt(square - mean.square() + plain.eps)
        out: torch.Tensor = ((each - mean[..., None]) * inverse[..., None]).view(share.shape)
        wide = (1, -1, *[1] * (share.dim() - 2))
        return out * plain.weight.view(wide) + plain.bias.view(wide)


class OnWhole(nn.Module):
    """A module that needs the whole, in inference: every rank computes it from the gathered blocks.

    Its other arguments, as attention has them, are handed on.
    """

    def __init__(self, plain: nn.Module, parts: Parts) -> None:
        super().__init__()
        self.plain, self.parts = plain, parts

    def forward(self, share: torch.Tensor, **others: Any) -> torch.Tensor:
        """This rank's block."""
        gathered = gathering(share, 0)().chunk(dist.get_world_size())
        return block(self.plain(joined(gathered, self.parts), **others), self.parts)


def joined(blocks: Sequence[torch.Tensor], parts: Parts) -> torch.Tensor:
    """The whole of which `block` gives these, by rank: the last dimension varies fastest."""
    made = list(blocks)
    for dim in reversed(range(len(parts))):
        n = parts[dim]
        made = [torch.cat(made[at : at + n], dim + 2) for at in range(0, len(made), n)]
    return made[0]


def spatial(model: nn.Module, parts: Parts, whole: tuple[str, ...] = (), norms: bool = False) -> nn.Module:
    """The model on one of `parts` blocks, in place. whole: classes computed from the gathered whole.

    norms: allow group normalizations, which have no backward pass here. Raises `NotApplicableError` for
    layers that would need other rows than their halo.
    """
    for name, child in model.named_children():
        if type(child).__name__ in whole:
            setattr(model, name, OnWhole(child, parts))
        elif isinstance(child, CONVS):
            conv: Any = child
            sizes = zip(conv.kernel_size, conv.padding, conv.stride, strict=True)
            if any(2 * pad + 1 != size or step != 1 for size, pad, step in sizes):
                raise NotApplicableError(f"{child} has a stride, or no same padding")
            setattr(model, name, SpatialConv(child, parts))
        elif isinstance(child, nn.GroupNorm) and norms:
            setattr(model, name, SpatialGroupNorm(child))
        elif isinstance(child, nn.MaxPool2d | nn.MaxPool3d | nn.ConvTranspose2d | nn.ConvTranspose3d):
            if child.kernel_size != child.stride or child.padding not in (0, (0, 0), (0, 0, 0)):
                raise NotApplicableError(f"{child} reads rows of neighbours")
        elif isinstance(child, nn.GroupNorm | nn.Linear | nn.AdaptiveAvgPool2d):
            raise NotApplicableError(f"{child} needs all rows")
        else:
            spatial(child, parts, whole, norms)
    return model


class Gathered(torch.autograd.Function):
    """All channels from those of every rank; gradients are summed and scattered."""

    @staticmethod
    def forward(ctx: Any, share: torch.Tensor) -> torch.Tensor:
        """[b, c/P, ...] to [b, c, ...]."""
        return gathering(share, 1)()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        """The adjoint."""
        return scattering(gradient.contiguous(), 1)()


class SomeFilters(nn.Module):
    """The rank's filters of a convolution or linear layer. cut: whether its input is cut by channels."""

    def __init__(self, plain: Any, cut: bool) -> None:
        super().__init__()
        ranks, rank = dist.get_world_size(), dist.get_rank()
        if plain.weight.shape[0] % ranks:
            raise NotApplicableError(f"{plain.weight.shape[0]} filters are no multiple of {ranks}")
        for name, values in list(plain.named_parameters()):
            setattr(plain, name, nn.Parameter(values.detach().chunk(ranks)[rank].clone()))
        self.plain, self.cut = plain, cut

    def forward(self, share: torch.Tensor) -> torch.Tensor:
        """The rank's channels of the output."""
        if self.cut:
            share = Gathered.apply(share)  # type: ignore[no-untyped-call]
        out: torch.Tensor = self.plain(share)
        return out


def tensor(model: nn.Module, channels: int) -> nn.Module:
    """The model with some filters per layer, in place. channels: of its input, which every rank has whole."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    for name, child in list(model.named_children()):
        if isinstance(child, (*CONVS, nn.Linear)):
            first = child.weight.shape[1] == channels
            if getattr(child, "groups", 1) != 1:
                raise NotApplicableError(f"{child} has groups")
            setattr(model, name, SomeFilters(child, not first))
        elif isinstance(child, nn.BatchNorm2d | nn.BatchNorm3d):
            kind = type(child)
            norm = kind(child.num_features // ranks, child.eps, child.momentum).to(child.weight.dtype)
            with torch.no_grad():
                for key in ("weight", "bias", "running_mean", "running_var"):
                    getattr(norm, key).copy_(getattr(child, key).chunk(ranks)[rank])
            setattr(model, name, norm)
        elif isinstance(child, nn.GroupNorm | nn.ConvTranspose2d | nn.ConvTranspose3d):
            raise NotApplicableError(f"{child} is not written for cut channels")
        else:
            tensor(child, channels)
    return model


def best_parts(rows: tuple[int, ...], least: int) -> Parts:
    """The grid over the spatial dimensions with the smallest halos. least: every block is a multiple of it.

    Raises `NotApplicableError` where there is none.
    """
    ranks = dist.get_world_size()
    found: list[tuple[float, Parts]] = []
    for parts in itertools.product(range(1, ranks + 1), repeat=len(rows)):
        pairs = list(zip(parts, rows, strict=True))
        if math.prod(parts) == ranks and not any(size % (n * least) for n, size in pairs):
            found.append((sum(min(n - 1, 2) / (size // n) for n, size in pairs), parts))
    if not found:
        raise NotApplicableError(f"{rows} cannot be cut into {ranks} blocks of multiples of {least}")
    return min(found)[1]


def block(whole: torch.Tensor, parts: Parts) -> torch.Tensor:
    """This rank's block of a tensor."""
    at = Halo(parts, (0,) * len(parts)).at
    for dim, (n, here) in enumerate(zip(parts, at, strict=True), 2):
        whole = whole.chunk(n, dim)[here]
    return whole.contiguous()
