"""Batch normalization of shards, with the statistics of the whole batch."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import once_differentiable

from synth.runtime.comm.layout import Layout
from synth.runtime.comm.precision import sum_dtype
from synth.runtime.comm.process_groups import ProcessGroups
from synth.runtime.grid.boxes import Box, intersect, shape
from synth.runtime.kernels.autocast import no_autocast, operator_dtype
from synth.runtime.kernels.moments import channel_moments
from synth.runtime.layers.held import Held, declare
from synth.runtime.tensor.partition import Partition

COUNTER = "num_batches_tracked"
STATE = ("weight", "bias", "running_mean", "running_var", COUNTER)
SMALL = 2**20  # bytes that a rank sends to all others in one all-to-all


class BatchNorm(nn.Module):
    """`torch.nn.BatchNorm1d/2d/3d` on shards of (b, c, *spatial) with any layout.

    A rank holds scale, shift and running statistics of the channels in its box. Ranks
    that hold words of the same channels exchange two values per channel in the forward
    pass and two in the backward pass. The latter are also the whole gradients of scale
    and shift. Half precision is normalized in float32 and rounded once, as torch does.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: torch.Tensor | None
    running_var: torch.Tensor | None
    num_batches_tracked: torch.Tensor | None

    def __init__(
        self, plain: Any, layout: Layout, process_groups: ProcessGroups
    ) -> None:
        super().__init__()
        self.eps, self.momentum = plain.eps, plain.momentum
        self.layout, self.channels = layout, layout.mine[1]
        self.span, ranks = _sharing(layout.boxes, layout.ranks.me)
        self.group = process_groups.of(ranks) if len(ranks) > 1 else None
        self.words = math.prod(layout.whole) // layout.whole[1]  # per channel
        # (rank, channel of the span) -> words there
        self.counts = torch.tensor([self._counts(layout.boxes[rank]) for rank in ranks])
        self.has = [name for name in STATE if getattr(plain, name) is not None]
        for name in STATE:
            declare(self, name, getattr(plain, name))

    def held_tensors(self) -> dict[str, Held]:
        """Scale, shift, running statistics and the counter of batches."""
        boxes = [(box[1],) for box in self.layout.boxes]
        layout = self.layout.with_boxes(self.layout.whole[1:2], boxes)
        each = Partition(layout)
        return {
            name: Held(self, name, each if name != COUNTER else None)
            for name in self.has
        }

    def _counts(self, box: Box) -> list[int]:
        """How many words of each channel of the span a rank with this box holds."""
        low, high = box[1]
        words = math.prod(shape(box)) // max(1, high - low)
        return [words if low <= channel < high else 0 for channel in range(*self.span)]

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """The normalized shard.

        Raises `ValueError` for one value per channel in training, and for dtypes that
        torch refuses.
        """
        held = self.weight, self.bias, self.running_mean, self.running_var
        dtype = operator_dtype("batch normalization", _operator, shard, *held)
        with no_autocast(shard.device):
            return self._normalized(shard.to(dtype))

    def _normalized(self, given: torch.Tensor) -> torch.Tensor:
        mean, variance = self.running_mean, self.running_var
        batch = False
        if self.training and self.words == 1:
            raise ValueError(
                f"one value per channel, of {self.layout.whole}, has no variance; train"
                " with a larger batch"
            )
        if self.training or mean is None or variance is None:
            batch = True
            wide = sum_dtype(given.dtype)
            mean, variance = self._statistics(given.detach().to(wide))
            if self.training:
                self._update_running(mean, variance)
        elif torch.is_grad_enabled():  # they may change before the backward pass
            mean, variance = mean.clone(), variance.clone()
        mean, variance, weight, bias = (
            values if values is None else values.to(sum_dtype(given.dtype))
            for values in (mean, variance, self.weight, self.bias)
        )
        out: torch.Tensor = Normalize.apply(  # type: ignore[no-untyped-call]
            given, weight, bias, mean, variance, self, batch
        )
        return out

    def _statistics(self, shard: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and variance of the own channels over the whole batch.

        The parts of the ranks are combined as in Chan, Golub and LeVeque (1983).
        """
        own = shard.new_zeros(2, shard.shape[1])
        if shard.numel():
            own[0], own[1] = channel_moments(shard)
        if self.group is None:
            return own[0], own[1]
        means, variances = self.gathered(own).unbind(1)
        weights = (self.counts.double() / self.words).to(own)
        mean = (weights * means).sum(0)
        spread = (means - mean).square()
        variance = (weights * (variances + spread)).sum(0)
        return self.own(mean), self.own(variance)

    def gathered(self, own: torch.Tensor) -> torch.Tensor:
        """The values of all ranks of the group for the span; 0 where one has no words.

        All ranks add them in the same order, so they get the same bits.
        """
        (low, high), (first, last) = self.channels, self.span
        spread = nn.functional.pad(own, (low - first, last - high))
        return gather_small(spread, len(self.counts), self.group)

    def own(self, values: torch.Tensor) -> torch.Tensor:
        """The values of the own channels, from those of the span."""
        (low, high), first = self.channels, self.span[0]
        return values[..., low - first : high - first]

    def _update_running(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Update running statistics, with the unbiased variance, as torch does."""
        if self.running_mean is None or self.running_var is None:
            return
        counter, rate = self.num_batches_tracked, self.momentum
        if counter is not None:  # a function has none
            counter += 1
        if rate is None:
            assert counter is not None
            rate = 1 / int(counter)
        unbiased = variance * (self.words / max(1, self.words - 1))
        pairs = (self.running_mean, mean), (self.running_var, unbiased)
        for running, now in pairs:  # half precision is rounded once
            running.copy_(torch.lerp(running.to(now.dtype), now, rate))


class Normalize(torch.autograd.Function):
    """Normalize, scale and shift; the backward pass sums over the whole batch.

    batch: whether mean and variance are those of the batch, and so depend on it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        shard: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        mean: torch.Tensor,
        variance: torch.Tensor,
        norm: BatchNorm,
        batch: bool,
    ) -> torch.Tensor:
        """The normalized shard."""
        ctx.norm, ctx.batch = norm, batch
        ctx.save_for_backward(shard, weight, mean, variance)
        return normalized(shard, weight, bias, mean, variance, norm.eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of shard, weight and bias; sums are over the whole batch."""
        shard, weight, mean, variance = ctx.saved_tensors
        norm, asked = ctx.norm, ctx.needs_input_grad
        scale = torch.ones_like(mean) if weight is None else weight
        sums = mean.new_zeros(2, len(mean))
        wanted = any(asked[1:3]) or ctx.batch
        if wanted and shard.numel():
            _, by_scale, by_shift = torch.ops.aten.native_batch_norm_backward(
                *(dout.contiguous(), shard, scale, mean, variance),
                *(None, None, False, norm.eps, [False, True, True]),
            )
            sums = torch.stack([by_shift, by_scale])
        if wanted and norm.group is not None:
            sums = norm.own(norm.gathered(sums).sum(0))
        dshift, dscale = sums
        dshard = None
        if asked[0]:
            inverse = torch.rsqrt(variance + norm.eps)
            each = scale * inverse
            if ctx.batch:
                slope = each * inverse * dscale / -norm.words
                zero, one = torch.zeros_like(mean), torch.ones_like(mean)
                # torch's evaluation kernel computes shard * slope + offset
                offset = each * dshift / -norm.words - slope * mean
                wide = shard.to(mean.dtype)
                dshard = normalized(wide, slope, offset, zero, one, 0.0)
                more = dout.to(mean.dtype)
                dshard = dshard.addcmul_(more, per_channel(each, shard))
            else:
                dshard = dout * per_channel(each, shard)
            dshard = dshard.to(shard.dtype)
        dweight = dscale if asked[1] else None
        return dshard, dweight, dshift if asked[2] else None, None, None, None, None


def _operator(
    word: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor | None,
    variance: torch.Tensor | None,
) -> torch.Tensor:
    """torch's own, of one channel."""
    batch = word.expand(2, 1, 1, 1)
    return nn.functional.batch_norm(batch, mean, variance, weight, bias, mean is None)


def normalized(
    shard: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    variance: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """(shard - mean) / sqrt(variance + eps) * weight + bias, channel by channel."""
    if not shard.numel():
        return shard.clone()
    return nn.functional.batch_norm(shard, mean, variance, weight, bias, False, 0, eps)


def per_channel(values: torch.Tensor, shard: torch.Tensor) -> torch.Tensor:
    """A value per channel, with the shape that broadcasts to (b, c, *spatial)."""
    return values.reshape(1, -1, *[1] * (shard.dim() - 2))


def gather_small(own: torch.Tensor, ranks: int, group: Any) -> torch.Tensor:
    """The values of each rank of a group, by rank; few words of one shape.

    Over gloo one all-to-all, if it is small: a ring takes as many steps as there are
    ranks.
    """
    own = own.contiguous()
    rows = own.new_empty(ranks, *own.shape)
    small = own.numel() * own.element_size() * ranks <= SMALL
    if small and dist.get_backend(group) == "gloo" and not own.is_cuda:
        sent = own.expand(ranks, *own.shape).contiguous()
        dist.all_to_all_single(rows, sent, group=group)
    else:
        dist.all_gather_into_tensor(rows.view(-1), own.view(-1), group=group)
    return rows


def _sharing(boxes: tuple[Box, ...], rank: int) -> tuple[tuple[int, int], list[int]]:
    """The channels and the ranks that share channels with one rank, transitively."""
    low, high = boxes[rank][1]
    ranks: list[int] = []
    while True:
        found = []
        for peer, box in enumerate(boxes):
            both = intersect(box[1], (low, high))
            if peer == rank or both[1] > both[0]:
                found.append(peer)
        if found == ranks:
            return (low, high), ranks
        ranks = found
        held = [boxes[peer][1] for peer in ranks]
        low, high = min(h[0] for h in held), max(h[1] for h in held)
