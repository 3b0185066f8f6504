"""How the ranks of a group that share a host find each other, and share memory.

All members call `share_memory`, once. Each listens on a socket without a file, and
tells the others its name and a secret. It accepts processes of its own user that know
the secret, and sends each memory without a file. Nothing is left when ranks end,
however they do. Where two cannot share memory, they send messages.

Two ranks of a job meet once. A group whose members have all met in a larger one asks
nobody.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import mmap
import os
import secrets
import socket
import struct
import time
import weakref
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch.distributed as dist

from synth.runtime.comm.host_memory import (
    NOTHING_SHARED,
    SLOT,
    SLOTS,
    SPIN,
    Channel,
    HostMemory,
    Link,
    have_met,
    known_group,
    memories,
)
from synth.runtime.grid.forks import mind_forks, require_rank
from synth.runtime.grid.hosts import HostList, host_here
from synth.runtime.grid.launched_job import ranks_here, usable_cores
from synth.runtime.grid.rank_tree import DIRECT, AbsentRankError, StoreTree
from synth.runtime.grid.ranks import named, timeout_of, use_of
from synth.runtime.grid.transport import carries_host

SETUP = 30.0  # seconds for other ranks to connect, once they have said that they do
TOKEN = 16  # bytes that only the members know
GREETING = struct.Struct(f"={TOKEN}sI")  # the secret, and the place in the group
CREDENTIALS = struct.Struct("3i")  # process, user, group
HANDLE = struct.Struct("i")
NOBODY = bytes(GREETING.size)
BOTH = 2 * SLOTS * SLOT  # bytes that two ranks share

_met: weakref.WeakKeyDictionary[Any, Met] = weakref.WeakKeyDictionary()


class Offer(NamedTuple):
    """What a rank tells the others. name: of its socket; None where it has none.

    roomy: whether each rank of the host has a core.
    """

    host: tuple[str, str]
    roomy: bool
    name: bytes | None
    secret: bytes


class Met:
    """What ranks of a job know of each other.

    links: to those that share memory with this one. pairs: of ranks that share memory.
    groups: of ranks that have met.
    """

    def __init__(self) -> None:
        self.links = dict[int, Link]()
        self.pairs = set[tuple[int, int]]()
        self.groups = list[set[int]]()


def share_memory(group: Any) -> None:
    """Let the members of a group that share a host share memory; all members call this.

    group: torch's; None for the default one.
    """
    if have_met(group):
        return
    mind_forks()
    known = known_group(group)
    members = dist.get_process_group_ranks(known)
    if len(members) == 1 or not carries_host(known):
        memories[known] = NOTHING_SHARED
        return
    met, few = _met.setdefault(dist.group.WORLD, Met()), len(members) <= DIRECT
    if few and not any(each.issuperset(members) for each in met.groups):
        _meet(known, members, met)
        met.groups.append(set(members))
    name = known.group_name.encode()
    number = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest())
    timeout = timeout_of(known)
    channels = {
        at: Channel(met.links[rank], number, timeout)
        for at, rank in enumerate(members)
        if rank in met.links
    }
    pairs = itertools.permutations(members, 2) if few else ()
    whole = few and all(pair in met.pairs for pair in pairs)
    memories[known] = HostMemory(channels, whole)


def ranks_of_host(members: Sequence[int], limit: float) -> list[int]:
    """Those of some ranks of the job that are on the host of this one, ascending.

    All of them call this. Each reads the names of those of its host alone.

    Raises `RuntimeError` if one does not come within so many seconds.
    """
    store: Any = dist.distributed_c10d._get_default_store()
    use, rank = use_of(members), dist.get_rank()
    listed = HostList(store, use, host_here(), rank)

    def meet(those: Sequence[int], purpose: str) -> None:
        name = f"{use}/{purpose}"
        tree = StoreTree(store, name, those.index(rank), len(those), limit)
        try:
            tree.combined(0, max)
        except AbsentRankError as error:
            raise RuntimeError(
                f"rank {those[error.place]} did not come to say on which host it is;"
                f" all of the ranks {named(members)} must do the same"
            ) from error

    listed.enter()
    meet(members, "all")
    found = listed.read()
    meet(found, f"from {found[0]}")
    listed.leave(found)
    return found


def told(own: Any, group: Any) -> list[Any]:
    """What each rank of a group says, by its place there."""
    require_rank(group)
    said: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(said, own, group=group)
    return said


def _meet(group: Any, members: list[int], met: Met) -> None:
    """Let members share memory that do not yet; all of them call this."""
    me, limit = dist.get_rank(group), min(timeout_of(group), SETUP)
    roomy = usable_cores() >= ranks_here(dist.get_world_size() - 1)
    listening, secret = _listening(), secrets.token_bytes(TOKEN)
    with listening or nullcontext():
        name = listening.getsockname() if listening else None
        own = Offer(host_here(), roomy, name, secret)
        # as a plain tuple: the classes of a program that stands alone have no module
        offers = [Offer(*each) for each in told(tuple(own), group)]
        if len({each.host for each in offers}) == len(offers):
            return
        old = {at for at, rank in enumerate(members) if rank in met.links}
        joined = _joined_ones(offers, me, old)
        asked = told(list(joined), group)
        coming = {at for at, others in enumerate(asked) if me in others}
        accepted = _accepted(listening, secret, coming, limit) if coming else {}
    # with the socket those go that were not accepted, and see it
    memory = {at: _given(link) for at, link in accepted.items()}
    memory |= {at: _got(link, limit) for at, link in joined.items()}
    old |= {at for at, found in memory.items() if found is not None}
    shared: list[set[int]] = told(old, group)
    for at, ends in (accepted | joined).items():
        found = memory[at]
        if found is None or me not in shared[at]:
            ends.close()
            continue
        spin = SPIN if roomy and offers[at].roomy else 0
        met.links[members[at]] = Link(ends, found, me < at, members[at], spin)
    met.pairs.update(
        (members[at], members[other])
        for at, others in enumerate(shared)
        for other in others
        if at in shared[other]
    )


def _listening() -> socket.socket | None:
    """A socket at which other ranks ask; None where there are no such sockets."""
    try:
        found = socket.socket(socket.AF_UNIX)
        found.bind(f"\0synth-{secrets.token_hex(TOKEN)}")
        found.listen(DIRECT)
    except (OSError, AttributeError):
        return None
    return found


def _joined_ones(
    offers: Sequence[Offer], me: int, old: set[int]
) -> dict[int, socket.socket]:
    """Sockets to the ranks of this host with lower places, where they are in reach.

    old: places of ranks that share memory already.
    """
    found = dict[int, socket.socket]()
    for at, offer in enumerate(offers[:me]):
        near = at not in old and offer.host == offers[me].host
        if near and offer.name is not None:
            link = _joined(offer.name, GREETING.pack(offer.secret, me))
            if link is not None:
                found[at] = link
    return found


def _joined(name: bytes, greeting: bytes) -> socket.socket | None:
    """A socket to a rank that listens; None if it is out of reach."""
    link = None
    try:
        link = socket.socket(socket.AF_UNIX)
        link.settimeout(SETUP)
        link.connect(name)
        if _is_own(link):
            link.sendall(greeting, socket.MSG_NOSIGNAL)
            return link
    except OSError:
        pass
    if link is not None:
        link.close()
    return None


def _accepted(
    listening: socket.socket | None, secret: bytes, coming: set[int], limit: float
) -> dict[int, socket.socket]:
    """The sockets of the ranks that have asked; strangers are turned away."""
    found, end = dict[int, socket.socket](), time.monotonic() + limit
    while listening and coming - set(found) and (left := end - time.monotonic()) > 0:
        listening.settimeout(left)
        try:
            link, _ = listening.accept()
        except OSError:
            continue
        token, place = GREETING.unpack(_greeting(link) if _is_own(link) else NOBODY)
        known = hmac.compare_digest(token, secret)
        if known and place in coming - set(found):
            found[place] = link
        else:
            link.close()
    return found


def _greeting(link: socket.socket) -> bytes:
    """What a process of the same user says; it comes at once."""
    link.settimeout(1)
    try:
        said = link.recv(GREETING.size, socket.MSG_WAITALL)
    except OSError:
        return NOBODY
    return said if len(said) == len(NOBODY) else NOBODY


def _is_own(link: socket.socket) -> bool:
    """Whether the other end is a process of the same user."""
    found = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    _, user, _ = CREDENTIALS.unpack(found)
    return bool(user == os.getuid())


def _given(link: socket.socket) -> mmap.mmap | None:
    """New memory, of which the other rank gets a handle; None where there is none.

    Then the link is closed, so that the other does not wait.
    """
    handle = None
    try:
        handle = os.memfd_create("synth")
        os.ftruncate(handle, BOTH)
        memory = mmap.mmap(handle, BOTH)
        rights = socket.SOL_SOCKET, socket.SCM_RIGHTS, HANDLE.pack(handle)
        # `socket.send_fds` drops its flags
        link.sendmsg([b"."], [rights], socket.MSG_NOSIGNAL)
        return memory
    except (OSError, AttributeError):
        link.close()
        return None
    finally:
        if handle is not None:
            os.close(handle)


def _got(link: socket.socket, limit: float) -> mmap.mmap | None:
    """The memory of which the other rank sends a handle."""
    link.settimeout(limit)
    handles = list[int]()
    try:
        _, handles, _, _ = socket.recv_fds(link, 1, 1)
        return mmap.mmap(handles[0], BOTH) if handles else None
    except OSError:
        return None
    finally:
        for handle in handles:
            os.close(handle)
