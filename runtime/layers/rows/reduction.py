"""Sums, means and extrema along dimensions that ranks may cut: global pooling.

Each rank reduces its own box. Parts of a value go to its owner, which combines them:
the first round of `SharedParts`. The gradient of a value returns to all ranks that had
a part of it, so no pass gathers the input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from synth.runtime.comm.adjoint import with_adjoint
from synth.runtime.comm.exchanges import Exchange, moved, summed, times
from synth.runtime.comm.layout import Layout, disjoint, even
from synth.runtime.comm.precision import sum_dtype
from synth.runtime.comm.process_groups import ProcessGroups
from synth.runtime.comm.redistribute import Count, redistribute
from synth.runtime.comm.shared_parts import SharedParts
from synth.runtime.grid.boxes import Box, shape, volume
from synth.runtime.kernels.autocast import Operator, no_autocast, operator_dtype
from synth.runtime.layers.steps.step import Step

# "first": a maximum whose gradient goes to the first of equal rows, as in max pooling;
# that of "amax" and "amin" is divided among all of them
Word = Literal["mean", "sum", "amax", "amin", "first"]


class Reduction(Step):
    """A sum, mean, maximum or minimum along some dimensions, but not along all.

    keep: whether these dimensions stay, with extent 1.
    operator: of torch, called with one word; it says the dtype under autocast.
    """

    def __init__(
        self,
        word: Word,
        source: Layout,
        over: Sequence[int],
        keep: bool,
        process_groups: ProcessGroups,
        count: Count,
        operator: Operator | None = None,
    ) -> None:
        super().__init__()
        self.source, self.over, self.count = source, tuple(over), count
        self.word = word
        self.operator = operator or OPERATORS[word]
        rows = math.prod(source.whole[dim] for dim in over)
        self.divisor = rows if word == "mean" else 1
        self.wanted = source
        if not disjoint(self._reduced(source)):
            self.wanted = even(source.whole, source.ranks)
        whole = [n for dim, n in enumerate(source.whole) if dim not in over]
        self.held = source.with_boxes(whole, self._reduced(self.wanted))
        self.parts = SharedParts(self.held, process_groups, count)
        self.layout = self._with_dims(self.parts.owned) if keep else self.parts.owned

    def _reduced(self, layout: Layout) -> list[Box]:
        """The values of which each rank has parts; none where its box is empty."""
        kept = [dim for dim in range(len(layout.whole)) if dim not in self.over]
        return [
            tuple(box[dim] if volume(box) else (0, 0) for dim in kept)
            for box in layout.boxes
        ]

    def _with_dims(self, layout: Layout) -> Layout:
        """The same values with the reduced dimensions, of extent 1."""

        def full(values: Sequence[Any], one: Any) -> tuple[Any, ...]:
            rest, dims = iter(values), range(len(self.source.whole))
            return tuple(one if dim in self.over else next(rest) for dim in dims)

        boxes = (full(box, (0, 1)) for box in layout.boxes)
        return layout.with_boxes(full(layout.whole, 1), boxes)

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """The owned words of the result."""
        dtype = operator_dtype("reduction", self.operator, shard)
        shard = redistribute(shard, self.source, self.wanted, self.count)
        with no_autocast(shard.device):
            if self.word in ("mean", "sum"):
                own = self._sums(shard, sum_dtype(dtype))
            else:
                own = self._extrema(shard.to(sum_dtype(dtype)))
        return own.reshape(shape(self.layout.mine)).to(dtype)

    def _sums(self, shard: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The owned sums, or means."""
        own = self._own(shard, partial(torch.sum, dtype=dtype)) / self.divisor
        if self.parts.alone:
            return own
        parts = self.parts
        return with_adjoint(own.unsqueeze(0), parts.owned_sums, parts.broadcast)

    def _extrema(self, shard: torch.Tensor) -> torch.Tensor:
        """The owned maxima or minima.

        A rank sends its extremum, and with it the number of its rows that have it, or
        the position of the first of them.
        """
        reduce = torch.amin if self.word == "amin" else torch.amax
        if self.parts.alone and self.word != "first":
            return self._own(shard, reduce)
        if not shard.numel():
            return self._own(shard, torch.sum)
        if self.word == "first":
            own, places = self._first_maxima(shard)
            marks = self._positions(places)
        else:
            own = reduce(shard, self.over)
            kept = shape(self._with_dims(self.held).mine)
            marks = (shard == own.detach().reshape(kept)).sum(self.over)
        if self.parts.alone:
            return own
        extrema: torch.Tensor = _ExtremaAtOwners.apply(  # type: ignore[no-untyped-call]
            own, marks.to(own.dtype), self.parts, self.word
        )
        return extrema

    def _first_maxima(self, shard: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The own maxima, and the first positions of them in the own box, flat."""
        pools: Any = (
            functional.adaptive_max_pool1d,
            functional.adaptive_max_pool2d,
            functional.adaptive_max_pool3d,
        )
        own, places = pools[shard.dim() - 3](shard, 1, return_indices=True)
        return own.flatten(1), places.flatten(1)

    def _positions(self, places: torch.Tensor) -> torch.Tensor:
        """Positions in the whole map, from those in the own box."""
        found = torch.zeros_like(places)
        step, box = 1, self.wanted.mine
        for dim in reversed(self.over):
            low, high = box[dim]
            found += (places % (high - low) + low) * step
            places = places // (high - low)
            step *= self.source.whole[dim]
        return found

    def _own(
        self, shard: torch.Tensor, reduce: Callable[..., torch.Tensor]
    ) -> torch.Tensor:
        """What a function makes of the own box."""
        if shard.numel():
            return reduce(shard, self.over)
        return shard.new_zeros(shape(self.held.mine)) + shard.sum()

    def exchanges(self) -> list[Exchange]:
        """The input, where boxes overlap in part, and parts of values."""
        numbers = 1 if self.word in ("mean", "sum") else 2
        parts = summed(self.held, self.parts.owned)
        found = [each._replace(forward=times(numbers, each.forward)) for each in parts]
        return moved(self.source, self.wanted) + found


class _ExtremaAtOwners(torch.autograd.Function):
    """Extrema of parts at their owners; a gradient goes to the ranks that have them."""

    @staticmethod
    def forward(
        ctx: Any,
        own: torch.Tensor,
        marks: torch.Tensor,
        parts: SharedParts,
        word: Word,
    ) -> torch.Tensor:
        """The extrema of the owned values, from those of all ranks.

        marks: how many rows have a rank's extremum; of "first" where the first one is.
        """
        values, marks = parts.owned_parts(torch.stack([own, marks])).unbind(1)
        top = values.amin(0) if word == "amin" else values.amax(0)
        if word == "first":
            marks = marks.masked_fill(values != top, math.inf)
            shares = (marks == marks.amin(0)).to(own.dtype)
        else:
            marks = marks.masked_fill(values != top, 0)
            shares = marks / marks.sum(0)
        ctx.parts = parts
        ctx.save_for_backward(shares)
        return top

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        """The gradients of the own extrema."""
        (shares,) = ctx.saved_tensors
        back = ctx.parts.from_owners([(gradient * each)[None] for each in shares])
        return back[0], None, None, None


OPERATORS: dict[str, Operator] = {
    "mean": torch.mean,
    "sum": torch.sum,
    "amax": torch.amax,
    "amin": torch.amin,
}
