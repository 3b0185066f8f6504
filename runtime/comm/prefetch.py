"""Prefetch of Ker before a layer's turn, and deferred sums of its gradient.

A network starts to gather Ker of the next layer while the current one computes. In the
backward pass the sums of dKer travel while the next layer's gradients are computed.
Autograd runs nodes in reverse creation order. The node of a prefetched weight is
created before that of the layer in between, so its backward runs after that layer's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from synth.runtime.comm.collectives import PendingGather, wait_gather


class Prefetch:
    """Ker of a layer for one forward and one backward pass.

    in_flight: the list of what its network must wait for; see `Context.pending`.
    gather: the gather of the slice of Ker, if that has started.
    placeholder: stands for dKer until `PrefetchedWeight` replaces it by the sums; None
        if the sums are not deferred.
    """

    def __init__(
        self, in_flight: list[Any], gather: PendingGather | None = None
    ) -> None:
        self.in_flight, self.gather = in_flight, gather
        self.finish: Callable[[], torch.Tensor] | None = None
        self.total: torch.Tensor | None = None
        self.placeholder: torch.Tensor | None = None
        if gather is not None:
            in_flight.append(self)

    def take(self) -> PendingGather | None:
        """Hand the pending gather to the caller, who waits for it."""
        gather, self.gather = self.gather, None
        if gather is not None:
            self.in_flight.remove(self)
        return gather

    def defer(self, finish: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The gradient that `finish` waits for, or the placeholder for it."""
        if self.placeholder is None:
            return finish()
        self.wait()  # for an earlier backward pass over the same graph
        self.finish = finish
        self.in_flight.append(self)
        # The sums arrive before the pass ends, even if nothing uses this gradient.
        torch.autograd.Variable._execution_engine.queue_callback(self.wait)
        return self.placeholder

    def wait(self) -> None:
        """Wait for everything pending: keep the sums, drop a gathered slice."""
        gather = self.take()
        if gather is not None:
            wait_gather(gather)
        if self.finish is not None:
            self.in_flight.remove(self)
            self.total, self.finish = self.finish(), None


class PrefetchedWeight(torch.autograd.Function):
    """The shard of Ker that a layer is called with while a `Prefetch` is pending."""

    @staticmethod
    def forward(ctx: Any, ker_own: torch.Tensor, prefetch: Prefetch) -> torch.Tensor:
        """The shard itself; what stands for its gradient until the sums arrive."""
        ctx.prefetch = prefetch
        prefetch.placeholder = ker_own.new_zeros(()).expand(ker_own.shape)
        return ker_own.view_as(ker_own)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The sums of dKer, waited for here."""
        prefetch = ctx.prefetch
        prefetch.wait()
        total, prefetch.total = prefetch.total, None
        return gradient if total is None else total, None
