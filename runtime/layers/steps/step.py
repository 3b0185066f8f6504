"""Steps of a network between its planned layers, on shards: sums, joins, reshaping.

Each step is created for the layouts of its inputs and has the layout of its output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from synth.runtime.comm.exchanges import Exchange, moved
from synth.runtime.comm.layout import Layout, broadcast_layout, even
from synth.runtime.comm.redistribute import Count, redistribute
from synth.runtime.grid.boxes import Box, Interval, shape, with_interval
from synth.runtime.kernels.autocast import Region, entered
from synth.runtime.layers.steps.held import Held, held_by
from synth.runtime.layers.steps.replicated_params import ReplicatedParams


class Step(nn.Module):
    """A part of a network: takes shards, returns a shard of `layout`.

    autocast: the regions of the model's own in which the call stands.
    trains: mode of the module that makes the call -> whether the step trains then,
        where the two are not the same.
    settings: attributes of the user's module that it may change without another plan.
        `module` of the step has them, too.
    """

    layout: Layout
    autocast: tuple[Region, ...] = ()
    trains: Mapping[bool, bool] = MappingProxyType({})
    settings: tuple[str, ...] = ()

    def __call__(self, *shards: torch.Tensor) -> torch.Tensor:
        """`forward` with its hooks, inside of the model's autocast regions."""
        call: Any = super().__call__
        if not self.autocast:
            result: torch.Tensor = call(*shards)
            return result
        with entered(self.autocast):
            return call(*shards)  # type: ignore[no-any-return]

    def held_tensors(self) -> dict[str, Held]:
        """What the step uses: name in the user's layer -> where it is bound."""
        return held_by(getattr(self, "module", None))

    @property
    def changes_buffers(self) -> bool:
        """Whether the step may change the buffers that it uses."""
        return self.training

    def reads_back(self, name: str, trained: bool) -> bool:
        """Whether the backward pass reads a parameter or buffer, by its name here.

        trained: whether an input has a gradient. A bias is only added.
        """
        return name != "bias"

    def reads_inputs(self, trained: bool) -> bool:
        """Whether the backward pass reads the inputs.

        trained: whether the weight has a gradient.
        """
        return True

    def exchanges(self) -> list[Exchange]:
        """What ranks receive in a call, in the mode of the step."""
        module: Any = getattr(self, "module", None)
        return module.exchanges() if hasattr(module, "exchanges") else []


class Elementwise(Step):
    """A function of every word by itself; other operands come to the largest one.

    call: takes shards of `layouts`, then the parameters of `module`. Operands may be
        broadcast, so that ranks with the same samples and channels get the same words.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        layouts: Sequence[Layout],
        count: Count,
        module: ReplicatedParams | None = None,
    ) -> None:
        super().__init__()
        self.call, self.layouts, self.count = call, layouts, count
        self.layout = largest(layouts)
        self.wanted = [broadcast_layout(self.layout, each.whole) for each in layouts]
        self.module = module

    def forward(self, *shards: torch.Tensor) -> torch.Tensor:
        """The shard of the result."""
        trios = zip(shards, self.layouts, self.wanted, strict=True)
        here = [redistribute(each, own, to, self.count) for each, own, to in trios]
        params = [] if self.module is None else self.module.all()
        result: torch.Tensor = self.call(*here, *params)
        return result

    def exchanges(self) -> list[Exchange]:
        """Operands that come to the largest one, and the gradients of parameters."""
        found = super().exchanges()
        pairs = zip(self.layouts, self.wanted, strict=True)
        for place, (own, to) in enumerate(pairs):
            found += moved(own, to, place)
        return found


def largest(layouts: Sequence[Layout]) -> Layout:
    """The layout with the most words, the first of them."""
    return max(layouts, key=lambda layout: math.prod(layout.whole))


class OnShards(Step):
    """A module that takes and returns shards of one layout."""

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        super().__init__()
        self.module, self.layout = module, layout

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """The shard of the result."""
        result: torch.Tensor = self.module(shard)
        return result


class Permute(Step):
    """Dimensions in another order; no words move."""

    def __init__(self, source: Layout, order: Sequence[int]) -> None:
        super().__init__()
        self.order = tuple(order)
        self.layout = permuted(source, order)

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """The shard of the result."""
        return shard.permute(self.order)


def permuted(layout: Layout, order: Sequence[int]) -> Layout:
    """The same words with their dimensions in another order."""
    whole = tuple(layout.whole[dim] for dim in order)
    boxes = (tuple(box[dim] for dim in order) for box in layout.boxes)
    return layout.with_boxes(whole, boxes)


def scaled_boxes(source: Layout, extents: Sequence[int]) -> list[Box]:
    """Each rank's box of an output with other spatial `extents` than its input.

    Samples and channels are those of the input's box. An interval of rows is scaled
    with the extents, and its ends are rounded up.
    """
    scales = list(zip(source.whole[2:], extents, strict=True))
    return [
        (
            *box[:2],
            *(
                (-(-low * extent // size), -(-high * extent // size))
                for (low, high), (size, extent) in zip(box[2:], scales, strict=True)
            ),
        )
        for box in source.boxes
    ]


class Concat(Step):
    """Tensors concatenated along a dimension.

    counts: of the words that are received of each part.
    places: of each part among the arguments of `forward`.
    wanted: the layout of the result. By default a rank holds its box of the first part
        along the other dimensions, and along `dim` the same fraction of the whole. If
        the first part is not cut along `dim`, no words of it move.
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
        for layout in layouts:
            size, boxes = layout.whole[dim], self.layout.boxes
            parts = tuple(
                with_interval(b, dim, _inside(b[dim], start, size)) for b in boxes
            )
            self.wanted.append(layout.with_boxes(layout.whole, parts))
            start += size

    def forward(self, *shards: torch.Tensor) -> torch.Tensor:
        """The shard of the result."""
        given = [shards[place] for place in self.places]
        parts = zip(given, self.layouts, self.wanted, self.counts, strict=True)
        return torch.cat([redistribute(*part) for part in parts], self.dim)

    def exchanges(self) -> list[Exchange]:
        """What comes of each part."""
        parts = zip(self.layouts, self.wanted, self.places, strict=True)
        return [each for part in parts for each in moved(*part)]


def _like_first(layouts: Sequence[Layout], dim: int) -> Layout:
    """The layout of the first part, scaled along a dimension to all parts."""
    first = next((each for each in layouts if each.whole[dim]), layouts[0])
    total = sum(layout.whole[dim] for layout in layouts)
    boxes = (
        with_interval(box, dim, _scaled(box[dim], first.whole[dim], total))
        for box in first.boxes
    )
    whole = (*first.whole[:dim], total, *first.whole[dim + 1 :])
    return first.with_boxes(whole, boxes)


def _scaled(interval: Interval, size: int, total: int) -> Interval:
    low, high = interval
    return low * total // max(1, size), high * total // max(1, size)


def _inside(interval: Interval, start: int, size: int) -> Interval:
    """The part of an interval of the result that comes from one of the tensors."""
    low, high = (min(max(end - start, 0), size) for end in interval)
    return low, high


class Flatten(Step):
    """(b, c, *spatial) as (b, c·spatial). Cut spatial dimensions are joined before."""

    def __init__(self, source: Layout, count: Count) -> None:
        super().__init__()
        self.source, self.count = source, count
        frame = tuple((0, extent) for extent in source.whole[2:])
        straight = all(box[2:] == frame for box in source.boxes)
        self.wanted = source if straight else even(source.whole, source.ranks)
        size = math.prod(source.whole[2:])
        self.layout = source.with_boxes(
            (source.whole[0], source.whole[1] * size),
            ((b[0], (b[1][0] * size, b[1][1] * size)) for b in self.wanted.boxes),
        )

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """The shard of the result."""
        shard = redistribute(shard, self.source, self.wanted, self.count)
        return shard.reshape(shape(self.layout.mine))

    def exchanges(self) -> list[Exchange]:
        """The input, where positions are joined."""
        return moved(self.source, self.wanted)
