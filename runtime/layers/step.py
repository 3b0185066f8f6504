"""What a network does between its planned layers, on shares: sums, joins, reshaping.

Each step is made for the layouts of its inputs and tells that of its output.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from synth.runtime.comm.gradient_buckets import Shared
from synth.runtime.comm.redistribute import (
    Count,
    Layout,
    SumBack,
    broadcast,
    even,
    everywhere,
    move,
)
from synth.runtime.grid.boxes import Box, Interval, shape
from synth.runtime.layers.replicated_params import Held


class Step(nn.Module):
    """A part of a network: shares in, a share of `layout` out."""

    layout: Layout

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """Entry -> what the module that this stands for would save, on every rank."""
        held: Any = getattr(self, "module", None)
        if held is None:
            return {}
        state: dict[str, torch.Tensor] = (
            held.full_state_dict()
            if hasattr(held, "full_state_dict")
            else held.state_dict()
        )
        return state

    def load_full_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take the own parts of what that module saved."""
        held: Any = getattr(self, "module", None)
        if hasattr(held, "load_full_state_dict"):
            held.load_full_state_dict(state)
        elif held is not None:
            held.load_state_dict(state)


class Local(Step):
    """Something done to every word by itself; other operands come to the first.

    call: takes shares of `layouts`, then the parameters of `module`. Operands may be
    broadcast, so that ranks with the same samples and channels get the same words.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        layouts: Sequence[Layout],
        count: Count,
        module: Held | None = None,
    ) -> None:
        super().__init__()
        self.call, self.layouts, self.count = call, layouts, count
        self.layout = largest(layouts)
        self.wanted = [broadcast(self.layout, lies.whole) for lies in layouts]
        self.module = module

    def forward(self, *shares: torch.Tensor) -> torch.Tensor:
        """The share of the result."""
        trios = zip(shares, self.layouts, self.wanted, strict=True)
        here = [move(share, lies, to, self.count) for share, lies, to in trios]
        own = [] if self.module is None else self.module.all()
        result: torch.Tensor = self.call(*here, *own)
        return result


def largest(layouts: Sequence[Layout]) -> Layout:
    """The layout with the most words, the first of them."""
    return max(layouts, key=lambda lies: math.prod(lies.whole))


class Inside(Step):
    """A module that acts on shares where they lie."""

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        super().__init__()
        self.module, self.layout = module, layout

    def forward(self, share: torch.Tensor) -> torch.Tensor:
        """The share of the result."""
        result: torch.Tensor = self.module(share)
        return result


class Turned(Step):
    """Dimensions in another order; nothing moves."""

    def __init__(self, source: Layout, order: Sequence[int]) -> None:
        super().__init__()
        self.order = tuple(order)
        self.layout = turned(source, order)

    def forward(self, share: torch.Tensor) -> torch.Tensor:
        """The share of the result."""
        return share.permute(self.order)


def turned(lies: Layout, order: Sequence[int]) -> Layout:
    """The same words with their dimensions in another order."""
    whole = tuple(lies.whole[dim] for dim in order)
    return Layout(whole, tuple(tuple(box[dim] for dim in order) for box in lies.boxes))


class Joined(Step):
    """A concatenation along a dimension.

    counts: of the words that are received of each part. places: of each part among the
    arguments of `forward`. wanted: the layout of the result. By default ranks hold what
    they hold of the first part, and along the dimension as large a fraction of the
    whole: where that part is not cut along it, nothing of it moves.
    """

    def __init__(
        self,
        layouts: Sequence[Layout],
        dim: int,
        counts: Sequence[Count],
        places: Sequence[int],
        wanted: Layout | None = None,
    ) -> None:
        super().__init__()
        self.layouts, self.dim, self.counts = layouts, dim, counts
        self.places = tuple(places)
        self.layout = wanted or _like_first(layouts, dim)
        self.wanted: list[Layout] = []
        start = 0
        for lies in layouts:
            size, boxes = lies.whole[dim], self.layout.boxes
            parts = tuple(_with(b, dim, _inside(b[dim], start, size)) for b in boxes)
            self.wanted.append(Layout(lies.whole, parts))
            start += size

    def forward(self, *shares: torch.Tensor) -> torch.Tensor:
        """The share of the result."""
        given = [shares[place] for place in self.places]
        parts = zip(given, self.layouts, self.wanted, self.counts, strict=True)
        return torch.cat([move(*part) for part in parts], self.dim)


def _like_first(layouts: Sequence[Layout], dim: int) -> Layout:
    """The layout of the first part, scaled along a dimension to all parts."""
    first = layouts[0]
    total = sum(lies.whole[dim] for lies in layouts)
    boxes = (
        _with(box, dim, _scaled(box[dim], first.whole[dim], total))
        for box in first.boxes
    )
    whole = (*first.whole[:dim], total, *first.whole[dim + 1 :])
    return Layout(whole, tuple(boxes))


def _with(box: Box, dim: int, interval: Interval) -> Box:
    return (*box[:dim], interval, *box[dim + 1 :])


def _scaled(interval: Interval, size: int, total: int) -> Interval:
    low, high = interval
    return low * total // size, high * total // size


def _inside(interval: Interval, start: int, size: int) -> Interval:
    """What an interval of the joined has of one of the parts."""
    low, high = (min(max(end - start, 0), size) for end in interval)
    return low, high


class Flatten(Step):
    """(b, c, *spatial) as (b, c·spatial), once no rank holds a part of a position's."""

    def __init__(self, source: Layout, count: Count) -> None:
        super().__init__()
        self.source, self.count = source, count
        frame = tuple((0, extent) for extent in source.whole[2:])
        straight = all(box[2:] == frame for box in source.boxes)
        self.lies = source if straight else even(source.whole)
        size = math.prod(source.whole[2:])
        self.layout = Layout(
            (source.whole[0], source.whole[1] * size),
            tuple((b[0], (b[1][0] * size, b[1][1] * size)) for b in self.lies.boxes),
        )

    def forward(self, share: torch.Tensor) -> torch.Tensor:
        """The share of the flat."""
        share = move(share, self.source, self.lies, self.count)
        return share.reshape(shape(self.layout.mine))


class Gathered(Step):
    """Something that every rank does to the whole, keeping a part of the result.

    For what cannot be cut. `call` takes the whole tensors, then the parameters of
    `held`; a `module` is called instead. Gradients of either are summed over the ranks.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        layouts: Sequence[Layout],
        out: Sequence[int],
        count: Count,
        held: Held | None = None,
        module: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.call, self.layouts, self.count = call, layouts, count
        self.plain = copy.deepcopy(module)  # the user's stays as it is
        self.module = held if module is None else self.plain
        self.sums_gradients = True
        self.layout = even(out)

    def hand_over(self) -> list[Shared]:
        """The parameters whose gradients the caller sums from now on; see `Buckets`."""
        self.sums_gradients = False
        held = () if self.plain is None else self.plain.parameters()
        everyone = tuple(range(dist.get_world_size()))
        return [Shared(each, everyone) for each in held]

    def forward(self, *shares: torch.Tensor) -> torch.Tensor:
        """The own part of what the whole gives."""
        pairs = zip(shares, self.layouts, strict=True)
        whole = [move(s, lies, everywhere(lies.whole), self.count) for s, lies in pairs]
        if self.plain is not None and not self.sums_gradients:
            result = self.plain(*whole)
        elif self.plain is not None:
            summed = {
                name: SumBack.apply(values, None)  # type: ignore[no-untyped-call]
                for name, values in self.plain.named_parameters()
            }
            result = torch.func.functional_call(self.plain, summed, tuple(whole))
        else:
            own = self.module.all() if isinstance(self.module, Held) else []
            result = self.call(*whole, *own)
        low_high = tuple(slice(*interval) for interval in self.layout.mine)
        part: torch.Tensor = result[low_high].contiguous()
        return part
