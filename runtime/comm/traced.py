"""Exchanges in code that a compiler traces: one operator each, all in one chain.

While a pass is traced, what the ranks exchange is not sent. Each call of a collective,
and each start of messages, becomes an operator `synth::exchange`, which sends and waits
when the compiled code runs. It takes what the one before gave, `after`: so no compiler
drops an exchange of no words, merges equal ones, or sorts them otherwise than another
rank's compiler does.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import fx

from synth.runtime.comm import collectives, messages
from synth.runtime.grid.spans import waiting

Tensors = Sequence[torch.Tensor]
Call = Callable[[Tensors, Tensors], Any]
Parts = Mapping[int, tuple[int, str]]  # rank -> words and dtype
Pieces = Sequence[tuple[int, torch.Tensor]]
ROWS = (
    *("all_gather_into_tensor", "all_gather_single"),
    *("reduce_scatter_tensor", "reduce_scatter_single"),
)
UNKNOWN = {
    *("isend", "irecv", "send", "recv", "batch_isend_irecv", "all_gather", "gather"),
    *("all_gather_object", "broadcast_object_list", "gather_object", "all_to_all"),
    *("scatter", "scatter_object_list", "reduce_scatter", "reduce", "barrier"),
}


class Exchange(NamedTuple):
    """What one rank does in one exchange.

    kind: of collective, or "messages". group: its name. ranks: of the group, as the
    job numbers them. sent, received: what goes to, and comes from, other ranks.
    """

    kind: str
    group: str
    ranks: tuple[int, ...]
    sent: Parts
    received: Parts


class Layout(NamedTuple):
    """An exchange as an operator makes it. rooms: extents and dtypes of what arrives.

    call: sends what leaves and receives into rooms; gives what to wait for.
    """

    exchange: Exchange
    rooms: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    call: Call


LAYOUTS: dict[str, Layout] = {}  # by digest: compiled code that is kept names them
LOG: list[list[str]] = []  # each gets the digests of exchanges that operators make


@dataclass
class Trace:
    """One pass that is traced. after: what the last exchange gave.

    exchanges, names: in order, those of the forward pass first, and their digests.
    """

    after: torch.Tensor
    exchanges: list[Exchange] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def exchange(
        self,
        exchange: Exchange,
        call: Call,
        rooms: Tensors,
        leaving: Tensors,
    ) -> list[Any]:
        """Write what arrives into the rooms. Nothing is left to wait for."""
        sizes = tuple((tuple(each.shape), each.dtype) for each in rooms)
        name = hashlib.sha256(repr((exchange, sizes)).encode()).hexdigest()[:16]
        LAYOUTS[name] = Layout(exchange, sizes, call)
        self.exchanges.append(exchange)
        self.names.append(name)
        with torch.no_grad():
            operator: Any = torch.ops.synth.exchange
            *arrived, self.after = operator(list(leaving), self.after, name)
            for room, piece in zip(rooms, arrived, strict=True):
                room.copy_(piece)
        return []


class Done:
    """What is waited for where nothing is on its way."""

    def wait(self) -> None:
        """Nothing."""


def first_apart(exchanges: Mapping[int, Sequence[Exchange]]) -> str:
    """Where the exchanges of some ranks, each in its order, do not meet; "" if they do.

    exchanges: by rank, as the job numbers them.
    """
    left = {rank: list(reversed(each)) for rank, each in exchanges.items()}
    while any(left.values()):
        now = {rank: each[-1] for rank, each in left.items() if each}
        ready = dict(now)
        while apart := [r for r, each in ready.items() if not _meets(r, each, ready)]:
            for rank in apart:
                del ready[rank]
        if not ready:
            rank, each = min(now.items())
            done = len(exchanges[rank]) - len(left[rank])
            return f"exchange {done} of rank {rank}, {each.kind} of ranks {each.ranks}"
        for rank in ready:
            left[rank].pop()
    return ""


def _meets(rank: int, mine: Exchange, others: Mapping[int, Exchange]) -> bool:
    for peer in {*mine.sent, *mine.received}:
        theirs = others.get(peer)
        if theirs is None or (theirs.kind, theirs.ranks) != (mine.kind, mine.ranks):
            return False
        if mine.sent.get(peer) != theirs.received.get(rank):
            return False
        if mine.received.get(peer) != theirs.sent.get(rank):
            return False
    return True


# -- what stands for the calls of torch.distributed ------------------------------------


def _group(group: Any) -> tuple[str, tuple[int, ...]]:
    """The name of a group, and its ranks as the job numbers them."""
    known: Any = dist.group.WORLD if group is None else group
    return str(known.group_name), tuple(dist.get_process_group_ranks(known))


def _named(name: str) -> Any:
    """The group of a name. Compiled code keeps no group alive."""
    torch_own: Any = dist.distributed_c10d
    return torch_own._resolve_process_group(name)


def _parts(ranks: Sequence[int], words: Sequence[int], like: torch.Tensor) -> Parts:
    me, dtype = dist.get_rank(), str(like.dtype)
    pairs = zip(ranks, words, strict=True)
    return {rank: (each, dtype) for rank, each in pairs if rank != me}


def _start_messages(trace: Trace, receives: Pieces, sends: Pieces, group: Any) -> Any:
    if not receives and not sends:
        return []
    name, ranks = _group(group)
    sources, targets = [to for to, _ in receives], [to for to, _ in sends]

    def call(rooms: Tensors, leaving: Tensors) -> Any:
        receives = list(zip(sources, rooms, strict=True))
        sends = list(zip(targets, leaving, strict=True))
        return messages.start_messages(receives, sends, _named(name))

    sent, received = (
        {ranks[to]: (each.numel(), str(each.dtype)) for to, each in pieces}
        for pieces in (sends, receives)
    )
    exchange = Exchange("messages", name, ranks, sent, received)
    ends = [each for _, each in receives], [each for _, each in sends]
    return trace.exchange(exchange, call, *ends)


def _all_to_all_single(
    trace: Trace,
    output: torch.Tensor,
    input: torch.Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Any = None,
    async_op: bool = False,
) -> Done:
    name, ranks = _group(group)
    sizes = output_split_sizes, input_split_sizes

    def parts(flat: torch.Tensor, given: Sequence[int] | None) -> Parts:
        row = flat.numel() // max(1, len(flat))
        rows = given or [len(flat) // len(ranks)] * len(ranks)
        return _parts(ranks, [row * each for each in rows], flat)

    def call(rooms: Tensors, leaving: Tensors) -> Any:
        return [messages.all_to_all(rooms[0], leaving[0], *sizes, _named(name))]

    sent, received = parts(input, sizes[1]), parts(output, sizes[0])
    exchange = Exchange("all-to-all", name, ranks, sent, received)
    trace.exchange(exchange, call, [output], [input])
    return Done()


def _of_rows(
    kind: str,
    trace: Trace,
    output: torch.Tensor,
    input: torch.Tensor,
    group: Any = None,
    async_op: bool = False,
) -> Done:
    """All-gather and reduce-scatter of rows of one size."""
    name, ranks = _group(group)
    words = [min(input.numel(), output.numel())] * len(ranks)

    def call(rooms: Tensors, leaving: Tensors) -> Any:
        ends: dict[str, Any] = {"group": _named(name), "async_op": True}
        return [getattr(dist, kind)(rooms[0], leaving[0], **ends)]

    sides = _parts(ranks, words, input), _parts(ranks, words, output)
    trace.exchange(Exchange(kind, name, ranks, *sides), call, [output], [input])
    return Done()


def _all_reduce(
    trace: Trace,
    tensor: torch.Tensor,
    op: Any = dist.ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> Done:
    name, ranks = _group(group)
    each = _parts(ranks, [tensor.numel()] * len(ranks), tensor)

    def call(rooms: Tensors, leaving: Tensors) -> Any:
        rooms[0].copy_(leaving[0])
        return [messages.all_reduce(rooms[0], _named(name), op)]

    exchange = Exchange(f"all-reduce {op}", name, ranks, each, each)
    trace.exchange(exchange, call, [tensor], [tensor])
    return Done()


def _broadcast(
    trace: Trace,
    tensor: torch.Tensor,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Done:
    name, ranks = _group(group)
    source = src if group_src is None else ranks[group_src]
    assert source is not None
    place = ranks.index(source)
    each, here = _parts(ranks, [tensor.numel()] * len(ranks), tensor), dist.get_rank()

    def call(rooms: Tensors, leaving: Tensors) -> Any:
        values = (*rooms, *leaving)[0]
        return [messages.send_to_all(values, place, _named(name))]

    sides = (each, {}) if here == source else ({}, {source: each[source]})
    ends = ([], [tensor]) if here == source else ([tensor], [])
    trace.exchange(Exchange("broadcast", name, ranks, *sides), call, *ends)
    return Done()


def _unknown(name: str, trace: Trace, *args: Any, **kwargs: Any) -> None:
    raise NotImplementedError(f"torch.distributed.{name} is no traceable exchange")


STAND_INS: dict[str, Callable[..., Any]] = {
    **{name: partial(_unknown, name) for name in UNKNOWN if hasattr(dist, name)},
    **{name: partial(_of_rows, name) for name in ROWS if hasattr(dist, name)},
    "all_to_all_single": _all_to_all_single,
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
}


class _Now(threading.local):
    """What this thread traces, and whether it may trace."""

    trace: Trace | None = None
    traceable = False


_NOW = _Now()


def enter(trace: Trace | None) -> None:
    """Trace the exchanges of this thread from now on; none for None.

    Outside of `traceable`, as in the backward pass of a compiler that runs Python, they
    are made as they are.
    """
    trace = trace if _NOW.traceable else None
    _NOW.trace = trace
    torch.compiler._is_compiling_flag = trace is not None


@contextmanager
def traceable() -> Iterator[None]:
    """What a thread exchanges in here can be traced, between calls of `enter`."""
    names = [(dist, name, stand_in) for name, stand_in in STAND_INS.items()]
    for module in (messages, collectives):
        names.append((module, "start_messages", _start_messages))
    before = [(module, name, getattr(module, name)) for module, name, _ in names]
    try:
        for (module, name, stand_in), (*_, own) in zip(names, before, strict=True):
            setattr(module, name, partial(_chosen, stand_in, own))
        _NOW.traceable = True
        yield
    finally:
        _NOW.traceable = False
        for module, name, own in before:
            setattr(module, name, own)
        enter(None)


def _chosen(
    stand_in: Callable[..., Any], own: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    trace = _NOW.trace
    return own(*args, **kwargs) if trace is None else stand_in(trace, *args, **kwargs)


# -- the operator ----------------------------------------------------------------------


def _exchange(
    leaving: Sequence[torch.Tensor], after: torch.Tensor, layout: str
) -> list[torch.Tensor]:
    found = LAYOUTS[layout]
    for log in LOG:
        log.append(layout)
    rooms = [after.new_empty(size, dtype=dtype) for size, dtype in found.rooms]
    trace = _NOW.trace  # of a backend that runs what it traces
    enter(None)
    try:
        requests = found.call(rooms, [each.contiguous() for each in leaving])
        with waiting("wait for messages"):
            for each in requests:
                each.wait()
    finally:
        enter(trace)
    return [*rooms, after + 1]


def _shapes(
    leaving: Sequence[torch.Tensor], after: torch.Tensor, layout: str
) -> list[torch.Tensor]:
    rooms = LAYOUTS[layout].rooms
    made = [after.new_empty(size, dtype=dtype) for size, dtype in rooms]
    return [*made, torch.empty_like(after)]


def register() -> None:
    """Make the operator, once in a process."""
    if hasattr(torch.ops.synth, "exchange"):
        return
    made: Any = torch.library.custom_op("synth::exchange", _exchange, mutates_args=())
    made.register_fake(_shapes)
    fx.node.has_side_effect(torch.ops.synth.exchange.default)
