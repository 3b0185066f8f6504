"""Sums and means along dimensions that ranks may cut, such as global pooling.

Each rank reduces its own box. Parts of a value go to its owner, which combines them:
the first round of `SharedParts`. The gradient of a value returns to all ranks that had
a part of it, so no pass gathers the input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch.autograd.function import once_differentiable

from synth.runtime.comm.exchanges import Exchange, moved, summed
from synth.runtime.comm.layout import Layout, disjoint, even
from synth.runtime.comm.precision import sum_dtype
from synth.runtime.comm.process_groups import ProcessGroups
from synth.runtime.comm.redistribute import Count, redistribute
from synth.runtime.comm.shared_parts import SharedParts
from synth.runtime.grid.boxes import Box, shape, volume
from synth.runtime.kernels.autocast import Operator, no_autocast, operator_dtype
from synth.runtime.layers.steps.step import Step

Word = Literal["mean", "sum"]


class Reduction(Step):
    """A sum or mean along some dimensions, but not along all.

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
            sums = self._own_sums(shard.to(sum_dtype(dtype)))
            own = (sums / self.divisor).unsqueeze(0)
            if not self.parts.alone:
                own = _SumsAtOwners.apply(own, self.parts)  # type: ignore[no-untyped-call]
        return own.reshape(shape(self.layout.mine)).to(dtype)

    def _own_sums(self, shard: torch.Tensor) -> torch.Tensor:
        """The sums over the own box."""
        if shard.numel():
            return shard.sum(self.over)
        return shard.new_zeros(shape(self.held.mine)) + shard.sum()

    def exchanges(self) -> list[Exchange]:
        """The input, where boxes overlap in part, and parts of values."""
        return moved(self.source, self.wanted) + summed(self.held, self.parts.owned)


class _SumsAtOwners(torch.autograd.Function):
    """Partial sums of values at their owners; a gradient goes to all that added."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, parts: SharedParts) -> torch.Tensor:
        """The sums of the owned values, (1, *owned box)."""
        ctx.parts = parts
        return parts.owned_sums(own)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The gradients of all values of which this rank had parts."""
        return ctx.parts.from_owners(gradient), None


OPERATORS: dict[str, Operator] = {"mean": torch.mean, "sum": torch.sum}
