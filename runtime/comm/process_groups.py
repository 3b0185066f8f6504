"""Process groups: the ranks that communicate with each other, as torch knows them."""

from __future__ import annotations

import datetime
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, cached_property, partial
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist

from synth.runtime.comm.buffer_pool import BufferPool
from synth.runtime.comm.host_links import ranks_of_host, share_memory
from synth.runtime.comm.host_memory import have_met
from synth.runtime.grid.process_grid import At, peers_along, rank_of
from synth.runtime.grid.rank_tree import DIRECT, AbsentRankError, StoreTree
from synth.runtime.grid.ranks import AbsentRanks, Ranks, named, timeout_of, use_of
from synth.runtime.grid.transport import carries_host, is_queued

COUNTED = torch.__version__ >= "2.14"  # whether torch names groups after one count
OWN_GROUPS = 10**6  # added to the count, so that names are none of the user's groups


class Counter(Protocol):
    """What counts received words: a context or its traffic counter."""

    def count(self, phase: str, tensor: str, words: int, step: int) -> None:
        """Record that a step of a phase starts, and add the words that it receives."""


def uncounted(words: int, step: int = 0) -> None:
    """Count nothing."""


class Group(NamedTuple):
    """The ranks that differ only along some axes of the grid."""

    handle: Any  # torch's process group
    peers: list[At]  # coordinates of its ranks, in the order of the process group
    me: int  # index of this rank among them
    buffers: BufferPool  # memory for messages
    record: Callable[[int, int], None] = uncounted  # received words, and their step

    def counted(self, context: Counter, phase: str, tensor: str) -> Group:
        """The same group; words received in it count for a phase and a tensor."""
        return self._replace(record=partial(context.count, phase, tensor))


@cache
def left_groups() -> list[Any]:
    """The groups of collected networks, which others may take.

    There is one list in a process, as torch has one of all groups.
    """
    return []


@cache
def groups_of_networks() -> weakref.WeakKeyDictionary[Any, dict[Any, Any]]:
    """torch's default group -> ranks and how they communicate -> where they agree."""
    return weakref.WeakKeyDictionary()


class ProcessGroups:
    """The process groups of one network or program, each created once.

    ranks: those that run it; None for all ranks of the job.
    reused: whether later networks take them over once this object is collected. Then
        all that communicates in them must hold this object.
    """

    def __init__(self, ranks: Ranks | None = None, reused: bool = False) -> None:
        self._ranks = ranks
        self._groups: dict[tuple[tuple[int, ...], float, str, bool], Any] = {}
        if reused:
            weakref.finalize(self, _leave, self._groups).atexit = False

    @cached_property
    def ranks(self) -> Ranks:
        """The ranks that run the network or program."""
        return self._ranks or Ranks.world()

    def of(
        self,
        indices: Sequence[int],
        timeout: float | None = None,
        purpose: str = "",
        all_replicas: bool = False,
    ) -> Any:
        """torch's process group of some of the ranks, for one purpose.

        All its members must call this in the same order. Other ranks do not take part,
        so the cost does not grow with the number of groups. `timeout` in seconds bounds
        every wait in the group (None: as in the process group of all the ranks).

        all_replicas: with the ranks of these indices in every replica.
        None for ranks that do not run.
        """
        if isinstance(self.ranks, AbsentRanks):
            return None
        if len(indices) > DIRECT and not purpose and not all_replicas:
            # a group takes P calls and P connections of each rank in gloo
            everyone = self._everyone(indices, timeout)
            if everyone is not None:
                return everyone
        timeout = self.ranks.timeout() if timeout is None else timeout
        key = tuple(sorted(indices)), timeout, purpose, all_replicas
        if key not in self._groups:
            members = tuple(self.ranks.members[index] for index in key[0])
            if all_replicas:
                members = self.ranks.in_all_replicas(indices)
            self._groups[key] = _created(members, timeout, self.ranks.group)
        return self._groups[key]

    def of_networks(self) -> Any:
        """The group in which networks of one process group agree, until the job ends.

        So networks that ranks call in another order meet there. Threads that each train
        a network have process groups of their own, and do not meet.
        """
        ranks = self.ranks
        if isinstance(ranks, AbsentRanks):
            return None
        torch_own: Any = dist.distributed_c10d
        timeout, config = ranks.timeout(), torch_own.get_backend_config(ranks.group)
        known = groups_of_networks().setdefault(dist.group.WORLD, {})
        key = ranks.group, ranks.members, timeout, config
        if key not in known:
            known[key] = _created(ranks.members, timeout, ranks.group)
        return known[key]

    def along(
        self,
        at: At,
        grid: dict[str, int],
        group_axes: dict[str, tuple[str, ...]],
        buffers: BufferPool,
        timeout: float | None = None,
    ) -> dict[str, Group]:
        """Name -> the group of the rank at `at` along the axes of that name."""
        groups = {}
        for name, axes in group_axes.items():
            # torch numbers the members of a group by their ranks
            peers = peers_along(at, grid, axes)
            peers.sort(key=lambda peer: rank_of(peer, grid))
            handle = self._of_line([rank_of(peer, grid) for peer in peers], timeout)
            groups[name] = Group(handle, peers, peers.index(at), buffers)
        self.meet()
        return groups

    def meet(self) -> None:
        """Let ranks of one host share memory, before the first pass.

        All call this, also those that have no part of a layer.
        """
        ranks = self.ranks
        if isinstance(ranks, AbsentRanks) or have_met(ranks.group):
            return
        if ranks.size > DIRECT and carries_host(ranks.group):
            here = ranks_of_host(ranks.members, ranks.timeout())
            if 1 < len(here) <= DIRECT:  # their group shares memory
                self.of([ranks.members.index(rank) for rank in here], purpose="host")
        share_memory(ranks.group)

    def _of_line(self, indices: Sequence[int], timeout: float | None) -> Any:
        """The group of some ranks of a grid; that of all ranks itself, where it can be.

        A transport of the host has threads of its own for every group, and each wakes
        for what comes in its group. In a queue the calls of a group wait for each
        other.
        """
        return self._everyone(indices, timeout) or self.of(indices, timeout)

    def _everyone(self, indices: Sequence[int], timeout: float | None) -> Any:
        """The group of all ranks, if these are all and may communicate in it."""
        ranks = self.ranks
        if len(indices) < ranks.size or isinstance(ranks, AbsentRanks):
            return None
        everyone = ranks.group or dist.group.WORLD
        limit = ranks.timeout() if timeout is None else timeout
        shared = not is_queued(everyone) and timeout_of(everyone) == limit
        return everyone if shared else None

    def clear(self) -> None:
        """Forget all groups, before torch destroys them."""
        self._groups.clear()


def with_everyone(ranks: Ranks) -> Ranks:
    """The same ranks, with a process group of the ranks of all replicas.

    All of these must call this; it needs no other rank of the job.
    """
    if ranks.replicas is None:
        return ranks
    members = ranks.everyone.members
    if members == tuple(range(dist.get_world_size())):
        everyone = Ranks.world()
    else:
        group = _created(members, ranks.timeout(), ranks.group)
        everyone = replace(ranks.everyone, group=group)
    return replace(ranks, replicas=replace(ranks.replicas, everyone=everyone))


def _leave(groups: dict[Any, Any]) -> None:
    """Leave groups to later networks; the collector calls this."""
    left_groups().extend(groups.values())
    groups.clear()


def _left_alike(ranks: tuple[int, ...], timeout: float, backend: str) -> dict[str, Any]:
    """Name -> a group that a collected network has left, of these ranks."""
    torch_own: Any = dist.distributed_c10d
    found = {}
    for group in tuple(left_groups()):
        name = torch_own._world.pg_names.get(group)
        if name is None:  # of a world that has ended
            left_groups().remove(group)
        elif tuple(sorted(dist.get_process_group_ranks(group))) == ranks:
            kind = torch_own.get_backend_config(group)
            if (kind, timeout_of(group)) == (backend, timeout):
                found[name] = group
    return found


def _created(ranks: tuple[int, ...], timeout: float, parent: Any) -> Any:
    """A process group of some global ranks, with the backend of another group.

    It is one that collected networks of all members have left, or a new one: torch
    keeps the connections and threads of a group until the job ends.

    torch names a group after its ranks and after how many groups a member has created.
    Members that have created different numbers would wait for each other for ever. So
    every member first creates groups of itself alone until it has as many as the
    others.
    """
    torch_own: Any = dist.distributed_c10d
    store, me = torch_own._get_default_store(), dist.get_rank()
    created = torch_own._world.pg_names
    backend = torch_own.get_backend_config(parent)
    left = _left_alike(ranks, timeout, backend)
    name = use_of(ranks)
    limit = datetime.timedelta(seconds=timeout)
    tree = StoreTree(
        store, name, ranks.index(me), len(ranks), store.timeout.total_seconds()
    )
    try:
        most, alike = tree.combined(
            [len(created), sorted(left)],
            lambda one, other: [
                max(one[0], other[0]),
                sorted(set(one[1]) & set(other[1])),
            ],
        )
    except AbsentRankError as error:
        raise RuntimeError(
            f"rank {ranks[error.place]} did not come to create the group of the ranks"
            f" {named(ranks)}; all its members must create the same groups"
        ) from error
    if alike:
        found = left[alike[0]]
        left_groups().remove(found)
        return found
    alone = {"use_local_synchronization": True}
    with _named_after(most, me):
        made = dist.new_group(list(ranks), limit, backend, **alone)  # type: ignore
    connect(made)
    share_memory(made)
    return made


@contextmanager
def _named_after(number: int, me: int) -> Iterator[None]:
    """Let torch name the next group of some ranks after a number that they all know.

    Up to 2.13 it takes the number of its groups, so this rank makes some of its own.
    From 2.14 on it takes a count that is of all ranks, who may later make a group
    together: it is put back.
    """
    world: Any = dist.distributed_c10d._world
    if not COUNTED:
        while len(world.pg_names) < number:
            dist.new_group([me], use_local_synchronization=True)
        yield
        return
    before, world.group_count = world.group_count, OWN_GROUPS + number
    try:
        yield
    finally:
        world.group_count = before


def connect(group: Any, device: str = "cuda") -> None:
    """Let all members of a new group connect, if it has queues. They all call this.

    Such a group connects all members in their first call. That may be a message which
    only some of them send or receive, and these would wait for the others for ever.
    """
    if is_queued(group):
        dist.all_reduce(torch.zeros(1, device=device), group=group)
