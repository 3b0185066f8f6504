"""The border between partitioned tensors and plain ones, for autograd.

A plain tensor is either the whole, the same on every rank, or this rank's part. A
gradient may arrive as a whole or with another partition; it is brought to the
partition of its tensor.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from synth.runtime.tensor.partition import Partition
from synth.runtime.tensor.partitioned import PartitionedTensor


def local_of(gradient: torch.Tensor, partition: Partition) -> torch.Tensor:
    """The part of a gradient in a partition's box."""
    if isinstance(gradient, PartitionedTensor):
        return gradient._partition.move(gradient._local, partition)
    return partition.cut(gradient).contiguous()


def compared(gradient: torch.Tensor, partition: Partition) -> torch.Tensor:
    """A gradient; a whole one is compared between ranks when they next agree."""
    if not isinstance(gradient, PartitionedTensor):
        partition.ranks.note(f"gradient of {tuple(partition.shape)}", gradient)
    return gradient


class ToLocal(torch.autograd.Function):
    """The own part of a tensor."""

    @staticmethod
    def forward(ctx: Any, given: PartitionedTensor) -> torch.Tensor:
        """The part, which shares the memory of the tensor."""
        ctx.partition = given._partition
        ctx.set_materialize_grads(False)
        return given._local.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """The tensor of which the gradient is this rank's part; None for none."""
        return None if gradient is None else PartitionedTensor(gradient, ctx.partition)


class FromLocal(torch.autograd.Function):
    """A tensor from the part of each rank."""

    @staticmethod
    def forward(
        ctx: Any,
        local: torch.Tensor,
        partition: Partition,
        before: Callable[[], None] | None = None,
    ) -> torch.Tensor:
        """The tensor, which shares the memory of the part.

        before: what the ranks first do in the backward pass; None for nothing.
        """
        ctx.partition, ctx.before = partition, before
        made = PartitionedTensor(local, partition)
        ctx.made = weakref.ref(made)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """The own part of the gradient."""
        compared(gradient, ctx.partition)
        if ctx.before is not None:
            ctx.before()
        made = ctx.made()
        if made is not None and made._version:
            # what has saved the part, as an activation does, then sees the change
            torch.autograd.graph.increment_version(made._local)
        return local_of(gradient, ctx.partition), None, None


class FromWhole(torch.autograd.Function):
    """A tensor from the whole that all ranks have."""

    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, partition: Partition) -> torch.Tensor:
        """A copy of the own box of it."""
        partition.ranks.note(f"whole of {tuple(whole.shape)}", whole)
        own = partition.cut(whole).clone(memory_format=torch.contiguous_format)
        return PartitionedTensor(own, partition)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The whole gradient, on all ranks."""
        if isinstance(gradient, PartitionedTensor):
            gradient = gradient._partition.gather(gradient._local)
        return gradient, None


class ToWhole(torch.autograd.Function):
    """The whole on every rank, of which all ranks then compute the same."""

    @staticmethod
    def forward(ctx: Any, given: PartitionedTensor) -> torch.Tensor:
        """All words."""
        ctx.partition = given._partition
        return given._partition.gather(given._local)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        """The own part of the gradient, which is the same on all ranks."""
        part = local_of(compared(gradient, ctx.partition), ctx.partition)
        return PartitionedTensor(part, ctx.partition)


class Move(torch.autograd.Function):
    """The same words with another partition."""

    @staticmethod
    def forward(ctx: Any, given: PartitionedTensor, target: Partition) -> torch.Tensor:
        """The own box of the target."""
        ctx.source = given._partition
        moved = given._partition.move(given._local, target)
        return PartitionedTensor(moved, target)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The gradient with the partition of the source."""
        part = local_of(compared(gradient, ctx.source), ctx.source)
        return PartitionedTensor(part, ctx.source), None
