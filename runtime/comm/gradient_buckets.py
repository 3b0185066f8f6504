"""Gradients of replicated parameters: summed in few, large messages.

A weight has one owner, which gets the whole gradient from backward-filter. Biases and
parameters of gathered layers are replicated, and every copy has a part of the gradient.
The parts are packed into flat buckets, one sequence of buckets for each set of ranks.
Replicas of a network average the gradients of all parameters: then the set of a bucket
is that of the holders in every replica, and a weight is in a bucket, too.

Two autograd nodes stand between the parameters of a bucket and the layers. `StartSums`
is created just before the first layer that uses the bucket. So its backward runs as
soon as the last part is there, and starts the all-reduce. `FinishSums` is created at
the start of the forward pass. So its backward runs after those of all layers, and waits
for the sums: autograd runs ready nodes in reverse order of creation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from synth.runtime.comm.messages import all_reduce
from synth.runtime.comm.precision import sum_dtype
from synth.runtime.comm.process_groups import ProcessGroups, uncounted
from synth.runtime.comm.redistribute import Count, in_memory
from synth.runtime.comm.shared_memory import LEAST, SharedMemory, SharedSum
from synth.runtime.comm.waiting_gradients import LocalTensors, Waiting
from synth.runtime.grid.boxes import Box, shape, within
from synth.runtime.grid.rules.shared_rounds import all_reduced
from synth.runtime.grid.spans import mark, waiting

BYTES = 25 * 2**20
Gradients = tuple[torch.Tensor | None, ...]
Nodes = Sequence[tuple[Any, int]]  # of autograd, each with a place


class Spread(NamedTuple):
    """Where a copy of a whole gradient lies in a bucket, so that each word counts once.

    box: of the local part. span: the box in the bucket. counted: the parts of `box`
    that this rank alone gives; the other words of `span` are zeros here.
    """

    box: Box
    span: Box
    counted: tuple[Box, ...]

    def packed(self, part: torch.Tensor) -> torch.Tensor:
        """What this rank gives to the sums."""
        given = part.new_zeros(shape(self.span))
        for box in self.counted:
            given[within(box, self.span)] = part[within(box, self.box)]
        return given

    def unpacked(self, sums: torch.Tensor) -> torch.Tensor:
        """The local part of the sums."""
        return sums.view(shape(self.span))[within(self.box, self.span)]


class Shared(NamedTuple):
    """A parameter of which several ranks hold a copy.

    key: of the model's state. ranks: the indices of the holders. words, dtype: in a
    bucket. step: the first call that uses it. spread: where each copy gets the whole
    gradient; None where it gets a part of it, or there is one copy.
    """

    key: str
    ranks: tuple[int, ...]
    words: int
    dtype: torch.dtype
    step: str
    spread: Spread | None = None


class Border(NamedTuple):
    """Between the parameters that a network has and the local tensors that layers use.

    local: of a parameter. gradient: of a parameter, from that of its local tensor.
    """

    local: Callable[[torch.Tensor], torch.Tensor]
    gradient: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


NO_BORDER = Border(lambda given: given, lambda given, gradient: gradient)


class MessageSum:
    """A sum on its way in one message. flat: the terms of this rank, then the sums."""

    def __init__(self, flat: torch.Tensor, group: Any) -> None:
        self.flat = flat
        self.request = all_reduce(flat, group)

    def wait(self) -> None:
        """Wait until the sums are there."""
        with waiting("wait for sums of gradients"):
            self.request.wait()


class Bucket:
    """Parameters of which one message sums the gradients over a set of ranks."""

    def __init__(self, group: Any) -> None:
        self.group, self.shared, self.bytes = group, list[Shared](), 0
        self.flat: torch.Tensor | None = None  # of the last sums
        self.memory: SharedMemory | None = None  # for the next ones
        self.asked = False  # whether the ranks know if they share memory

    def start(
        self, parts: Sequence[torch.Tensor], keeps: bool
    ) -> MessageSum | SharedSum:
        """Start to sum parts, one after another, over the ranks.

        keeps: whether the next sums may use the memory of these.
        """
        mark(f"sum of {sum(part.numel() for part in parts)} words of gradients")
        keeps = keeps and not torch.compiler.is_compiling()
        memory = self._shared_memory(parts) if keeps else None
        if memory is None:
            return MessageSum(self.joined(parts, keeps), self.group)
        return memory.start(parts, _used_here_alone(memory.own))

    def _shared_memory(self, parts: Sequence[torch.Tensor]) -> SharedMemory | None:
        """That of the ranks for the sums of parts; None for a message.

        The ranks of the group ask for it once, at their first sums.
        """
        words = sum(each.words for each in self.shared)
        dtype = sum_dtype(self.shared[0].dtype)
        if words * dtype.itemsize < LEAST:
            return None
        if not self.asked:
            self.asked = True
            self.memory = SharedMemory.of(self.group, words, dtype)
        suits = all((e.dtype, e.device.type) == (dtype, "cpu") for e in parts)
        return self.memory if suits else None

    def joined(self, parts: Sequence[torch.Tensor], keep: bool = False) -> torch.Tensor:
        """The parts one after another, in the memory of the last sums if that is free.

        Gradients are views of it until an optimizer sets them to None. New pages would
        take several times as long as the copies.

        keep: whether the next sums may use the memory of these.
        """
        flat, self.flat = self.flat, None
        words = sum(part.numel() for part in parts)
        if (
            flat is None
            or (flat.dtype, flat.device) != (parts[0].dtype, parts[0].device)
            or flat.numel() != words
            or not _used_here_alone(flat)
        ):
            flat = parts[0].new_empty(words)
        torch.cat([part.reshape(-1) for part in parts], out=flat)
        self.flat = flat if keep else None
        return flat

    @property
    def step(self) -> str:
        """The call before which the bucket is opened: the first that uses it."""
        return self.shared[-1].step


class Buckets:
    """Sums the gradients of shared parameters. All ranks of a set list them alike.

    shared: in the order in which the forward pass uses them.
    process_groups: those of the network.
    size: bytes after which a bucket is full; 0 for a message per parameter.
    keeps: whether a bucket keeps its memory for the next step, as DDP's does.
    border: what autograd passes there; one node does it for a whole bucket.
    count: is called with the words that this rank receives in a sum.

    Raises `ValueError` for a negative size.
    """

    def __init__(
        self,
        shared: Iterable[Shared],
        process_groups: ProcessGroups,
        size: int = BYTES,
        keeps: bool = False,
        border: Border = NO_BORDER,
        count: Count = uncounted,
    ) -> None:
        self.keeps, self.border, self.count = keeps, border, count
        if size < 0:
            raise ValueError(f"buckets have {size} bytes; give 0 or more")
        self.messages = self.words = 0  # sent so far; words of all buckets sent
        self.replicas = process_groups.ranks.replica_count
        alone = self.replicas == 1
        wanted = [each for each in shared if len(each.ranks) > 1 or not alone]
        self.buckets = _packed(wanted[::-1], process_groups, size)
        self.opened: dict[str, list[Bucket]] = {}
        self.of_key: dict[str, Bucket] = {}
        for bucket in self.buckets:
            self.opened.setdefault(bucket.step, []).append(bucket)
            self.of_key.update((each.key, bucket) for each in bucket.shared)

    def begin(self, tensors: LocalTensors, waiting: Waiting) -> dict[int, Sums]:
        """At the start of a forward pass: the sums of each bucket by its `id`.

        tensors: the parameters, replaced by the local ones that layers may use.
        waiting: what the network adds up.
        """
        rounds = {}
        for bucket in self.buckets:
            used = [each.key for each in bucket.shared if each.key in tensors]
            trained = {key: tensors[key] for key in used if tensors[key].requires_grad}
            if trained and torch.is_grad_enabled():
                rounds[id(bucket)] = sums = Sums(self, bucket, trained, waiting)
                sums.through(FinishSums, tensors)
            for key in used:
                tensors[key] = self.border.local(tensors[key])
        return rounds

    def finish(self, waiting: Waiting) -> None:
        """Add the sums of parts that a backward pass has not reached."""
        for bucket in self.buckets:
            given = {each.key: waiting.take(each.key) for each in bucket.shared}
            named = {key: part for key, part in given.items() if part is not None}
            if not named:
                continue
            leaves = {key: waiting.leaves[key] for key in named}
            sums = Sums(self, bucket, leaves, waiting)
            sums.like = [self.border.local(each).detach() for each in leaves.values()]
            sums.sum(named)
            for leaf, each in zip(leaves.values(), sums.finish(), strict=True):
                assert leaf.grad is not None
                assert each is not None
                waiting.local(leaf.grad).add_(each)

    def open(self, step: str, tensors: LocalTensors, rounds: dict[int, Sums]) -> None:
        """Just before a call: the buckets that it is the first to use."""
        for bucket in self.opened.get(step, ()):
            _open(bucket, tensors, rounds)

    def open_for(
        self, key: str, tensors: LocalTensors, rounds: dict[int, Sums]
    ) -> None:
        """Just before a parameter is used ahead of its call: its bucket."""
        if key in self.of_key:
            _open(self.of_key[key], tensors, rounds)


class Sums:
    """The sums of one bucket for the backward passes of one forward pass.

    trained: the parameters that get gradients. waiting: what the network adds up.
    """

    def __init__(
        self, owner: Buckets, bucket: Bucket, trained: LocalTensors, waiting: Waiting
    ) -> None:
        self.owner, self.bucket, self.waiting = owner, bucket, waiting
        self.shared = {each.key: each for each in bucket.shared}
        self.trained = trained
        self.like: list[torch.Tensor] = []  # the local parameters
        self.request: MessageSum | SharedSum | None = None
        self.summed: list[str] = []  # keys of the parts in it
        self.opened = False

    def through(
        self, node: type[torch.autograd.Function], tensors: LocalTensors
    ) -> None:
        """Pass the parameters through an autograd node."""
        given = [tensors[key] for key in self.trained]
        made = node.apply(self, *given)  # type: ignore[no-untyped-call]
        tensors.update(zip(self.trained, made, strict=True))

    def start(self, parts: Sequence[torch.Tensor | None], ends: Nodes) -> None:
        """Start to sum the parts of this rank, or let them wait for a later pass.

        parts: None for a parameter that has no gradient. ends: where gradients go.
        """
        waiting = self.waiting
        named: LocalTensors = {}
        for key, part in zip(self.trained, parts, strict=True):
            if part is not None:
                spread, part = self.shared[key].spread, in_memory(part)
                wide = part.to(sum_dtype(part.dtype))
                named[key] = wide if spread is None else spread.packed(wide)
        for key, (node, _) in zip(self.trained, ends, strict=True):
            if not waiting.sums:
                if key in named:
                    waiting.keep(key, named[key], node)
            elif waiting.graph is self.owner:
                more = waiting.take(key, node)
                if more is not None:
                    named[key] = named[key] + more if key in named else more
        if waiting.sums:
            self.sum(named)

    def sum(self, named: LocalTensors) -> None:
        """Start to sum parts, by key."""
        given, self.summed = list(named.values()), list(named)
        self.request = self.bucket.start(given, self.owner.keeps)
        self.owner.messages += 1
        self.owner.words += len(self.request.flat)
        self.owner.count(sum(self._received(self.shared[key]) for key in named))

    def _received(self, each: Shared) -> int:
        return all_reduced(each.words, len(each.ranks) * self.owner.replicas)

    def finish(self) -> list[torch.Tensor | None]:
        """The sums; zeros where parts wait for a later pass, None for none."""
        request, self.request = self.request, None
        if request is None:
            fresh, pairs = self.waiting.fresh, zip(self.trained, self.like, strict=True)
            return [torch.zeros_like(e) if k in fresh else None for k, e in pairs]
        request.wait()
        flat = request.flat
        if self.owner.replicas > 1:
            flat /= self.owner.replicas
        sizes = [self.shared[key].words for key in self.summed]
        parts = dict(zip(self.summed, torch.split(flat, sizes), strict=True))
        return [
            self._local(key, parts[key], like) if key in parts else None
            for key, like in zip(self.trained, self.like, strict=True)
        ]

    def _local(self, key: str, sums: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """The gradient of a local parameter from its sums in the bucket."""
        spread = self.shared[key].spread
        own = sums if spread is None else spread.unpacked(sums).contiguous()
        own = own.view(like.shape)
        return own if own.dtype == like.dtype else own.to(like.dtype)


class StartSums(torch.autograd.Function):
    """The parameters of a bucket as layers use them."""

    @staticmethod
    def forward(ctx: Any, sums: Sums, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The same values."""
        ctx.sums = sums
        ctx.set_materialize_grads(False)
        return given  # of which autograd makes views

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *parts: torch.Tensor | None) -> Gradients:
        """Start the sums; placeholders stand for them until `FinishSums`."""
        ctx.sums.start(parts, ctx.next_functions[0][0].next_functions)
        given = next((part for part in parts if part is not None), None)
        if given is None:
            return None, *parts
        zero = torch.zeros((), dtype=given.dtype, device=given.device)
        return None, *(
            None if part is None else zero.expand(part.shape) for part in parts
        )


class FinishSums(torch.autograd.Function):
    """The parameters of a bucket at the start of the forward pass."""

    @staticmethod
    def forward(ctx: Any, sums: Sums, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The local parameters."""
        ctx.sums = sums
        ctx.set_materialize_grads(False)
        sums.like = list(map(sums.owner.border.local, given))
        return tuple(each.detach() for each in sums.like)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *parts: torch.Tensor | None) -> Gradients:
        """The sums, waited for here."""
        sums, given = ctx.sums.finish(), ctx.sums.trained.values()
        gradient = ctx.sums.owner.border.gradient
        return None, *(
            None if each is None else gradient(own, each)
            for own, each in zip(given, sums, strict=True)
        )


def _used_here_alone(flat: torch.Tensor) -> bool:
    """Whether no other tensor shares the memory of one; False where torch cannot say.

    The tensor and its storage object have a reference each.
    """
    count = getattr(torch._C, "_storage_Use_Count", None)
    return count is not None and count(flat.untyped_storage()._cdata) <= 2


def _open(bucket: Bucket, tensors: LocalTensors, rounds: dict[int, Sums]) -> None:
    sums = rounds.get(id(bucket))
    if sums is not None and not sums.opened:
        sums.opened = True
        sums.through(StartSums, tensors)


def _packed(
    shared: Sequence[Shared], process_groups: ProcessGroups, size: int
) -> list[Bucket]:
    """Buckets in the order in which they become complete.

    A parameter that fills a bucket has one of its own. Smaller ones before and behind
    it share another.
    """
    replicated = process_groups.ranks.replica_count > 1
    open_: dict[tuple[Any, ...], Bucket] = {}
    buckets = []
    for each in shared:
        key = each.ranks, each.dtype
        bucket, more = open_.get(key), each.words * each.dtype.itemsize
        alone = more >= size
        if bucket is None or alone or bucket.bytes + more > size:
            group = process_groups.of(
                each.ranks, purpose="gradients", all_replicas=replicated
            )
            bucket = Bucket(group)
            buckets.append(bucket)
            if not alone:
                open_[key] = bucket
        bucket.shared.append(each)
        bucket.bytes += more
    places = {each.key: place for place, each in enumerate(shared)}
    return sorted(buckets, key=lambda b: places[b.shared[-1].key])
