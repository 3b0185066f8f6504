"""Words that two ranks of one host swap through memory that both map.

A word that a socket carries is copied into the system and out of it, and threads of
gloo wake for it on both sides. Here the sender copies it into a slot of shared memory,
and the receiver copies it out. What travels over a socket between the two are notices
that a slot is full, or free again. A rank that ends closes its socket, which the other
sees at once.

Both ranks start, and await, the swaps of a group in the same order, as they do with any
collective. So both know without a word whether a swap finds room here; else it goes as
another message.
"""

from __future__ import annotations

import hmac
import mmap
import os
import secrets
import select
import socket
import struct
import time
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist

from synth.runtime.grid.hosts import is_near_pair, pair_of
from synth.runtime.grid.ranks import timeout_of
from synth.runtime.grid.transport import carries_host

SLOT = 2**21  # bytes of the largest piece
SLOTS = 8  # for each direction
SPIN = 1e-4  # seconds for which a rank with a core asks for notices before it sleeps
SETUP = 30.0  # seconds for the other rank to connect, once it has said that it does
TOKEN = 16  # bytes that only the two ranks know
# whether a slot is full or free, the number of the swap, the slot, bytes of the piece
NOTICE = struct.Struct("=?QIQ")
CREDENTIALS = struct.Struct("3i")  # process, user, group

_memories: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


class SharedBytes:
    """Bytes that this process has sent and received through memory of its host."""

    sent = received = 0


def pair_memory(group: Any) -> PairMemory | None:
    """What two ranks of one host swap through; None for others.

    group: torch's; None for the default one. All its ranks must ask once.
    """
    known: Any = dist.group.WORLD if group is None else group
    if known not in _memories:
        shared = pair_of(known).near and carries_host(known)
        _memories[known] = _connected(known) if shared else None
    found: PairMemory | None = _memories[known]
    return found


class PairMemory:
    """One end of the memory of a pair.

    link: a socket between the two. memory: the slots into which the first of the group
    writes, then those of the second. me: the place of this rank in its group.
    ends: that place, and the other rank of the job. timeout, spin: seconds until this
    rank gives up, and until it leaves its core to others.
    """

    def __init__(
        self,
        link: socket.socket,
        memory: mmap.mmap,
        ends: tuple[int, int],
        timeout: float,
        spin: float = SPIN,
    ) -> None:
        self.link, self.memory = link, memory
        (self.me, self.other), self.timeout, self.spin = ends, timeout, spin
        self.started = 0  # swaps so far
        self.open = 0  # of these, those that this rank has not awaited yet
        self.free = list(range(SLOTS))[::-1]  # slots into which this rank may write
        self.full: dict[int, tuple[int, int]] = {}  # swap -> slot and bytes that came
        self.unwanted = set[int]()  # swaps whose piece nobody waits for
        self.read: list[bytes] = []  # notices of slots that are free, not yet sent
        self.rest = b""  # of a notice that has come in part
        link.setblocking(False)
        self.poll = select.poll()
        self.poll.register(link, select.POLLIN)

    def has_room(self, *pieces: torch.Tensor) -> bool:
        """Whether the next swap finds room; both ranks say the same."""
        most = max(piece.numel() * piece.element_size() for piece in pieces)
        return self.open < SLOTS and most <= SLOT

    def start(self, arriving: torch.Tensor, leaving: torch.Tensor) -> Swap:
        """Send a piece, and get what waits for the other; each may be empty.

        The memory of `leaving` may change from here on.
        """
        number, bytes_ = self.started, leaving.numel() * leaving.element_size()
        self.started += 1
        self.open += 1
        if not bytes_:
            self._send()
            return Swap(self, number, arriving)
        if not self.free:
            self._send()  # the other rank may wait for a slot, too
            self._wait(lambda: bool(self.free), "free memory")
        slot = self.free.pop()
        self._words(self.me, slot, leaving).copy_(leaving.detach())
        SharedBytes.sent += bytes_
        self._send(NOTICE.pack(True, number, slot, bytes_))
        return Swap(self, number, arriving)

    def finish(self, number: int, arriving: torch.Tensor) -> None:
        """Wait for the piece of a swap, and copy it."""
        self.open -= 1
        if not arriving.numel():
            return
        if number not in self.full:
            self._send()
            self._wait(lambda: number in self.full, "its words")
        slot, bytes_ = self.full.pop(number)
        wanted = arriving.numel() * arriving.element_size()
        if bytes_ != wanted:
            raise RuntimeError(
                f"rank {self.other} sent {bytes_} bytes where {wanted} are expected;"
                " all ranks must call the same in the same order"
            )
        arriving.data.copy_(self._words(1 - self.me, slot, arriving))
        SharedBytes.received += bytes_
        self._leave(number, slot)

    def forget(self, number: int, arriving: torch.Tensor) -> None:
        """Wait for no piece of a swap."""
        self.open -= 1
        if number in self.full:
            slot, _ = self.full.pop(number)
            self._leave(number, slot)
        elif arriving.numel():
            self.unwanted.add(number)

    def _leave(self, number: int, slot: int) -> None:
        """Tell the other rank, with the next notice, that it may write a slot again."""
        self.read.append(NOTICE.pack(False, number, slot, 0))

    def _words(self, writer: int, slot: int, like: torch.Tensor) -> torch.Tensor:
        """The words in a slot of a rank, of the shape and the dtype of a piece."""
        size, place = like.numel(), SLOT * (SLOTS * writer + slot)
        words = torch.frombuffer(
            self.memory, dtype=like.dtype, count=size, offset=place
        )
        return words.view(like.shape)

    def _send(self, notice: bytes = b"") -> None:
        """Send a notice, after those of slots that are free again."""
        notices = b"".join((*self.read, notice))
        self.read.clear()
        if not notices:
            return
        try:
            self.link.send(notices)
        except OSError as error:
            raise self._gone() from error

    def _wait(self, there: Callable[[], bool], what: str) -> None:
        """Take in notices until something is there."""
        begin = time.monotonic()
        while not there():
            try:
                came = self.link.recv(4096)
            except BlockingIOError:
                waited = time.monotonic() - begin
                if waited > self.timeout:
                    raise RuntimeError(
                        f"rank {self.other} has not sent {what} for"
                        f" {self.timeout:g} s, the timeout of the process group"
                    ) from None
                if waited > self.spin:
                    self.poll.poll(1000 * (self.timeout - waited) + 1)
                continue
            except OSError as error:
                raise self._gone() from error
            if not came:
                raise self._gone()
            self._take(came)
            self._send()

    def _take(self, came: bytes) -> None:
        came = self.rest + came
        end = len(came) - len(came) % NOTICE.size
        self.rest = came[end:]
        for full, number, slot, bytes_ in NOTICE.iter_unpack(came[:end]):
            if not full:
                self.free.append(slot)
            elif number in self.unwanted:
                self.unwanted.remove(number)
                self._leave(number, slot)
            else:
                self.full[number] = slot, bytes_

    def _gone(self) -> RuntimeError:
        return RuntimeError(f"Connection closed by peer, rank {self.other}")


class Swap:
    """A swap on its way. arriving: where the piece of the other rank is wanted."""

    def __init__(self, memory: PairMemory, number: int, arriving: torch.Tensor) -> None:
        self.memory: PairMemory | None = memory
        self.number, self.arriving = number, arriving

    def wait(self) -> None:
        """Wait until the piece has come."""
        if self.memory is not None:
            memory, self.memory = self.memory, None
            memory.finish(self.number, self.arriving)

    def __del__(self) -> None:
        if self.memory is not None:
            self.memory.forget(self.number, self.arriving)


# -- how the two ranks find each other -------------------------------------------------


def _connected(group: Any) -> PairMemory | None:
    """The memory of a new pair; both ranks call this. None where one cannot share it.

    The first listens on a socket without a file, and tells the other its name and a
    secret. It accepts a process of its own user that knows the secret, and sends it
    memory without a file. Nothing is left when the two end, however they do.
    """
    me, members = dist.get_rank(group), dist.get_process_group_ranks(group)
    timeout = timeout_of(group)
    with ExitStack() as stack:
        listening = _listening() if me == 0 else None
        offer = None
        if listening is not None:
            stack.enter_context(listening)
            offer = listening.getsockname(), secrets.token_bytes(TOKEN)
        offer = told(offer, group)[0]
        if offer is None:
            return None
        link = None if me == 0 else _joined(*offer)
        if not any(told(link is not None, group)):
            return None
        if listening is not None:
            link = _accepted(listening, offer[1], timeout)
            listening.close()  # so that a rank that was not accepted sees it
        memory = None
        if link is not None:
            memory = _given(link) if me == 0 else _got(link, timeout)
            if memory is None:
                link.close()
        if not all(told(memory is not None, group)):
            return None
    assert link is not None
    assert memory is not None
    ends, spin = (me, members[1 - me]), SPIN if is_near_pair(group) else 0
    return PairMemory(link, memory, ends, timeout, spin)


def told(own: Any, group: Any) -> list[Any]:
    """What each rank of a group says, by its place there."""
    said: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(said, own, group=group)
    return said


def _listening() -> socket.socket | None:
    try:
        found = socket.socket(socket.AF_UNIX)
        found.bind(f"\0synth-{secrets.token_hex(TOKEN)}")
        found.listen()
    except (OSError, AttributeError):  # no such sockets
        return None
    return found


def _joined(name: bytes, secret: bytes) -> socket.socket | None:
    """A socket to the rank that listens; None if it is out of reach."""
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(SETUP)
    try:
        link.connect(name)
        if _is_own(link):
            link.sendall(secret)
            return link
    except OSError:
        pass
    link.close()
    return None


def _accepted(
    listening: socket.socket, secret: bytes, timeout: float
) -> socket.socket | None:
    """The socket of the rank that has asked; strangers are turned away."""
    end = time.monotonic() + min(timeout, SETUP)
    while (left := end - time.monotonic()) > 0:
        listening.settimeout(left)
        try:
            link, _ = listening.accept()
        except OSError:
            continue
        if _is_own(link) and hmac.compare_digest(_said(link), secret):
            return link
        link.close()
    return None


def _said(link: socket.socket) -> bytes:
    """The secret of a process of the same user; it comes at once."""
    link.settimeout(1)
    try:
        return link.recv(TOKEN, socket.MSG_WAITALL)
    except OSError:
        return b""


def _is_own(link: socket.socket) -> bool:
    """Whether the other end is a process of the same user."""
    found = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    _, user, _ = CREDENTIALS.unpack(found)
    return bool(user == os.getuid())


def _given(link: socket.socket) -> mmap.mmap | None:
    """New memory, of which the other rank gets a handle."""
    try:
        handle = os.memfd_create("synth")
    except (OSError, AttributeError):
        return None
    try:
        os.ftruncate(handle, 2 * SLOTS * SLOT)
        socket.send_fds(link, [b"."], [handle])
        return mmap.mmap(handle, 2 * SLOTS * SLOT)
    except OSError:
        return None
    finally:
        os.close(handle)


def _got(link: socket.socket, timeout: float) -> mmap.mmap | None:
    """The memory of which the other rank sends a handle."""
    link.settimeout(min(timeout, SETUP))
    handles = list[int]()
    try:
        _, handles, _, _ = socket.recv_fds(link, 1, 1)
        return mmap.mmap(handles[0], 2 * SLOTS * SLOT) if handles else None
    except OSError:
        return None
    finally:
        for handle in handles:
            os.close(handle)
