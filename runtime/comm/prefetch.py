"""Weights that are on their way before a layer's turn, sums of gradients after it.

What a network brings early travels while earlier layers compute. On the way back
autograd takes what was made last first: the node of a weight that was brought before
another layer computed is older than that layer's, and so asked for its gradient after
it. The sums of dKer travel meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from synth.runtime.comm.collectives import Coming, assemble


class Early:
    """Ker of a layer for one pass forward and back.

    coming: its slice, if that is on its way.
    stand_in: of dKer, where `Ahead` lets its sums travel until autograd asks for them.
    """

    def __init__(self, coming: Coming | None = None) -> None:
        self.coming = coming
        self.finish: Callable[[], torch.Tensor] | None = None
        self.total: torch.Tensor | None = None
        self.stand_in: torch.Tensor | None = None
        if coming is not None:
            on_their_way.append(self)

    def slice(self) -> Coming | None:
        """The slice on its way, which is then the caller's."""
        coming, self.coming = self.coming, None
        if coming is not None:
            on_their_way.remove(self)
        return coming

    def later(self, finish: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The gradient that `finish` waits for, or a stand-in that `Ahead` replaces."""
        if self.stand_in is None:
            return finish()
        self.arrive()  # of a pass before over the same graph
        self.finish = finish
        on_their_way.append(self)
        # all sums are there when the pass ends, even if nobody asks for this gradient
        torch.autograd.Variable._execution_engine.queue_callback(self.arrive)
        return self.stand_in

    def arrive(self) -> None:
        """Wait for what is on its way; the sums are kept, a slice is not."""
        coming = self.slice()
        if coming is not None:
            assemble(coming)
        if self.finish is not None:
            on_their_way.remove(self)
            self.total, self.finish = self.finish(), None


on_their_way = list[Early]()  # held until they arrive, also where a step breaks off


def receive() -> None:
    """Wait for all that is on its way."""
    for early in tuple(on_their_way):
        early.arrive()


class Ahead(torch.autograd.Function):
    """The share of Ker that a layer is given while an `Early` is on its way."""

    @staticmethod
    def forward(ctx: Any, ker_own: torch.Tensor, early: Early) -> torch.Tensor:
        """The same values."""
        ctx.early = early
        early.stand_in = ker_own.new_zeros(()).expand(ker_own.shape)
        return ker_own.view_as(ker_own)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The sums, once they are there."""
        early = ctx.early
        early.arrive()
        total, early.total = early.total, None
        return gradient if total is None else total, None
