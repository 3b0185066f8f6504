"""Gradients of parameters that several ranks hold alike: summed in few, large messages.

A weight has one owner, whom backward-filter gives its gradient. Biases and parameters
of gathered layers are held by all ranks that use them; every one of these has a part of
the gradient. The parts are written into flat buckets, all layers packed, one sequence
of buckets for each set of ranks. A bucket is sent when its last part is there, while
the backward pass goes on; the end of the pass waits for all of them and adds the sums
to `grad`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from synth.runtime.grid.process_grid import ranks_group

BYTES = 25 * 2**20


class Shared(NamedTuple):
    """A parameter and the ranks that hold the same one."""

    parameter: nn.Parameter
    ranks: tuple[int, ...]

    @property
    def words(self) -> int:
        """Of its gradient."""
        return self.parameter.numel()


class Bucket:
    """Parts of gradients that are summed over the same ranks in one message."""

    def __init__(self, group: Any) -> None:
        self.group, self.shared = group, list[Shared]()
        self.words = 0
        self.flat: torch.Tensor | None = None
        self.missing, self.request = set[int](), None

    def used(self) -> bool:
        """Whether there are gradients, or will be: not where all of it is frozen."""
        trained = any(each.parameter.requires_grad for each in self.shared)
        return trained or self.flat is not None

    def views(self) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
        """Parameters and where in the bucket their words are."""
        assert self.flat is not None
        start = 0
        for each in self.shared:
            yield each.parameter, self.flat[start : start + each.words]
            start += each.words


class Buckets:
    """Sums the gradients of shared parameters; all ranks of a set list them alike.

    shared: in the order in which the forward pass uses them.
    size: bytes after which a bucket is full; 0 for a message per parameter.
    """

    def __init__(self, shared: Iterable[Shared], size: int = BYTES) -> None:
        if size < 0:
            raise ValueError(f"buckets have {size} bytes; give 0 or more")
        self.messages = self.words = 0  # sent so far; words of all buckets sent
        self.sums, self.unfinished, self.next = True, False, 0
        self.task = -1
        wanted = [each for each in shared if len(each.ranks) > 1]
        self.buckets = _packed(wanted[::-1], size)
        for number, bucket in enumerate(self.buckets):
            for index, each in enumerate(bucket.shared):
                _hook(each.parameter, self._taker(number, index))

    @contextmanager
    def later(self) -> Iterator[None]:
        """Backward passes in here only collect; the next one outside sums for all."""
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
                bucket.flat = gradient.new_zeros(bucket.words)
            views = list(bucket.views())
            views[index][1].add_(gradient.reshape(-1))
            bucket.missing.discard(index)
            if self.sums:
                self._send(everything=False)
            return torch.zeros_like(gradient)  # the sum is added at the end

        return take

    def _begin(self) -> None:
        """At the first gradient of a backward pass."""
        task = torch._C._current_graph_task_id()
        if task == self.task:
            return
        if self.unfinished:  # the pass before broke off: its gradients are no use
            self._forget()
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
        """Send buckets that are complete, in their order: it is that of all ranks."""
        while self.next < len(self.buckets):
            bucket = self.buckets[self.next]
            if bucket.missing and not everything:
                return
            self.next += 1
            if not bucket.used():
                continue
            if bucket.flat is None:  # no gradient yet, on no rank
                first = bucket.shared[0].parameter
                bucket.flat = first.detach().new_zeros(bucket.words)
            bucket.request = dist.all_reduce(
                bucket.flat, group=bucket.group, async_op=True
            )
            self.messages, self.words = self.messages + 1, self.words + bucket.words

    def _finish(self) -> None:
        """The end of a backward pass: all sums are there and added."""
        self._send(everything=True)
        for bucket in self.buckets:
            if bucket.request is None:  # all of it is frozen
                continue
            assert bucket.flat is not None
            bucket.request.wait()
            bucket.request = None
            for parameter, total in bucket.views():
                if parameter.grad is not None:
                    parameter.grad.add_(total.view_as(parameter))
            bucket.flat.zero_()
        self.unfinished = False

    def _forget(self) -> None:
        for bucket in self.buckets:
            if bucket.request is not None:
                bucket.request.wait()
                bucket.request = None
            if bucket.flat is not None:
                bucket.flat.zero_()


def _hook(parameter: nn.Parameter, take: Callable[..., torch.Tensor]) -> None:
    """A hook that also works where a frozen parameter is trained later."""
    if not (parameter.is_floating_point() or parameter.is_complex()):
        return  # never trained
    trained = parameter.requires_grad
    parameter.requires_grad_(True).register_hook(take)  # type: ignore[no-untyped-call]
    parameter.requires_grad_(trained)


def _packed(shared: Sequence[Shared], size: int) -> list[Bucket]:
    """Buckets in the order in which they become complete."""
    open_: dict[tuple[Any, ...], Bucket] = {}
    buckets = []
    for each in shared:
        key = each.ranks, each.parameter.dtype, each.parameter.device
        bucket = open_.get(key)
        held = 0 if bucket is None else bucket.words
        if bucket is None or (held + each.words) * each.parameter.itemsize > size:
            bucket = open_[key] = Bucket(ranks_group(each.ranks, purpose="gradients"))
            buckets.append(bucket)
        bucket.shared.append(each)
        bucket.words += each.words
    places = {id(each.parameter): place for place, each in enumerate(shared)}
    return sorted(buckets, key=lambda b: places[id(b.shared[-1].parameter)])
