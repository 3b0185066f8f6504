"""Batch normalization of shares, with the statistics of the whole batch."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from runtime.blocks import Box, meet
from runtime.buckets import Shared
from runtime.layout import AllSum, Layout, SumBack
from runtime.mesh import ranks_group


class BatchNorm(nn.Module):
    """`torch.nn.BatchNorm1d/2d/3d` on shares of (b, c, *spatial), however they are cut.

    A rank holds scale, shift and running statistics of the channels in its box. Sums
    run over the ranks that hold words of the same channels, two values per channel.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: torch.Tensor | None
    running_var: torch.Tensor | None
    num_batches_tracked: torch.Tensor | None

    def __init__(self, plain: Any, layout: Layout) -> None:
        super().__init__()
        self.eps, self.momentum = plain.eps, plain.momentum
        self.layout, self.channels = layout, layout.mine[1]
        self.span, ranks = _sharing(layout.boxes, dist.get_rank())
        self.ranks, self.sums_gradients = tuple(ranks), True
        self.group = ranks_group(ranks)
        self.words = math.prod(layout.whole) // layout.whole[1]  # per channel
        low, high = self.channels
        for name in ("weight", "bias"):
            given = getattr(plain, name)
            own = None if given is None else _part(given, low, high)
            self.register_parameter(name, own)
        for name in ("running_mean", "running_var"):
            given = getattr(plain, name)
            own = None if given is None else given.detach()[low:high].clone()
            self.register_buffer(name, own)
        seen = plain.num_batches_tracked
        self.register_buffer(
            "num_batches_tracked", None if seen is None else seen.clone()
        )

    def forward(self, share: torch.Tensor) -> torch.Tensor:
        """The normalized share."""
        dims = [0, *range(2, share.dim())]
        each = (1, -1, *[1] * (share.dim() - 2))
        if self.training or self.running_mean is None or self.running_var is None:
            mean = self._total(share.sum(dims)) / self.words
            centered = share - mean.reshape(each)
            variance = self._total(centered.square().sum(dims)) / self.words
            if self.training:
                self._follow(mean.detach(), variance.detach())
        else:
            mean, variance = self.running_mean, self.running_var
            centered = share - mean.reshape(each)
        result = centered * torch.rsqrt(variance + self.eps).reshape(each)
        if self.weight is not None:
            result = result * self._parameter(self.weight).reshape(each)
        if self.bias is not None:
            result = result + self._parameter(self.bias).reshape(each)
        return result

    def _total(self, sums: torch.Tensor) -> torch.Tensor:
        """Sums of the own channels over all ranks that have words of them."""
        (low, high), (first, last) = self.channels, self.span
        spread = nn.functional.pad(sums, (low - first, last - high))
        total: torch.Tensor = AllSum.apply(spread, self.group)  # type: ignore[no-untyped-call]
        return total[low - first : high - first]

    def hand_over(self) -> list[Shared]:
        """The parameters whose gradients the caller sums from now on; see `Buckets`."""
        self.sums_gradients = False
        words, first = self.span[1] - self.span[0], self.channels[0] - self.span[0]
        held = [each for each in (self.weight, self.bias) if each is not None]
        return [Shared(each, self.ranks, words, first) for each in held]

    def _parameter(self, values: torch.Tensor) -> torch.Tensor:
        if not self.sums_gradients:
            return values
        (low, high), (first, last) = self.channels, self.span
        spread = nn.functional.pad(values, (low - first, last - high))
        shared: torch.Tensor = SumBack.apply(spread, self.group)  # type: ignore[no-untyped-call]
        return shared[low - first : high - first]

    def _follow(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Running statistics, with the unbiased variance, as torch has them."""
        if self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        rate = self.momentum
        if rate is None:
            rate = 1 / int(self.num_batches_tracked)
        unbiased = variance * (self.words / max(1, self.words - 1))
        self.running_mean.lerp_(mean, rate)
        self.running_var.lerp_(unbiased, rate)

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """What torch's own layer would save, on every rank."""
        state = {}
        for name, own in self.state_dict().items():
            if own.dim() == 0:
                state[name] = own
                continue
            whole = own.new_zeros(self.layout.whole[1])
            whole[slice(*self.channels)] = own
            parts = [torch.empty_like(whole) for _ in self.layout.boxes]
            dist.all_gather(parts, whole)
            for box, part in zip(self.layout.boxes, parts, strict=True):
                whole[slice(*box[1])] = part[slice(*box[1])]
            state[name] = whole
        return state

    def load_full_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take the own channels of what torch's own layer saved."""
        own = {
            name: values if values.dim() == 0 else values[slice(*self.channels)]
            for name, values in state.items()
        }
        self.load_state_dict(own)


def _part(whole: nn.Parameter, low: int, high: int) -> nn.Parameter:
    own = whole.detach()[low:high].clone()
    return nn.Parameter(own, requires_grad=whole.requires_grad)


def _sharing(boxes: tuple[Box, ...], rank: int) -> tuple[tuple[int, int], list[int]]:
    """The channels and the ranks that hang together with those of one rank."""
    low, high = boxes[rank][1]
    ranks: list[int] = []
    while True:
        found = []
        for peer, box in enumerate(boxes):
            both = meet(box[1], (low, high))
            if peer == rank or both[1] > both[0]:
                found.append(peer)
        if found == ranks:
            return (low, high), ranks
        ranks = found
        held = [boxes[peer][1] for peer in ranks]
        low, high = min(h[0] for h in held), max(h[1] for h in held)
