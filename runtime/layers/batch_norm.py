"""Batch normalization of shares, with the statistics of the whole batch."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import once_differentiable

from synth.runtime.comm.redistribute import Layout
from synth.runtime.grid.boxes import Box, intersect, shape
from synth.runtime.grid.process_grid import ranks_group

HALF = torch.float16, torch.bfloat16
SMALL = 2**20  # bytes that a rank sends to all others at once


class BatchNorm(nn.Module):
    """`torch.nn.BatchNorm1d/2d/3d` on shares of (b, c, *spatial), however they are cut.

    A rank holds scale, shift and running statistics of the channels in its box. Ranks
    that hold words of the same channels tell each other two values per channel, once
    forward and once back; those of the way back are the whole gradients of scale and
    shift, too.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: torch.Tensor | None
    running_var: torch.Tensor | None
    num_batches_tracked: torch.Tensor | None
    parts: torch.Tensor

    def __init__(self, plain: Any, layout: Layout) -> None:
        super().__init__()
        self.eps, self.momentum = plain.eps, plain.momentum
        self.layout, self.channels = layout, layout.mine[1]
        self.span, ranks = _sharing(layout.boxes, dist.get_rank())
        self.group = ranks_group(ranks) if len(ranks) > 1 else None
        self.words = math.prod(layout.whole) // layout.whole[1]  # per channel
        low, high = self.channels
        counts = [self._counts(layout.boxes[rank]) for rank in ranks]
        parts = torch.tensor(counts, dtype=torch.float64) / self.words
        self.register_buffer("parts", parts, persistent=False)  # of the words, by rank
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

    def _counts(self, box: Box) -> list[int]:
        """Words of each channel of the span that a rank with this box holds."""
        low, high = box[1]
        words = math.prod(shape(box)) // max(1, high - low)
        return [words if low <= channel < high else 0 for channel in range(*self.span)]

    def forward(self, share: torch.Tensor) -> torch.Tensor:
        """The normalized share."""
        given = share.float() if share.dtype in HALF else share
        mean, variance = self.running_mean, self.running_var
        batch = False
        if self.training and self.words == 1:
            raise ValueError(
                f"one value per channel, of {self.layout.whole}, has no variance; train"
                " with a larger batch"
            )
        if self.training or mean is None or variance is None:
            batch = True
            mean, variance = self._statistics(given.detach())
            if self.training:
                self._follow(mean, variance)
        elif torch.is_grad_enabled():  # they may change before the way back
            mean, variance = mean.clone(), variance.clone()
        mean, variance, weight, bias = (
            values if values is None else values.to(given.dtype)
            for values in (mean, variance, self.weight, self.bias)
        )
        out: torch.Tensor = Normalize.apply(  # type: ignore[no-untyped-call]
            given, weight, bias, mean, variance, self, batch
        )
        return out.to(share.dtype)

    def _statistics(self, share: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and variance of the own channels over the whole batch."""
        dims = [0, *range(2, share.dim())]
        own = share.new_zeros(2, share.shape[1])
        if share.numel():
            mean = share.mean(dims)
            centered = share - along(mean, share)
            rounding = centered.mean(dims)  # of a mean far from zero
            own[0] = mean + rounding
            own[1] = centered.square().mean(dims) - rounding.square()
        if self.group is None:
            return own[0], own[1]
        means, variances = self.told(own).unbind(1)
        weights = self.parts.to(own)
        mean = (weights * means).sum(0)
        spread = (means - mean).square()  # Chan, Golub and LeVeque (1983)
        variance = (weights * (variances + spread)).sum(0)
        return self.own(mean), self.own(variance)

    def told(self, own: torch.Tensor) -> torch.Tensor:
        """What each rank of the group says of the span; nothing where it has no words.

        All of them add it up in the same way, so that they get the same bits.
        """
        (low, high), (first, last) = self.channels, self.span
        spread = nn.functional.pad(own, (low - first, last - high))
        return everyones(spread, len(self.parts), self.group)

    def own(self, values: torch.Tensor) -> torch.Tensor:
        """The values of the own channels out of those of the span."""
        (low, high), first = self.channels, self.span[0]
        return values[..., low - first : high - first]

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
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), rate)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), rate)

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


class Normalize(torch.autograd.Function):
    """Scale and shift of normalized words; its backward sums over the whole batch.

    batch: whether mean and variance are those of the batch, and change with it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        share: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        mean: torch.Tensor,
        variance: torch.Tensor,
        norm: BatchNorm,
        batch: bool,
    ) -> torch.Tensor:
        """The share, normalized."""
        ctx.norm, ctx.batch = norm, batch
        ctx.save_for_backward(share, weight, mean, variance)
        return scaled(share, weight, bias, mean, variance, norm.eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of share, weight and bias, whose sums are whole on every rank."""
        share, weight, mean, variance = ctx.saved_tensors
        norm, asked = ctx.norm, ctx.needs_input_grad
        scale = torch.ones_like(mean) if weight is None else weight
        sums = share.new_zeros(2, len(mean))
        wanted = any(asked[1:3]) or ctx.batch
        if wanted and share.numel():
            _, by_scale, by_shift = torch.ops.aten.native_batch_norm_backward(
                *(dout.contiguous(), share, scale, mean, variance),
                *(None, None, False, norm.eps, [False, True, True]),
            )
            sums = torch.stack([by_shift, by_scale])
        if wanted and norm.group is not None:
            sums = norm.own(norm.told(sums).sum(0))
        dshift, dscale = sums
        dshare = None
        if asked[0]:
            inverse = torch.rsqrt(variance + norm.eps)
            each = scale * inverse
            if ctx.batch:
                slope = each * inverse * dscale / -norm.words
                zero, one = torch.zeros_like(mean), torch.ones_like(mean)
                # torch's kernel of an evaluation, here for share * slope + offset
                offset = each * dshift / -norm.words - slope * mean
                dshare = scaled(share, slope, offset, zero, one, 0.0)
                dshare = dshare.addcmul_(dout, along(each, share))
            else:
                dshare = dout * along(each, share)
        dweight = dscale if asked[1] else None
        return dshare, dweight, dshift if asked[2] else None, None, None, None, None


def scaled(
    share: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    variance: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """(share - mean) / sqrt(variance + eps) * weight + bias, channel by channel."""
    if not share.numel():
        return share.clone()
    return nn.functional.batch_norm(share, mean, variance, weight, bias, False, 0, eps)


def along(values: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """A value per channel as it is broadcast over a share (b, c, *spatial)."""
    return values.reshape(1, -1, *[1] * (share.dim() - 2))


def everyones(own: torch.Tensor, ranks: int, group: Any) -> torch.Tensor:
    """What each of so many ranks of a group has, by rank; few words of one shape.

    Over gloo one exchange of all with all, as long as it is small: a ring, or a sum on
    the way round it, takes as many steps as there are ranks.
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
            both = intersect(box[1], (low, high))
            if peer == rank or both[1] > both[0]:
                found.append(peer)
        if found == ranks:
            return (low, high), ranks
        ranks = found
        held = [boxes[peer][1] for peer in ranks]
        low, high = min(h[0] for h in held), max(h[1] for h in held)
