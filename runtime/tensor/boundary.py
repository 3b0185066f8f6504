"""The border between partitioned tensors and plain ones, for autograd.

A plain tensor is either the whole, the same on every rank, or this rank's part. A
gradient may arrive as a whole or with another partition; it is brought to the
partition of its tensor.
"""

from __future__ import annotations

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
        what: Callable[[], str] | None = None,
    ) -> torch.Tensor:
        """The tensor, which shares the memory of the part.

        what: says what the ranks, of all replicas, first agree to do in the backward
            pass; None for nothing.
        """
        ctx.partition, ctx.what = partition, what
        return PartitionedTensor(local, partition)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """The own part of the gradient.

        Raises `NotImplementedError` if gradients of a network are to have gradients.
        """
        what = "" if ctx.what is None else ctx.what()
        if what and torch.is_grad_enabled():
            raise NotImplementedError(
                f"create_graph=True in the {what}: layers on several ranks have no"
                " second derivative; compute the penalty from the model in one process"
            )
        if what:
            ctx.partition.ranks.require_all(what)
        return local_of(gradient, ctx.partition), None, None


class FromWhole(torch.autograd.Function):
    """A tensor from the whole that all ranks have."""

    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, partition: Partition) -> torch.Tensor:
        """The own box of it."""
        return PartitionedTensor(partition.cut(whole).contiguous(), partition)

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
        if not isinstance(gradient, PartitionedTensor):
            ctx.partition.ranks.note(gradient)
        return PartitionedTensor(local_of(gradient, ctx.partition), ctx.partition)


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
        part = local_of(gradient, ctx.source)
        return PartitionedTensor(part, ctx.source), None
