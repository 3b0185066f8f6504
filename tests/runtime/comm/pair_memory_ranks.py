"""What the two ranks of the tests of shared slots do: functions that run on both."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from benchmarks.suite import sockets
from benchmarks.suite.sockets import traffic
from synth.runtime.comm import pair_memory as module
from synth.runtime.comm.messages import all_reduce, all_to_all, start_messages, wait_for
from synth.runtime.comm.pair_memory import PairMemory, pair_memory
from synth.runtime.grid import hosts


def new_pair() -> tuple[Any, PairMemory]:
    """A new group of both ranks, and its memory."""
    group = dist.new_group([0, 1])
    memory = pair_memory(group)
    assert memory is not None
    return group, memory


def sent(rank: int, number: int, words: int, dtype: torch.dtype) -> torch.Tensor:
    """What a rank sends in a swap."""
    values = torch.randn(words, generator=torch.Generator().manual_seed(17 * number + rank))
    if dtype.is_complex:
        return torch.complex(values, -values).to(dtype)
    return (5 * values).to(dtype)


def swaps(sizes: list[tuple[int, int]], dtype: str, order: list[int]) -> tuple[bool, int, int]:
    """Whether all pieces came, the swaps through memory, and the slots that are full at the end.

    sizes: words of rank 0 and of rank 1 in each swap. order: in which ranks wait for those started.
    """
    group, memory = new_pair()
    me, kind = dist.get_rank(), getattr(torch, dtype)
    started = []
    for number, words in enumerate(sizes):
        leaving = sent(me, number, words[me], kind)
        room = torch.empty(words[1 - me], dtype=kind)
        counts = [0, 0], [0, 0]
        counts[0][1 - me], counts[1][1 - me] = len(room), len(leaving)
        before = memory.started
        started.append((all_to_all(room, leaving, *counts, group), room))
        if memory.started > before:
            leaving.zero_()  # its memory is free
    for number in order:
        started[number][0].wait()
    right = all(
        torch.equal(room, sent(1 - me, number, sizes[number][1 - me], kind))
        for number, (_, room) in enumerate(started)
    )
    through = memory.started
    return right, through, left_full(memory, group)


def left_full(memory: PairMemory, group: Any) -> int:
    """Slots that are not free after both ranks have told what they read."""
    one, sizes = torch.zeros(1), [memory.me, 1 - memory.me]
    for _ in range(2):
        all_to_all(one, one.clone(), sizes, sizes, group).wait()
    return module.SLOTS - len(memory.free) - 1  # that of the last swap


def crowded(cores: int) -> tuple[bool, bool, float]:
    """Whether a pair swaps on so many cores, if it asks before it sleeps, and the last word that came."""
    group = dist.new_group([0, 1])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(hosts, "usable_cores", lambda: cores)
        dist.distributed_c10d._get_default_store().delete_key(f"synth/host/{dist.get_rank()}")
        dist.barrier(group)  # what a rank said with other cores is gone
        memory = pair_memory(group)
    assert memory is not None
    room, me = torch.empty(3), dist.get_rank()
    for number in range(20):
        wait_for(start_messages([(1 - me, room)], [(1 - me, torch.full((3,), 100.0 * me + number))], group))
    return memory.started == 20, memory.spin > 0, float(room[2])


def with_own_words(words: int, even: bool) -> list[float]:
    """What an all-to-all gives in which a rank also keeps a piece."""
    group, _ = new_pair()
    me = dist.get_rank()
    leaving = torch.arange(2 * words) + 100.0 * me
    arriving = torch.empty(2 * words)
    sizes = None if even else [words, words]
    all_to_all(arriving, leaving, sizes, sizes, group).wait()
    return arriving.tolist()


def counted(sizes: tuple[int, int]) -> tuple[int, int]:
    """Bytes that were sent and received in a swap of so many words of float32, by the benchmarks' count."""
    group, _ = new_pair()
    me = dist.get_rank()
    room, counts = torch.empty(sizes[1 - me]), ([0, 0], [0, 0])
    counts[0][1 - me], counts[1][1 - me] = sizes[1 - me], sizes[me]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sockets.os, "listdir", lambda _: [])  # what gloo still has under way does not count
        before = traffic()
        all_to_all(room, torch.zeros(sizes[me]), *counts, group).wait()
        return tuple(traffic().since(before))


def forgotten(rounds: int) -> tuple[int, int, bool]:
    """Swaps that nobody waits for take no memory: (open ones, full slots, whether the last one is right)."""
    group, memory = new_pair()
    me = dist.get_rank()
    other = [me, 1 - me]
    for number in range(rounds):
        room = torch.empty(1)
        dropped = all_to_all(room, sent(me, number, 1, torch.float32), other, other, group)
        del dropped
        gc.collect()
    room = torch.empty(1)
    all_to_all(room, sent(me, rounds, 1, torch.float32), other, other, group).wait()
    right = torch.equal(room, sent(1 - me, rounds, 1, torch.float32))
    return memory.open, left_full(memory, group), right


def sums(words: int, dtype: str) -> tuple[bool, int]:
    """Whether a sum has the bits of torch's own, and the swaps that it took."""
    group, memory = new_pair()
    own = sent(dist.get_rank(), 3, words, getattr(torch, dtype))
    theirs = own.clone()
    all_reduce(own, group).wait()
    dist.all_reduce(theirs, group=group)
    return torch.equal(own, theirs), memory.started


def greatest() -> tuple[float, int]:
    """Other operations than sums are torch's."""
    group, memory = new_pair()
    own = torch.tensor([float(dist.get_rank())])
    all_reduce(own, group, dist.ReduceOp.MAX).wait()
    return float(own), memory.started


def said(call: Callable[[], Any]) -> str:
    """The error of a call; "" for none."""
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return ""


def other_sizes() -> str:
    """What is said if one rank sends more words than the other expects."""
    group, memory = new_pair()
    me = dist.get_rank()
    leaving, room = torch.zeros(3 + me), torch.empty(3)
    told = said(memory.start(room, leaving).wait)
    dist.barrier(group)
    return told


def silent(seconds: float) -> str:
    """What is said to a rank to which the other sends nothing within a time."""
    group, memory = new_pair()
    told = ""
    if dist.get_rank() == 0:
        memory.timeout = seconds
        told = said(memory.start(torch.empty(2), torch.zeros(2)).wait)
    dist.barrier(group)
    return told


def gone(before: bool) -> str:
    """What is said to a rank whose peer ends before it sends, or after it waits."""
    group, memory = new_pair()

    def swap() -> None:
        memory.start(torch.empty(2), torch.zeros(2)).wait()

    if dist.get_rank() == 1:
        if not before:
            swap()
        memory.link.close()
        dist.barrier(group)
        return ""
    if before:
        dist.barrier(group)
    told = said(swap) or said(swap)
    if not before:
        dist.barrier(group)
    return told


def stranger(knows: bool) -> bool:
    """Whether a pair meets although another process is first at the socket of rank 0."""
    group = dist.new_group([0, 1])
    with pytest.MonkeyPatch.context() as patched:
        if dist.get_rank() == 0:
            real = module._listening

            def visited() -> socket.socket | None:
                found = real()
                assert found is not None
                visitor = socket.socket(socket.AF_UNIX)
                visitor.connect(found.getsockname())
                visitor.sendall(os.urandom(module.TOKEN) if knows else b"?")
                visitor.shutdown(socket.SHUT_WR)
                kept.append(visitor)
                return found

            kept: list[socket.socket] = []
            patched.setattr(module, "_listening", visited)
        found = pair_memory(group)
    assert found is not None
    room = torch.empty(1)
    found.start(room, torch.tensor([float(dist.get_rank())])).wait()
    return float(room) == 1 - dist.get_rank()


def unable(name: str, rank: int) -> tuple[bool, list[float]]:
    """Whether both do without where one cannot share memory, and what an all-to-all gives then."""
    group = dist.new_group([0, 1])
    with pytest.MonkeyPatch.context() as patched:
        if dist.get_rank() == rank:
            patched.setattr(module, name, lambda *_: None)
        none = pair_memory(group) is None
    room = torch.empty(2)
    all_to_all(room, torch.arange(2.0) + 10 * dist.get_rank(), None, None, group).wait()
    return none, room.tolist()


def handles() -> tuple[int, int]:
    """How many more files are open with a pair, and once it has gone."""
    group = dist.new_group([0, 1])
    dist.barrier(group)  # gloo has its own then

    def more() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd")) - before

    before = len(os.listdir("/proc/self/fd"))
    pair_memory(group)
    opened = more()
    module._memories.pop(group)
    return opened, more()
