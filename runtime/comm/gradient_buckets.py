"""Gradients of replicated parameters: summed in few, large messages.

A weight has one owner, which gets the whole gradient from backward-filter. Biases and
parameters of gathered layers are replicated, and every copy has a part of the gradient.
The parts of all layers are packed into flat buckets, one sequence of buckets for each
set of ranks. A bucket is all-reduced when its last part is there, while the backward
pass continues. The end of the pass waits for all buckets and adds the sums to `grad`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from synth.runtime.comm.precision import sum_dtype
from synth.runtime.comm.process_groups import ProcessGroups

BYTES = 25 * 2**20


class Shared(NamedTuple):
    """A parameter and the ranks that hold a copy of it, by their index."""

    parameter: nn.Parameter
    ranks: tuple[int, ...]

    @property
    def words(self) -> int:
        """Words of its gradient."""
        return self.parameter.numel()


class Bucket:
    """Parts of gradients that one message sums over a set of ranks."""

    def __init__(self, group: Any) -> None:
        self.group, self.shared = group, list[Shared]()
        self.words = 0
        self.flat: torch.Tensor | None = None
        self.missing, self.request = set[int](), None

    def zeros(self, like: torch.Tensor) -> torch.Tensor:
        """An empty sum of gradients like this one, in float32 for half precision."""
        return like.new_zeros(self.words, dtype=sum_dtype(like.dtype))

    def used(self) -> bool:
        """Whether any parameter is trained, or was when gradients arrived."""
        trained = any(each.parameter.requires_grad for each in self.shared)
        return trained or self.flat is not None

    def views(self) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
        """Each parameter with the part of the bucket that is its gradient."""
        assert self.flat is not None
        start = 0
        for each in self.shared:
            yield each.parameter, self.flat[start : start + each.words]
            start += each.words


class Buckets:
    """Sums the gradients of shared parameters. All ranks of a set list them alike.

    shared: in the order in which the forward pass uses them.
    process_groups: those of the network.
    size: bytes after which a bucket is full; 0 for a message per parameter.

    Raises `ValueError` for a negative size.
    """

    def __init__(
        self,
        shared: Iterable[Shared],
        process_groups: ProcessGroups,
        size: int = BYTES,
    ) -> None:
        if size < 0:
            raise ValueError(f"buckets have {size} bytes; give 0 or more")
        self.messages = self.words = 0  # sent so far; words of all buckets sent
        self.sums, self.unfinished, self.next = True, False, 0
        self.task = -1
        wanted = [each for each in shared if len(each.ranks) > 1]
        self.buckets = _packed(wanted[::-1], process_groups, size)
        for number, bucket in enumerate(self.buckets):
            for index, each in enumerate(bucket.shared):
                _hook(each.parameter, self._taker(number, index))

    @contextmanager
    def later(self) -> Iterator[None]:
        """Backward passes in here only accumulate; the next one outside sums all."""
        before, self.sums = self.sums, False
        try:
            yield
        finally:
            self.sums = before

    def _taker(self, number: int, index: int) -> Callable[[torch.Tensor], torch.Tensor]:
        bucket = self.buckets[number]

        def take(gradient: torch.Tensor) -> torch.Tensor:
            self._begin()
            if bucket.flat is None:
                bucket.flat = bucket.zeros(gradient)
            views = list(bucket.views())
            views[index][1].add_(gradient.reshape(-1))
            bucket.missing.discard(index)
            if self.sums:
                self._send(everything=False)
            return torch.zeros_like(gradient)  # `_finish` adds the sum

        return take

    def _begin(self) -> None:
        """Reset the buckets at the first gradient of a backward pass."""
        task = torch._C._current_graph_task_id()
        if task == self.task:
            return
        if self.unfinished:  # the last pass raised: drop its gradients
            self._drop()
        self.task, self.next, self.unfinished = task, 0, self.sums
        for bucket in self.buckets:
            bucket.missing = {
                index
                for index, each in enumerate(bucket.shared)
                if each.parameter.requires_grad
            }
        if self.sums:
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)

    def _send(self, everything: bool) -> None:
        """All-reduce the complete buckets in their order, the same on all ranks."""
        while self.next < len(self.buckets):
            bucket = self.buckets[self.next]
            if bucket.missing and not everything:
                return
            self.next += 1
            if not bucket.used():
                continue
            if bucket.flat is None:  # no rank has a gradient yet
                first = bucket.shared[0].parameter
                bucket.flat = bucket.zeros(first.detach())
            bucket.request = dist.all_reduce(
                bucket.flat, group=bucket.group, async_op=True
            )
            self.messages, self.words = self.messages + 1, self.words + bucket.words

    def _finish(self) -> None:
        """At the end of a backward pass, wait for all sums and add them to `grad`."""
        self._send(everything=True)
        for bucket in self.buckets:
            if bucket.request is None:  # all its parameters are frozen
                continue
            assert bucket.flat is not None
            bucket.request.wait()
            bucket.request = None
            for parameter, total in bucket.views():
                if parameter.grad is not None:
                    parameter.grad.add_(total.view_as(parameter))
            bucket.flat.zero_()
        self.unfinished = False

    def _drop(self) -> None:
        for bucket in self.buckets:
            if bucket.request is not None:
                bucket.request.wait()
                bucket.request = None
            if bucket.flat is not None:
                bucket.flat.zero_()


def _hook(parameter: nn.Parameter, take: Callable[..., torch.Tensor]) -> None:
    """Register a hook that also works if a frozen parameter is trained later."""
    if not (parameter.is_floating_point() or parameter.is_complex()):
        return  # never trained
    trained = parameter.requires_grad
    parameter.requires_grad_(True).register_hook(take)  # type: ignore[no-untyped-call]
    parameter.requires_grad_(trained)


def _packed(
    shared: Sequence[Shared], process_groups: ProcessGroups, size: int
) -> list[Bucket]:
    """Buckets in the order in which they become complete."""
    open_: dict[tuple[Any, ...], Bucket] = {}
    buckets = []
    for each in shared:
        key = each.ranks, each.parameter.dtype, each.parameter.device
        bucket = open_.get(key)
        held = 0 if bucket is None else bucket.words
        if bucket is None or (held + each.words) * each.parameter.itemsize > size:
            group = process_groups.of(each.ranks, purpose="gradients")
            bucket = open_[key] = Bucket(group)
            buckets.append(bucket)
        bucket.shared.append(each)
        bucket.words += each.words
    places = {id(each.parameter): place for place, each in enumerate(shared)}
    return sorted(buckets, key=lambda b: places[id(b.shared[-1].parameter)])
