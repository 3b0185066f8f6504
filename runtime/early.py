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

from runtime.collectives import Coming


class Early:
    """Ker of a layer for one pass forward and back.

    coming: its slice, if that is on its way.
    waiting: those of the layer whose sums are on their way, kept until these are there
        even if a pass breaks off. None: sums are waited for at once.
    """

    def __init__(
        self, coming: Coming | None = None, waiting: list[Early] | None = None
    ) -> None:
        self.coming, self.waiting = coming, waiting
        self.finish: Callable[[], torch.Tensor] | None = None
        self.total: torch.Tensor | None = None
        self.stand_in: torch.Tensor | None = None

    def slice(self) -> Coming | None:
        """The slice on its way, which is then the caller's."""
        coming, self.coming = self.coming, None
        return coming

    def later(self, finish: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The gradient that `finish` waits for, or what `Brought` replaces by it."""
        if self.waiting is None or self.stand_in is None:
            return finish()
        self.finish = finish
        self.waiting.append(self)
        # all sums are there when the pass ends, even if nobody asks for this gradient
        torch.autograd.Variable._execution_engine.queue_callback(self.arrive)
        return self.stand_in

    def arrive(self) -> None:
        """Wait for what is on its way."""
        coming = self.slice()
        for request in coming.requests if coming else ():
            request.wait()
        if self.finish is not None and self.waiting is not None:
            self.total, self.finish = self.finish(), None
            self.waiting.remove(self)


class Brought(torch.autograd.Function):
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
