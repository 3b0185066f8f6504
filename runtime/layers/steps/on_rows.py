"""A step whose rank computes a box of its result from what it holds of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.nn import functional

from synth.runtime.comm.adjoint import tied
from synth.runtime.comm.exchanges import Exchange
from synth.runtime.comm.layout import Layout
from synth.runtime.grid.boxes import Box, overlap, shape, volume, within
from synth.runtime.layers.steps.held import Held
from synth.runtime.layers.steps.step import Step


class Read(NamedTuple):
    """What a step takes of an input.

    held: what each rank holds. taken: what its call takes; words beyond `used` are read
    by no word of the result.
    """

    held: Layout
    taken: Layout
    used: Layout

    def missing(self) -> int | None:
        """The first rank that uses words which it does not hold; None for no rank."""
        pairs = zip(self.held.boxes, self.used.boxes, strict=True)
        lacks = (bool(volume(use)) and overlap(use, has) != use for has, use in pairs)
        return next((rank for rank, each in enumerate(lacks) if each), None)

    def of(self, values: torch.Tensor) -> torch.Tensor:
        """The taken words; those that the rank does not hold are zero."""
        here, taken = self.held.mine, self.taken.mine
        if here == taken:
            return values
        common = overlap(here, taken)
        if not volume(taken) or not volume(common):
            return tied(values.new_zeros(shape(taken)), values)
        kept = values[within(common, here)]
        return kept if common == taken else functional.pad(kept, _around(taken, common))


def _around(box: Box, inner: Box) -> list[int]:
    """The words of a box before and after those of another, as `F.pad` takes them."""
    pairs = zip(reversed(box), reversed(inner), strict=True)
    return [
        n for (low, high), (first, last) in pairs for n in (first - low, high - last)
    ]


class OnRows(Step):
    """A step of a network with margins: no words move, and no box has one owner.

    step: computes its box from what it reads. reads: of each input, in their order.
    """

    def __init__(self, step: Step, reads: Sequence[Read]) -> None:
        super().__init__()
        self.step, self.reads, self.layout = step, tuple(reads), step.layout
        self.takes, self.settings = len(self.reads), step.settings
        self.module = getattr(step, "module", None)

    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        """The computed box."""
        pairs = zip(self.reads, values, strict=True)
        made: torch.Tensor = self.step(*(read.of(each) for read, each in pairs))
        return made

    def held_tensors(self) -> dict[str, Held]:
        """What the inner step uses."""
        return self.step.held_tensors()

    @property
    def changes_buffers(self) -> bool:
        """Whether the inner step may change some."""
        return self.step.changes_buffers

    def exchanges(self) -> list[Exchange]:
        """Those of the inner step: statistics of normalizations."""
        return self.step.exchanges()
