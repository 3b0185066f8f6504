"""What the four ranks of the tests of shared slots do: functions that run on all of them."""

from __future__ import annotations

import gc
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist

from benchmarks.suite import sockets
from benchmarks.suite.sockets import traffic
from synth.runtime.comm import collectives, host_links, process_groups
from synth.runtime.comm.buffer_pool import BufferPool
from synth.runtime.comm.collectives import all_gather, reduce_scatter, wait_gather, wait_reduce
from synth.runtime.comm.host_links import share_memory
from synth.runtime.comm.host_memory import SLOTS, Channel, HostMemory, host_memory, memories
from synth.runtime.comm.messages import (
    all_reduce,
    all_to_all,
    exchange,
    send_to_all,
    start_messages,
    wait_for,
)
from synth.runtime.comm.process_groups import Group
from synth.runtime.grid.boxes import cut
from synth.runtime.grid.ranks import Ranks, use_of
from synth.runtime.grid.transport import broadcast

CALLS = (
    *("all_to_all_single", "isend", "irecv", "all_gather_single", "all_gather_into_tensor"),
    *("broadcast", "all_reduce"),
)


def unmet(ranks: int) -> Any:
    """A new group of the first ranks, none of which share memory."""
    host_links._met.clear()
    return dist.new_group(list(range(ranks)))


def new_group(ranks: int = 2) -> tuple[Any, HostMemory]:
    """The same, and the memory that they share then; nothing for others."""
    group = unmet(ranks)
    if dist.get_rank() >= ranks:
        return group, HostMemory({}, False)
    share_memory(group)
    return group, host_memory(group)


def outside(group: Any) -> bool:
    """Whether this rank is no member."""
    return group is dist.GroupMember.NON_GROUP_MEMBER


def pair() -> tuple[Any, Channel | None]:
    """A new group of two ranks, and the channel of a member to the other."""
    group, memory = new_group()
    return group, next(iter(memory.channels.values()), None)


def noted(patched: pytest.MonkeyPatch) -> list[str]:
    """The names of torch's calls by which words travel, from now on."""
    calls = list[str]()

    def noting(name: str, call: Any) -> Any:
        def run(*args: Any, **options: Any) -> Any:
            calls.append(name)
            return call(*args, **options)

        return run

    for name in CALLS:
        if hasattr(dist, name):
            patched.setattr(dist, name, noting(name, getattr(dist, name)))
    return calls


def values(sender: int, receiver: int, number: int, words: int, dtype: str) -> torch.Tensor:
    """What a rank sends to another."""
    kind, seed = getattr(torch, dtype), 1000 * number + 10 * sender + receiver
    found = torch.randn(words, generator=torch.Generator().manual_seed(seed))
    if kind.is_complex:
        return torch.complex(found, -found).to(kind)
    return (5 * found).to(kind)


def exchanged(
    ranks: int, rounds: list[list[list[int]]], dtype: str, order: list[int]
) -> tuple[bool, list[str], int] | None:
    """Whether all words came, the calls of torch, and the slots that are full at the end.

    rounds: for each exchange, sender and receiver the words of a message. order: in which ranks wait for
    the exchanges, once all have started.
    """
    group, memory = new_group(ranks)
    if outside(group):
        return None
    me, started, rooms = dist.get_rank(), [], []
    with pytest.MonkeyPatch.context() as patched:
        calls = noted(patched)
        for number, words in enumerate(rounds):
            sends = [(at, values(me, at, number, n, dtype)) for at, n in enumerate(words[me]) if at != me]
            room = {at: torch.empty(words[at][me], dtype=getattr(torch, dtype)) for at in memory.channels}
            started.append(start_messages(list(room.items()), sends, group))
            rooms.append(room)
        for number in order:
            wait_for(started[number])
    right = all(
        torch.equal(room, values(at, me, number, rounds[number][at][me], dtype))
        for number, by_rank in enumerate(rooms)
        for at, room in by_rank.items()
    )
    return right, calls, left_full(memory, group)


def left_full(memory: HostMemory, group: Any) -> int:
    """Slots that are not free after all ranks have told what they read."""
    ranks = len(memory.channels) + 1
    for _ in range(2):
        all_to_all(torch.empty(ranks), torch.zeros(ranks), None, None, group).wait()
    # that of the last message is free, or its notice is on its way
    return sum(max(0, SLOTS - 1 - len(each.link.free)) for each in memory.channels.values())


def several_hosts(numbers: list[int]) -> tuple[list[int], bool, list[float], list[float], list[str]]:
    """Ranks of some hosts: (the places this one shares memory with, whether all do, words of messages and of
    an all-to-all, the calls of torch)."""
    me, ranks = dist.get_rank(), len(numbers)
    group = unmet(ranks)
    others = [at for at in range(ranks) if at != me]
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("GROUP_RANK", str(numbers[me]))
        share_memory(group)
        memory = host_memory(group)
        calls = noted(patched)
        rooms = {at: torch.empty(1) for at in others}
        wait_for(
            start_messages(list(rooms.items()), [(at, torch.tensor([10.0 * me])) for at in others], group)
        )
        rows = torch.empty(ranks)
        all_to_all(rows, torch.arange(ranks) + 10.0 * me, None, None, group).wait()
    return (
        sorted(memory.channels),
        memory.whole,
        [float(each) for each in rooms.values()],
        rows.tolist(),
        calls,
    )


def crowded(cores: int) -> list[bool]:
    """Whether a rank asks before it sleeps, by link, where each host has so many cores."""
    group = unmet(4)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(host_links, "usable_cores", lambda: cores)
        share_memory(group)
    return [each.link.spin > 0 for each in host_memory(group).channels.values()]


def large_group() -> tuple[bool, list[str]]:
    """A group of more ranks than share memory: whether it does, and the calls of an all-to-all."""
    group = unmet(3)
    if outside(group):
        return False, ["all_to_all_single"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(host_links, "DIRECT", 2)
        share_memory(group)
        calls = noted(patched)
        all_to_all(torch.empty(3), torch.zeros(3), None, None, group).wait()
    return bool(host_memory(group).channels), calls


def with_own_words(ranks: int, words: int, even: bool) -> list[float] | None:
    """What an all-to-all gives in which a rank also keeps a piece."""
    group, _ = new_group(ranks)
    if outside(group):
        return None
    leaving = torch.arange(ranks * words) + 100.0 * dist.get_rank()
    arriving = torch.empty(ranks * words)
    sizes = None if even else [words] * ranks
    all_to_all(arriving, leaving, sizes, sizes, group).wait()
    return arriving.tolist()


def panels(ranks: int, words: int, large: int) -> tuple[list[float], list[float], list[str]] | None:
    """(a gathered panel, the sums of this rank's part, the calls of torch). large: bytes of a large piece."""
    handle, _ = new_group(ranks)
    if outside(handle):
        return None
    me, whole = dist.get_rank(), (0, words)
    panel, parts = (whole,), [(cut(whole, ranks, at),) for at in range(ranks)]
    group = Group(handle, [{"k": at} for at in range(ranks)], me, BufferPool())
    own = torch.arange(*parts[me][0]).float()
    with pytest.MonkeyPatch.context() as patched:
        calls = noted(patched)
        patched.setattr(collectives, "LARGE", large)
        gathered = wait_gather(all_gather(panel, parts, own, group))
        sums = wait_reduce(reduce_scatter(gathered * (me + 1), panel, parts, group))
    return gathered.tolist(), sums.tolist(), calls


def from_one(ranks: int, source: int, words: int) -> tuple[list[float], list[str]] | None:
    """What all have of one rank, and the calls of torch."""
    group, _ = new_group(ranks)
    if outside(group):
        return None
    own = torch.arange(words) + 100.0 * dist.get_rank()
    with pytest.MonkeyPatch.context() as patched:
        calls = noted(patched)
        send_to_all(own, source, group).wait()
    return own.tolist(), calls


def counted(sizes: tuple[int, int]) -> tuple[int, int] | None:
    """Bytes that were sent and received in a swap of so many words of float32, by the benchmarks' count."""
    group, _ = pair()
    if outside(group):
        return None
    me = dist.get_rank()
    room, counts = torch.empty(sizes[1 - me]), ([0, 0], [0, 0])
    counts[0][1 - me], counts[1][1 - me] = sizes[1 - me], sizes[me]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sockets.os, "listdir", lambda _: [])  # what gloo still has under way does not count
        before = traffic()
        all_to_all(room, torch.zeros(sizes[me]), *counts, group).wait()
        return tuple(traffic().since(before))


def forgotten(rounds: int) -> tuple[int, bool]:
    """Messages that nobody waits for: (full slots, whether the last one is right)."""
    group, memory = new_group()
    if outside(group):
        return 0, True
    me = dist.get_rank()
    other = [me, 1 - me]
    for number in range(rounds):
        room = torch.empty(1)
        dropped = all_to_all(room, values(me, 1 - me, number, 1, "float32"), other, other, group)
        del dropped, room
        gc.collect()
    room = torch.empty(1)
    all_to_all(room, values(me, 1 - me, rounds, 1, "float32"), other, other, group).wait()
    right = torch.equal(room, values(1 - me, me, rounds, 1, "float32"))
    return left_full(memory, group), right


def sums(ranks: int, words: int, dtype: str) -> tuple[list[Any], list[Any], list[str]] | None:
    """The sums of a group, those of torch, and the calls of torch for the first."""
    group, _ = new_group(ranks)
    if outside(group):
        return None
    own = values(dist.get_rank(), 0, 3, words, dtype)
    theirs = own.clone()
    with pytest.MonkeyPatch.context() as patched:
        calls = noted(patched)
        all_reduce(own, group).wait()
    dist.all_reduce(theirs, group=group)
    return own.tolist(), theirs.tolist(), calls


def greatest() -> tuple[float, list[str]] | None:
    """Other operations than sums are torch's."""
    group, _ = pair()
    if outside(group):
        return None
    own = torch.tensor([float(dist.get_rank())])
    with pytest.MonkeyPatch.context() as patched:
        calls = noted(patched)
        all_reduce(own, group, dist.ReduceOp.MAX).wait()
    return float(own), calls


def said(call: Callable[[], Any]) -> str:
    """The error of a call; "" for none."""
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return ""


def other_sizes() -> str:
    """What is said if one rank sends more words than the other expects."""
    group, channel = pair()
    told = ""
    if channel is not None:
        request = channel.receive(torch.empty(3))
        channel.send(torch.zeros(3 + dist.get_rank())).wait()
        told = said(request.wait)
        dist.barrier(group)
    return told


def late(seconds: float, sends: bool) -> str:
    """What is said to a rank that waits so long for one that sends nothing, or reads nothing."""
    group, channel = pair()
    told = ""
    if channel is not None:
        if dist.get_rank() == 0:
            impatient = channel._replace(timeout=seconds)
            sent = [impatient.send(torch.zeros(1)) for _ in range(SLOTS + 1 if sends else 0)]
            told = said((sent[-1] if sends else impatient.receive(torch.empty(2))).wait)
        dist.barrier(group)
    return told


def patient(seconds: float) -> float | None:
    """What comes, after a moment, for the first rank, which would wait so long."""
    group, channel = pair()
    if channel is None:
        return None
    room = torch.zeros(1)
    if dist.get_rank() == 0:
        channel._replace(timeout=seconds).receive(room).wait()
    else:
        time.sleep(0.1)
        channel.send(room + 1).wait()
    dist.barrier(group)
    return float(room)


@contextmanager
def ended_by_pipes() -> Iterator[None]:
    """While SIGPIPE ends a process, as outside of Python."""
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGPIPE, before)


def outlived() -> bool:
    """Whether each send of a link fails without a signal, once the other end is closed."""
    with ended_by_pipes(), socket.socket(socket.AF_UNIX) as listener, pytest.MonkeyPatch.context() as patched:
        mine, theirs = socket.socketpair()
        theirs.close()
        given = host_links._given(mine)
        listener.bind("")  # Linux chooses a name
        listener.listen()
        patched.setattr(host_links, "_is_own", lambda _: listener.close() is None)
        joined = host_links._joined(listener.getsockname(), bytes(host_links.GREETING.size))
    return given is None and joined is None


def swapped(group: Any, number: int, words: int) -> bool:
    """Whether two ranks got each other's words."""
    other = 1 - dist.get_rank()
    room, kind = torch.empty(words), "float32"
    sends = [(other, values(1 - other, other, number, words, kind))]
    wait_for(start_messages([(other, room)], sends, group))
    return torch.equal(room, values(other, 1 - other, number, words, kind))


def in_threads(threads: int, sizes: list[int]) -> tuple[bool, int] | None:
    """Threads with a group each, which two ranks share: (whether all words came, the slots that are full)."""
    first, memory = new_group()
    groups = [first, *(dist.new_group([0, 1]) for _ in range(threads - 1))]
    if outside(first):
        return None
    for each in groups:
        share_memory(each)

    def run(group: Any) -> bool:
        right = [swapped(group, number, words) for number, words in enumerate(sizes)]
        return all(right)

    with ThreadPoolExecutor(threads) as pool:
        right = list(pool.map(run, groups))
    return all(right), left_full(memory, first)


def beside(timeout: float) -> list[float] | None:
    """What the first rank gets in a thread that waits for the second, which sends when the first and the
    third have met and sent each other words meanwhile."""
    group, channel = pair()
    second, me = dist.new_group([0, 2]), dist.get_rank()
    if me == 3:
        return None
    room, other = torch.zeros(1), torch.zeros(1)
    with ThreadPoolExecutor(1) as pool:
        if me == 0 and channel is not None:
            received = pool.submit(channel._replace(timeout=timeout).receive(room).wait)
            time.sleep(0.1)
        if me != 1:
            share_memory(second)
            to = 1 if me == 0 else 0
            wait_for(start_messages([(to, other)], [(to, torch.full((1,), me + 5.0))], second))
        if channel is not None:
            dist.barrier(group)
        if me == 1 and channel is not None:
            channel.send(room + 3).wait()
        if me == 0:
            received.result()
    return [float(room), float(other)]


def forked(rounds: int) -> tuple[list[str], bool] | None:
    """What is said in forked children of two ranks, which go on meanwhile; whether all words come there."""
    group, channel = pair()
    if channel is None:
        return None
    other = 1 - dist.get_rank()
    room = torch.empty(1)
    under_way = channel.receive(room), channel.send(torch.full((1,), float(other)))
    calls: list[Callable[[], Any]] = [
        under_way[0].wait,
        lambda: swapped(group, 0, 3),
        lambda: swapped(None, 0, 3),
        lambda: all_reduce(torch.ones(1), group),
        lambda: host_links.told(1, group),
        lambda: use_of([0, 1]),
    ]
    out, into = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(15)
        os.write(into, "\n".join(said(call) for call in calls).encode())
        os._exit(0)
    os.close(into)
    right = [swapped(group, number, 1 + number) for number in range(rounds)]
    wait_for(list(under_way))
    with os.fdopen(out) as told:
        lines = told.read().split("\n")
    os.waitpid(child, 0)
    return lines, all(right) and float(room) == dist.get_rank()


def gone_before_its_child() -> str:
    """What is said to a rank whose peer ends, but not a child of that."""
    group, channel = pair()
    if channel is None:
        return ""
    told, child = "", 0
    if dist.get_rank() == 1:
        child = os.fork()
        if not child:
            time.sleep(20)
            os._exit(0)
        channel.link.socket.close()
    else:
        told = said(channel._replace(timeout=5.0).receive(torch.empty(1)).wait)
    dist.barrier(group)
    if child:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return told


def gone(before: bool) -> str:
    """What is said to a rank whose peer ends before it sends, or after it waits."""
    group, channel = pair()
    if channel is None:
        return ""

    def swap() -> None:
        room = torch.empty(2)
        wait_for([channel.receive(room), channel.send(torch.zeros(2))])

    if dist.get_rank() == 1:
        if not before:
            swap()
        channel.link.socket.close()
        dist.barrier(group)
        return ""
    if before:
        dist.barrier(group)
    with ended_by_pipes():
        told = said(swap) or said(swap)
    if not before:
        dist.barrier(group)
    return told


def last_words() -> float:
    """What comes from a rank that ends once it has sent it."""
    group, channel = pair()
    if channel is None:
        return 3.0
    room = torch.zeros(1)
    if dist.get_rank() == 1:
        channel.send(torch.tensor([3.0])).wait()
        channel.link.socket.close()
        room += 3
    dist.barrier(group)
    if dist.get_rank() == 0:
        channel.send(room)  # which nobody reads
        channel.receive(room).wait()
    return float(room)


def stranger(kind: str) -> bool:
    """Whether a pair meets although another process is first at the socket of rank 0."""
    group = unmet(2)
    if outside(group):
        return True
    with pytest.MonkeyPatch.context() as patched:
        if dist.get_rank() == 0:
            real = host_links._listening
            told = {"guess": os.urandom(host_links.GREETING.size), "short": b"?", "none": b""}

            def visited() -> socket.socket | None:
                found = real()
                assert found is not None
                visitor = socket.socket(socket.AF_UNIX)
                visitor.connect(found.getsockname())
                visitor.sendall(told[kind])
                visitor.shutdown(socket.SHUT_WR)
                kept.append(visitor)
                return found

            kept: list[socket.socket] = []
            patched.setattr(host_links, "_listening", visited)
        share_memory(group)
    (channel,) = host_memory(group).channels.values()
    room = torch.empty(1)
    wait_for([channel.receive(room), channel.send(torch.tensor([float(dist.get_rank())]))])
    return float(room) == 1 - dist.get_rank()


def unable(name: str, rank: int) -> tuple[list[int], list[float]]:
    """With whom each of three shares memory where one cannot, and what an all-to-all gives then."""
    group = unmet(3)
    if outside(group):
        return [], []
    with pytest.MonkeyPatch.context() as patched:
        place: Any = {"memfd_create": host_links.os, "socket": host_links.socket}.get(name)
        patched.setattr(host_links, "SETUP", 2.0 if place is None else 60.0)
        if dist.get_rank() == rank and place is not None:
            patched.setattr(place, name, full)
        elif dist.get_rank() == rank:
            nothing: Any = {} if name == "_accepted" else None
            patched.setattr(host_links, name, lambda *_: nothing)
        share_memory(group)
    room = torch.empty(3)
    all_to_all(room, torch.arange(3.0) + 10 * dist.get_rank(), None, None, group).wait()
    return sorted(host_memory(group).channels), room.tolist()


def full(*_: object) -> int:
    """There is no memory."""
    raise OSError("no memory")


def handles() -> tuple[int, int]:
    """How many more files are open with three links, and once they have gone."""
    group = unmet(4)
    dist.barrier(group)  # gloo has its own then

    def more() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd")) - before

    before = len(os.listdir("/proc/self/fd"))
    share_memory(group)
    all_to_all(torch.empty(4), torch.zeros(4), None, None, group).wait()
    opened = more()
    dist.barrier(group)
    del memories[group]
    host_links._met.clear()
    return opened, more()


def interleaved(rounds: int) -> tuple[bool, list[str], int] | None:
    """Whether the words of three groups of the same ranks come, which two ranks send in other orders.

    Only the first group asks who shares memory: (.., the calls of torch for the others, slots that are full).
    """
    first, memory = new_group()
    groups = [first, *(dist.new_group([0, 1]) for _ in range(2))]
    if outside(first):
        return None
    me = dist.get_rank()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(host_links, "told", lambda *_: pytest.fail("the ranks have met"))
        for group in groups:
            share_memory(group)
        calls, right = noted(patched), True
        order = [0, 1, 2] if me else [2, 0, 1]
        requests: dict[int, list[Any]] = {at: [] for at in order}
        rooms: dict[int, list[torch.Tensor]] = {at: [] for at in order}
        for at in order:  # one rank sends all of one group before it wants any of another
            for number in range(rounds):
                rooms[at].append(torch.empty(5))
                own = values(me, 1 - me, 100 * at + number, 5, "float32")
                requests[at] += start_messages([(1 - me, rooms[at][-1])], [(1 - me, own)], groups[at])
            wait_for(requests[at]) if me else None
        for at in reversed(order):
            wait_for(requests[at])
    right = all(
        torch.equal(room, values(1 - me, me, 100 * at + number, 5, "float32"))
        for at, found in rooms.items()
        for number, room in enumerate(found)
    )
    return right, calls, left_full(memory, first)


def later_pairs() -> tuple[list[int], bool]:
    """With whom ranks share memory in a group of four if two pairs of them have met before."""
    host_links._met.clear()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    share_memory(pairs[dist.get_rank() // 2])
    group = dist.new_group([0, 1, 2, 3])
    share_memory(group)
    memory, me = host_memory(group), dist.get_rank()
    rows = torch.empty(4)
    all_to_all(rows, torch.arange(4) + 10.0 * me, None, None, group).wait()
    assert rows.tolist() == [me + 10.0 * at for at in range(4)]
    return sorted(memory.channels), memory.whole


def many_ranks(numbers: list[int], most: int) -> tuple[list[int], bool, list[float], list[str], list[str]]:
    """A network on ranks of several hosts, of which at most some tell each other directly.

    (The places that this rank shares memory with, whether all do, words of messages, torch's calls for them,
    the keys that are left.)
    """
    host_links._met.clear()
    me, everyone = dist.get_rank(), dist.new_group([0, 1, 2, 3])
    others = [at for at in range(4) if at != me]
    store: Any = dist.distributed_c10d._get_default_store()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("GROUP_RANK", str(numbers[me]))
        for module in (host_links, process_groups):
            patched.setattr(module, "DIRECT", most)
        groups = process_groups.ProcessGroups(Ranks((0, 1, 2, 3), me, everyone))
        groups.meet()
        groups.meet()  # does nothing
        memory, calls = host_memory(everyone), noted(patched)
        rooms, own = {at: torch.empty(1) for at in others}, torch.tensor([10.0 * me])
        wait_for(start_messages(list(rooms.items()), [(at, own) for at in others], everyone))
        dist.barrier()
    left = [key for key in store.list_keys() if "/host " in key]
    return sorted(memory.channels), memory.whole, [float(each) for each in rooms.values()], calls, left


def orders(shared: bool) -> dict[str, list[Any]] | None:
    """What comes of tensors that lie in another order in the memory of the first of two ranks."""
    group, _ = new_group() if shared else (unmet(2), None)
    if outside(group):
        return None
    me, found = dist.get_rank(), dict[str, list[Any]]()

    def own() -> torch.Tensor:
        return torch.arange(6.0).view(2, 3).t() if me == 0 else torch.full((3, 2), 10.0)

    for op in ("SUM", "MAX"):
        values = own()
        all_reduce(values, group, getattr(dist.ReduceOp, op)).wait()
        found[op] = values.tolist()
    values = own()
    send_to_all(values, 0, group).wait()
    found["send"] = values.tolist()
    values = own()
    broadcast(values, 0, group)
    found["broadcast"] = values.tolist()
    panel, parts = ((0, 3), (0, 2)), [((0, 3), (0, 2)), ((0, 0), (0, 2))]
    place = Group(group, [{"k": 0}, {"k": 1}], me, BufferPool())
    part = own() if me == 0 else torch.empty(0, 2)
    found["gather"] = wait_gather(all_gather(panel, parts, part, place)).tolist()
    if me == 0:
        exchange(own(), [(1, own())], [], group).arrived()
    else:
        (came,) = exchange(own(), [], [(0, (3, 2))], group).arrived()
        found["message"] = came.tolist()
    return found
