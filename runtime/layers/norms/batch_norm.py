"""Batch normalization of shards, with global or local statistics.

`Normalize` scales and shifts the channels of shards, with gradients of all three.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from synth.runtime.comm.exchanges import Exchange, copied, none, times
from synth.runtime.comm.layout import Layout, one_owner
from synth.runtime.comm.precision import sum_dtype
from synth.runtime.comm.process_groups import ProcessGroups
from synth.runtime.comm.redistribute import Count, sum_copies
from synth.runtime.comm.shared_parts import of_owned, zero_but_owned
from synth.runtime.compiled.constants import real_tensors
from synth.runtime.kernels.autocast import (
    autocast_dtype,
    no_autocast,
    operator_dtype,
)
from synth.runtime.kernels.channel_sums import channel_sums, of_its_batch, per_channel
from synth.runtime.kernels.moments import channel_moments
from synth.runtime.layers.norms.statistic_groups import ChannelMoments, first_samples
from synth.runtime.layers.steps.held import Held, declare
from synth.runtime.layers.steps.homes import moved_words, planned_words
from synth.runtime.tensor.partition import Partition

COUNTER = "num_batches_tracked"
STATE = ("weight", "bias", "running_mean", "running_var", COUNTER)
PER_CHANNEL = 2  # words: mean and variance, or two sums


def _uncounted(words: int) -> None:
    """Count nothing."""


class BatchNorm(nn.Module):
    """`torch.nn.BatchNorm1d/2d/3d` on shards of (b, c, *spatial) with any layout.

    A rank holds scale and shift of the channels in its box. Ranks of a group exchange
    two values per channel in the forward pass and two in the backward pass; see
    `ChannelMoments`. Half precision is normalized in float32 and rounded once, as torch
    does.

    local: whether statistics are those of the rank's own samples, as DDP's. If they are
        global, a rank holds running statistics of its channels, and the sums of the
        backward pass are also the whole gradients of scale and shift. If they are
        local, the ranks of the first samples hold the running statistics, which others
        fetch in evaluation, and each rank gives its part of the gradients.
    count: of the words received in exchanges of statistics.
    owned: boxes within those of the layout, of whose words statistics are made; each
        has one owner. None where these are all words.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: torch.Tensor | None
    running_var: torch.Tensor | None
    num_batches_tracked: torch.Tensor | None

    def __init__(
        self,
        plain: Any,
        layout: Layout,
        process_groups: ProcessGroups,
        local: bool = False,
        count: Count = _uncounted,
        owned: Layout | None = None,
    ) -> None:
        super().__init__()
        self.eps, self.momentum = plain.eps, plain.momentum
        self.track_running_stats = plain.track_running_stats  # in training
        self.layout, self.owned = layout, owned or layout
        self.local, self.count = local, count
        self.shared = ChannelMoments(layout, local, process_groups, count, self.owned)
        boxes = [(box[1],) for box in layout.boxes]
        self.each = Partition(layout.with_boxes(layout.whole[1:2], boxes))
        self.running = first_samples(layout) if local else self.each
        self._constants: torch.Tensor | None = None
        self.has = [name for name in STATE if getattr(plain, name) is not None]
        for name in STATE:
            declare(self, name, getattr(plain, name))

    def held_tensors(self) -> dict[str, Held]:
        """Scale, shift, running statistics and the counter of batches."""
        boxes = self.each.layout.boxes
        alike = [rank for rank, box in enumerate(boxes) if box == self.each.box]
        # if parts of a gradient are to be added
        copies = tuple(alike) if self.local and self.each.disjoint else ()
        places = {
            "weight": Held(self, "weight", self.each, copies),
            "bias": Held(self, "bias", self.each, copies),
            "running_mean": Held(self, "running_mean", self.running),
            "running_var": Held(self, "running_var", self.running),
            COUNTER: Held(self, COUNTER, None),
        }
        return {name: places[name] for name in self.has}

    def _scale_and_shift(self) -> list[torch.Tensor | None]:
        """The own parameters; parts of their gradients are added over all copies.

        Buckets add them if any two ranks have equal channels or none in common.
        """
        found: list[torch.Tensor | None] = []
        for values in (self.weight, self.bias):
            if self.local and not self.each.disjoint and values is not None:
                held = self.each.layout
                found.append(sum_copies(values, held, one_owner(held), self.count))
            else:
                found.append(values)
        return found

    def _running_statistics(self) -> list[torch.Tensor | None]:
        """Those of the own channels; local ones come from the ranks that hold them."""
        values = [self.running_mean, self.running_var]
        if not self.local or None in values:
            return values
        places = self.running, self.each, self.count
        return [moved_words(each, *places) for each in values if each is not None]

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """The normalized shard.

        Raises `ValueError` for one value per channel in training, and for dtypes that
        torch refuses.
        """
        alone = self.training and self.shared.alone and self.shared.fewest > 1
        if alone and autocast_dtype(shard.device) is None and self._is_plain(shard):
            return self._normalized_alone(shard)
        held = self.weight, self.bias, self.running_mean, self.running_var
        dtype = operator_dtype("batch normalization", _operator, shard, *held)
        with no_autocast(shard.device):
            return self._normalized(shard.to(dtype))

    def exchanges(self) -> list[Exchange]:
        """Mean and variance, and two sums in the backward pass.

        Local ones: also running statistics in evaluation, and gradients of copies.
        """
        words = times(PER_CHANNEL, self.shared.words())
        nothing, found = none(self.layout), list[Exchange]()
        if self.training or not {"running_mean", "running_var"} <= set(self.has):
            found.append(Exchange(words, words if self.local else nothing))
            if not self.local:
                found.append(Exchange(nothing, words, (0, "weight", "bias")))
        elif self.local:
            fetched = planned_words(self.running, self.each)
            found.append(Exchange(times(2, fetched), nothing, ()))
        else:
            found.append(Exchange(nothing, words, ("weight", "bias")))
        if self.local and not self.each.disjoint:
            held = self.each.layout
            for name in {"weight", "bias"} & set(self.has):
                found += copied(held, one_owner(held), name)
        return found

    def _normalized(self, given: torch.Tensor) -> torch.Tensor:
        if self.training and self.shared.fewest == 1:
            where = " of some ranks' samples" if self.local else ""
            raise ValueError(
                f"one value per channel{where}, of {self.layout.whole}, has no"
                " variance; train with a larger batch"
            )
        batch = self.training or self.running_mean is None or self.running_var is None
        if batch and self.shared.alone and self._is_plain(given):
            return self._normalized_alone(given)
        mean: torch.Tensor | None
        variance: torch.Tensor | None
        if batch:
            wide = sum_dtype(given.dtype)
            shard = of_owned(given.detach(), self.owned, self.layout)
            mean, variance = self._statistics(shard.to(wide))
            if self.training and self.track_running_stats:
                self._update_running(mean, variance)
        else:
            mean, variance = self._running_statistics()
            if torch.is_grad_enabled():  # they may change before the backward pass
                assert mean is not None
                assert variance is not None
                mean, variance = mean.clone(), variance.clone()
        mean, variance, weight, bias = (
            values if values is None else values.to(sum_dtype(given.dtype))
            for values in (mean, variance, *self._scale_and_shift())
        )
        out: torch.Tensor = Normalize.apply(  # type: ignore[no-untyped-call]
            given, weight, bias, mean, variance, self, batch
        )
        return out

    def _is_plain(self, given: torch.Tensor) -> bool:
        """Whether there are values, of one dtype of full precision.

        On a GPU torch's own kernels also take half precision with wider parameters.
        """
        tensors = self.weight, self.bias, self.running_mean, self.running_var
        dtypes = {each.dtype for each in tensors if each is not None}
        wide = given.dtype in (torch.float32, torch.float64)
        mixed = given.is_cuda and not wide and dtypes == {torch.float32}
        same = wide and dtypes <= {given.dtype}
        return (same or mixed) and given.numel() > 0

    def _normalized_alone(self, given: torch.Tensor) -> torch.Tensor:
        """torch's own normalization: this rank has all words of its channels' group."""
        weight, bias = self._scale_and_shift()
        running: tuple[torch.Tensor | None, torch.Tensor | None] = None, None
        rate = 0.0
        if self.training and self.track_running_stats:
            rate = self._counted_rate()
            held = self.running_mean
            if held is not None and held.numel():  # else other ranks hold them
                running = held, self.running_var
        return of_its_batch(given, running, (weight, bias), rate, self.eps)

    def _statistics(self, shard: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and variance of the own channels over the words of the group.

        The parts of the ranks are combined as in Chan, Golub and LeVeque (1983).

        shard: the owned words.
        """
        own = shard.new_zeros(2, shard.shape[1])
        if shard.numel():
            own[0], own[1] = channel_moments(shard)
        mean, variance = self.shared.moments(own.unsqueeze(1)).squeeze(1)
        return mean, variance

    def zeros_and_ones(self, like: torch.Tensor) -> torch.Tensor:
        """A row of zeros and one of ones, one word per channel; made once."""
        made = self._constants
        if made is None or made.dtype != like.dtype or made.device != like.device:
            kind: dict[str, Any] = {"dtype": like.dtype, "device": like.device}
            with real_tensors():
                made = torch.zeros(2, len(like), **kind)
                made[1] = 1
            self._constants = made
        return made

    def _update_running(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Update running statistics, with the unbiased variance, as torch does."""
        rate = self._counted_rate()
        if self.running_mean is None or self.running_var is None:
            return
        if not self.running_mean.numel():  # other ranks hold them
            return
        words = self.shared.group_words
        unbiased = variance * (words / max(1, words - 1))
        pairs = (self.running_mean, mean), (self.running_var, unbiased)
        for held, now in pairs:
            # torch's kernels do not tell autograd either; a compiler must know it
            running = held if torch.compiler.is_compiling() else held.data
            if running.dtype == now.dtype:
                running.lerp_(now, rate)
            else:  # half precision is rounded once
                running.copy_(torch.lerp(running.to(now.dtype), now, rate))

    def _counted_rate(self) -> float:
        """Count a batch; the share of its statistics in the running ones."""
        counter = self.num_batches_tracked
        if counter is not None:  # a function has none
            counter += 1
        if self.momentum is not None:
            return float(self.momentum)
        return 0.0 if counter is None else 1 / int(counter)


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


class Normalize(torch.autograd.Function):
    """Normalize, scale and shift; the backward pass sums over the words of the group.

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
        ctx.norm, ctx.batch, ctx.eps = norm, batch, norm.eps
        ctx.save_for_backward(shard, weight, mean, variance)
        return normalized(shard, weight, bias, mean, variance, norm.eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of shard, weight and bias; of the last two parts if local."""
        shard, weight, mean, variance = ctx.saved_tensors
        norm, asked = ctx.norm, ctx.needs_input_grad
        scale = torch.ones_like(mean) if weight is None else weight
        wanted = any(asked[1:3]) or ctx.batch
        exchanged = ctx.batch and asked[0] if norm.local else wanted
        if wanted and shard.numel():
            sums = torch.stack(channel_sums(dout, shard, mean, variance, ctx.eps))
        else:
            sums = mean.new_zeros(2, len(mean))
        own = sums
        if exchanged:
            sums = norm.shared.sums(sums.unsqueeze(1)).squeeze(1)
        dshift, dscale = sums
        dshard = None
        if asked[0]:
            inverse = torch.rsqrt(variance + ctx.eps)
            each = scale * inverse
            if ctx.batch:
                per_word = each / -norm.shared.group_words
                slope = inverse.mul_(dscale).mul_(per_word)
                offset = per_word.mul_(dshift).addcmul_(slope, mean, value=-1)
                # torch's evaluation kernel computes shard * slope + offset
                zero, one = norm.zeros_and_ones(mean)
                wide = shard.to(mean.dtype)
                dshard = normalized(wide, slope, offset, zero, one, 0.0)
                dshard = zero_but_owned(dshard, norm.owned, norm.layout)
                more = dout.to(mean.dtype)
                dshard = dshard.addcmul_(more, per_channel(each, shard))
            else:
                dshard = dout * per_channel(each, shard)
            dshard = dshard.to(shard.dtype)
        dbias, dweight = own if norm.local else sums
        given = dshard, dweight if asked[1] else None, dbias if asked[2] else None
        return *given, None, None, None, None


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
