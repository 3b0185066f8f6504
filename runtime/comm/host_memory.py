"""Words that ranks of one host send each other through memory that both map.

A word that a socket carries is copied into the system and out of it, and threads of
gloo wake for it on both sides. Here the sender copies it into a slot of shared memory,
and the receiver copies it out. What travels over a socket between the two are notices
that a slot is full, or free again. A rank that ends closes its socket, which the other
sees at once.

Two ranks share one memory, in which each group of both has a channel. The messages of a
channel arrive in the order in which they are sent, and both ranks know their sizes. A
message larger than a slot goes in several pieces. A piece that finds no free slot waits
in a queue of its sender. A rank that waits for anything takes in what came from any
other, so that slots become free while ranks wait for each other.

Threads of a process may train networks of different groups. One lock guards all links.
A thread that sleeps leaves it to the others. One thread at a time sleeps until notices
come and takes them in for all; the others wait for it.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import struct
import threading
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from synth.runtime.grid.forks import Fork, require_rank

SLOT = 2**21  # bytes of the largest piece
SLOTS = 4  # for each direction between two ranks
SPIN = 1e-4  # seconds for which a rank with a core asks for notices before it sleeps
SLEEP = 1.0  # seconds at a time: another thread may add a link, or end one, meanwhile
# whether a slot is full or free, the slot, bytes of the piece, the channel
NOTICE = struct.Struct("=?IQQ")

memories: weakref.WeakKeyDictionary[Any, HostMemory] = weakref.WeakKeyDictionary()


class SharedBytes:
    """Bytes that this process has sent and received through memory of its host."""

    sent = received = 0


class HostMemory(NamedTuple):
    """What this rank shares with other members of a group.

    channels: to them, by their places in the group. whole: whether all members share
    memory with all others.
    """

    channels: dict[int, Channel]
    whole: bool


NOTHING_SHARED = HostMemory({}, False)


def host_memory(group: Any) -> HostMemory:
    """What the ranks of a group share, once they have met (`share_memory`).

    group: torch's; None for the default one.

    Raises `RuntimeError` in a process that was forked from one of several ranks.
    """
    if Fork.why:
        require_rank(group)
    return memories.get(known_group(group), NOTHING_SHARED)


def have_met(group: Any) -> bool:
    """Whether the ranks of a group know what they share."""
    return known_group(group) in memories


def known_group(group: Any) -> Any:
    """torch's group itself; None is the default one."""
    return dist.group.WORLD if group is None else group


def pieces_of(values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The bytes of a contiguous tensor, cut into pieces that fit a slot."""
    plain, words = values.detach().resolve_conj().resolve_neg(), values.numel()
    if not words:
        return ()
    flat = plain.as_strided((words,), (1,))  # a dimension of one may have any stride
    whole = flat.view(torch.uint8)
    return (whole,) if words * plain.itemsize <= SLOT else torch.split(whole, SLOT)


class Arrivals:
    """The pieces that come over a channel.

    wanted: how many so far. came: to where they are wanted. rooms: for the others.
    early: those that nobody wants yet, in their slots or copied.
    """

    def __init__(self) -> None:
        self.wanted, self.came = 0, 0
        self.rooms = deque[torch.Tensor]()
        self.early = deque[int | torch.Tensor]()


class Link:
    """This rank's end of the memory that it shares with another.

    ends: a socket between the two. memory: the slots into which one of them writes,
    then those of the other. first: whether this rank writes into the first ones.
    other: the other rank of the job. spin: seconds until a wait leaves the core to
    others.
    """

    def __init__(
        self,
        ends: socket.socket,
        memory: mmap.mmap,
        first: bool,
        other: int,
        spin: float = SPIN,
    ) -> None:
        self.socket, self.other, self.spin = ends, other, spin
        self.memory = memory
        self.own, self.theirs = (0, SLOTS) if first else (SLOTS, 0)  # first slots
        self.free = list(range(SLOTS))[::-1]  # slots into which this rank may write
        self.queue = deque[tuple[int, torch.Tensor]]()  # pieces that wait for a slot
        self.asked, self.written = 0, 0  # pieces to send so far; those in a slot
        self.arrivals: dict[int, Arrivals] = defaultdict(Arrivals)  # by channel
        self.sizes = dict[int, int]()  # of pieces in slots that are not wanted yet
        self.read = list[bytes]()  # notices of free slots, which go with the next one
        self.rest = b""  # of a notice that has come in part
        self.ended = ""  # why nothing comes any more
        ends.setblocking(False)
        self.number, self.box = ends.fileno(), inbox()
        self.box.add(self)

    def send(self, channel: int, values: torch.Tensor) -> int:
        """Start to send a message; returns the number of its last piece."""
        with self.box.lock:
            for piece in pieces_of(values):
                self.asked += 1
                self.queue.append((channel, piece))
            self._write()
            return self.asked

    def receive(self, channel: int, room: torch.Tensor) -> int:
        """Start to receive a message; returns the number of its last piece."""
        with self.box.lock:
            here = self.arrivals[channel]
            for piece in pieces_of(room):
                here.wanted += 1
                if not here.early:
                    here.rooms.append(piece)
                    continue
                early = here.early.popleft()
                if isinstance(early, int):
                    here.came += self._read(early, self.sizes.pop(early), piece)
                else:
                    here.came += self._copied(early, piece)
            return here.wanted

    def take(self, came: bytes) -> None:
        """Take in notices; none if the other rank has ended."""
        if not came:
            self.end(f"Connection closed by peer, rank {self.other}")
        came = self.rest + came
        end = len(came) - len(came) % NOTICE.size
        self.rest = came[end:]
        for full, slot, size, channel in NOTICE.iter_unpack(came[:end]):
            if full:
                self._arrived(self.arrivals[channel], slot, size)
            else:
                self.free.append(slot)
        self._write()

    def end(self, why: str) -> None:
        """Nothing comes any more."""
        self.ended = self.ended or why
        self.box.remove(self)

    def leave(self) -> None:
        """Let go of both ends in a forked process: nothing is read or written."""
        self.ended = Fork.why
        self.socket.close()
        self.free, self.arrivals = [], defaultdict(Arrivals)
        for each in (self.queue, self.sizes, self.read):
            each.clear()

    def tell(self, notice: bytes = b"") -> None:
        """Send a notice, after those of slots that are free again."""
        notices = b"".join((*self.read, notice))
        self.read.clear()
        if not notices:
            return
        try:
            self.socket.send(notices, socket.MSG_NOSIGNAL)
        except OSError:  # it has ended: what it sent before may still be here
            self.queue.clear()

    def _write(self) -> None:
        """Copy pieces into free slots, and tell the other rank."""
        while self.queue and self.free:
            (channel, piece), slot = self.queue.popleft(), self.free.pop()
            size = len(piece)
            self._bytes(self.own + slot, size).copy_(piece)
            SharedBytes.sent += size
            self.written += 1
            self.tell(NOTICE.pack(True, slot, size, channel))

    def _bytes(self, slot: int, size: int) -> torch.Tensor:
        """The first bytes of a slot of both ranks."""
        kind, place = torch.uint8, SLOT * slot
        return torch.frombuffer(self.memory, dtype=kind, count=size, offset=place)

    def _arrived(self, here: Arrivals, slot: int, size: int) -> None:
        """A slot is full. Others become free although nobody wants their words yet."""
        if here.rooms:
            here.came += self._read(slot, size, here.rooms.popleft())
        elif len(self.sizes) < SLOTS // 2:
            self.sizes[slot] = size
            here.early.append(slot)
        else:
            kept = torch.empty(size, dtype=torch.uint8)
            self._read(slot, size, kept)
            here.early.append(kept)

    def _read(self, slot: int, size: int, room: torch.Tensor) -> bool:
        """Copy a piece out of its slot; whether it is of the expected size."""
        fits = self._copied(self._bytes(self.theirs + slot, size), room)
        if not self.read:
            self.box.untold.append(self.number)
        self.read.append(NOTICE.pack(False, slot, 0, 0))
        SharedBytes.received += size
        return fits

    def _copied(self, piece: torch.Tensor, room: torch.Tensor) -> bool:
        """Copy a piece; whether it is of the expected size. Else the link ends."""
        if len(piece) != len(room):
            self.end(
                f"rank {self.other} sent {len(piece)} bytes where {len(room)} are"
                " expected; all ranks must call the same in the same order"
            )
            return False
        room.copy_(piece)
        return True


class Channel(NamedTuple):
    """The messages of a group between this rank and another.

    number: the same on both ranks. timeout: seconds until a rank gives up a wait.
    """

    link: Link
    number: int
    timeout: float

    def send(self, values: torch.Tensor) -> Sent:
        """Start to send a tensor, which must not change until it left."""
        return Sent(self, self.link.send(self.number, values.contiguous()))

    def receive(self, room: torch.Tensor) -> Received:
        """Start to receive a contiguous tensor."""
        return Received(self, self.link.receive(self.number, room))

    def wait(self, there: Callable[[], bool], what: str) -> None:
        """Wait for something that the other rank has not done yet.

        Raises `RuntimeError` if it ends, or does not do it in time.
        """
        link, box, begin = self.link, self.link.box, time.monotonic()
        with box.lock:
            while not there():
                if link.ended:
                    raise RuntimeError(link.ended)
                waited = time.monotonic() - begin
                if waited > self.timeout:
                    raise RuntimeError(
                        f"rank {link.other} has not {what} for {self.timeout:g} s, the"
                        " timeout of the process group"
                    )
                box.tell()
                if waited < link.spin and not box.sleeper:
                    box.ask(link)
                else:
                    box.sleep(min(self.timeout - waited, SLEEP))


class Sent(NamedTuple):
    """A message on its way to another rank. last: the number of its last piece."""

    channel: Channel
    last: int

    def wait(self) -> None:
        """Wait until the message may change."""
        link = self.channel.link
        self.channel.wait(lambda: link.written >= self.last, "read what it got")


class Received(NamedTuple):
    """A message on its way from another rank. last: the number of its last piece."""

    channel: Channel
    last: int

    def wait(self) -> None:
        """Wait until the message has come."""
        here = self.channel.link.arrivals[self.channel.number]
        self.channel.wait(lambda: here.came >= self.last, "sent its words")


class Inbox:
    """The links of this process, by the numbers of their sockets.

    lock: who holds it may use links; none of the methods but `sleep` lets it go.
    untold: links that have read, and not told so. sleeper: the thread that sleeps until
    notices come; 0 for none. taken: what the others wait for meanwhile.
    """

    def __init__(self) -> None:
        self.links: weakref.WeakValueDictionary[int, Link] = (
            weakref.WeakValueDictionary()
        )
        self.lock = threading.RLock()
        self.taken = threading.Condition(self.lock)
        self.untold, self.sleeper = list[int](), 0
        self.poll = select.poll()

    def add(self, link: Link) -> None:
        """Take in what comes over a link, while this rank waits for anything."""
        with self.lock:
            self.links[link.number] = link
            self.poll.register(link.number, select.POLLIN)

    def remove(self, link: Link) -> None:
        """Take in no more of a link."""
        if self.links.pop(link.number, None) is not None:
            self.poll.unregister(link.number)

    def tell(self) -> None:
        """Tell all ranks which slots are free: they may wait for one."""
        while self.untold:
            link = self.links.get(self.untold.pop())
            if link is not None:
                link.tell()

    def sleep(self, most: float) -> None:
        """Take in what comes over any link within so many seconds.

        Another thread may do so already. Then this one waits until it has.
        """
        if self.sleeper not in (0, threading.get_ident()):
            self.taken.wait(most)
            return
        for number in self._ready(most):
            link = self.links.get(number)
            if link is not None:
                self.ask(link)
                continue
            with suppress(KeyError):  # of a gone job, or ended by another thread
                self.poll.unregister(number)

    def _ready(self, most: float) -> list[int]:
        """The sockets with notices; other threads may hold the lock meanwhile."""
        self.sleeper = threading.get_ident()
        try:
            self.lock.release()
            found = self.poll.poll(1000 * most + 1)
        finally:
            self.lock.acquire()
            self.sleeper = 0
            self.taken.notify_all()  # they go on once this one lets go of the lock
        return [number for number, _ in found]

    def ask(self, link: Link) -> None:
        """Take in what has come over a link."""
        try:
            came = link.socket.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            came = b""
        link.take(came)

    def leave(self) -> None:
        """Let go of all links in a forked process, in which no other thread is left."""
        self.lock = threading.RLock()
        self.taken, self.sleeper = threading.Condition(self.lock), 0
        self.poll = select.poll()
        for link in list(self.links.values()):
            link.leave()
        self.links.clear()
        self.untold.clear()


@cache
def inbox() -> Inbox:
    """The one of this process."""
    found = Inbox()
    os.register_at_fork(after_in_child=found.leave)
    return found
