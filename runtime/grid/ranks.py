"""The ranks that run one network or program: all of the job, or some of them."""

from __future__ import annotations

import hashlib
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import torch.distributed as dist

from synth.runtime.grid.forks import mind_forks, require_rank

T = TypeVar("T")
_uses: weakref.WeakKeyDictionary[Any, dict[str, int]] = weakref.WeakKeyDictionary()


def named(ranks: Sequence[int]) -> str:
    """Some ranks, for messages: all of them if they are few."""
    if len(ranks) <= 16:
        return str(list(ranks))
    return f"[{', '.join(map(str, ranks[:8]))}, ... {ranks[-1]}] ({len(ranks)} ranks)"


def use_of(ranks: Sequence[int]) -> str:
    """A name in the store for what these ranks of the job do together next.

    It is short, the same on all of them, and used once in the life of the default
    group: they do in the same order what they do together. Jobs that are started again
    have other names.

    Raises `RuntimeError` in a process that was forked from one of several ranks.
    """
    if len(ranks) > 1:
        mind_forks()
        require_rank()
    members, count = _next(ranks)
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return f"synth/{restart}/{len(ranks)} ranks {members}/{count}"


def number_of_network(ranks: Sequence[int]) -> int:
    """The number of the next network of these ranks of the job, the same on all."""
    return _next(ranks, "network ")[1]


def _next(ranks: Sequence[int], of: str = "") -> tuple[str, int]:
    """A short name of some ranks, and how often they have come for this by now."""
    uses = _uses.setdefault(dist.group.WORLD, {})
    text = ",".join(map(str, ranks)).encode()
    members = of + hashlib.blake2b(text, digest_size=12).hexdigest()
    uses[members] = uses.get(members, 0) + 1
    return members, uses[members]


def timeout_of(group: Any) -> float:
    """Seconds that torch waits in a collective of a group: its shortest timeout."""
    backends = [group._get_backend(device) for device in group._device_types]
    return float(min(each.options._timeout.total_seconds() for each in backends))


@dataclass(frozen=True)
class Replicas:
    """Equal networks that are trained together, each on a batch of its own.

    rows: the global ranks of each, by index. me: the number of this rank's replica.
    everyone: the ranks of all replicas.
    """

    rows: tuple[tuple[int, ...], ...]
    me: int
    everyone: Ranks


@dataclass(frozen=True)
class Ranks:
    """Some ranks of a job. Each has an index among them, from 0 to `size` - 1.

    Grids, layouts and process groups of a network number ranks by their index. Only
    torch's own groups and messages to the user have global ranks.

    members: global ranks, ascending. me: the index of this rank among them.
    group: torch's process group of these ranks; None for the default group.
    agreement: on which they agree before they communicate, if they do; see `require`.
    replicas: the networks that are trained together with this one; None for none.
    refuses_gathers: whether operations on partitioned tensors that every rank would
        have to compute from the whole are refused.

    Raises `ValueError` if the members do not ascend.
    """

    members: tuple[int, ...]
    me: int
    group: Any = None
    agreement: Any = field(default=None, compare=False)
    replicas: Replicas | None = field(default=None, compare=False)
    refuses_gathers: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        if list(self.members) != sorted(set(self.members)):
            raise ValueError(
                f"the ranks {list(self.members)} do not ascend; give a group whose"
                f" ranks are {sorted(set(self.members))}"
            )

    @classmethod
    def world(cls) -> Ranks:
        """All ranks of the job: the default process group."""
        return cls(tuple(range(dist.get_world_size())), dist.get_rank())

    @classmethod
    def of(cls, group: Any) -> Ranks:
        """The ranks of a process group of torch; None is the default group.

        Raises `ValueError` if this rank is no member, or if the group numbers its
        members in another order than the job.
        """
        if group is None or group is dist.group.WORLD:
            return cls.world()
        outside = group is dist.GroupMember.NON_GROUP_MEMBER
        members = () if outside else tuple(dist.get_process_group_ranks(group))
        rank = dist.get_rank()
        if rank not in members:
            of = f" with the ranks {list(members)}" if members else ""
            raise ValueError(
                f"rank {rank} is no member of the group{of}; only members may make and"
                " call a network on it"
            )
        return cls(members, members.index(rank), group)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.members)

    @property
    def rank(self) -> int:
        """The global rank of this one."""
        return self.members[self.me]

    @property
    def everyone(self) -> Ranks:
        """The ranks of all replicas; these ranks where there is one."""
        return self if self.replicas is None else self.replicas.everyone

    @property
    def replica_count(self) -> int:
        """The number of networks that are trained together."""
        return 1 if self.replicas is None else len(self.replicas.rows)

    @property
    def reports(self) -> bool:
        """Whether this rank speaks to the user for all: the first of replica 0."""
        return self.me == 0 and (self.replicas is None or self.replicas.me == 0)

    def in_all_replicas(self, indices: Iterable[int]) -> tuple[int, ...]:
        """The global ranks with some indices, of every replica, ascending."""
        rows = (self.members,) if self.replicas is None else self.replicas.rows
        chosen = tuple(indices)
        return tuple(sorted(row[index] for row in rows for index in chosen))

    def timeout(self) -> float:
        """Seconds that torch waits in a collective of these ranks.

        This is the timeout of the process group, or of the default group if that is
        shorter: `init_device_mesh` makes groups with torch's default.
        """
        torch_own: Any = dist.distributed_c10d
        groups = {torch_own._get_default_group(), self.group} - {None}
        return min(map(timeout_of, groups))

    def require(self, what: str) -> None:
        """Raise `RuntimeError` on all ranks unless all are about to do `what`.

        And if something that was noted differs between ranks.
        """
        if self.agreement is not None:
            self.agreement.require(what)

    def require_all(self, what: str) -> None:
        """The same of the ranks of all replicas; first those of each agree."""
        self.require(what)
        if self.replicas is not None:
            self.everyone.require(what)

    def on_own_words(
        self, name: str, func: Callable[..., T], *args: Any, **kwargs: Any
    ) -> T:
        """Call a function of torch on this rank's words. name: of it, for messages.

        What it refuses on one rank, such as a label that is no class, all refuse.
        """
        try:
            return func(*args, **kwargs)
        except (IndexError, RuntimeError) as fault:
            self.require(f"{name}, which says: {fault}")
            raise

    def together(self, name: str, func: Callable[..., T], *args: Any) -> T:
        """The same where all ranks make the call now, and no other one must follow.

        Raises on all ranks the error of the first that torch refuses.
        """
        if not self.compares:
            return func(*args)
        made, fault = None, None
        try:
            made = func(*args)
        except (IndexError, RuntimeError, ValueError) as error:
            fault = error
        self.agreement.require_done(name, fault)
        return cast(T, made)

    @property
    def compares(self) -> bool:
        """Whether there are ranks that agree before they communicate."""
        return self.agreement is not None and len(self.members) > 1

    def note(self, what: str, values: Any) -> None:
        """Compare what must be the same on all ranks when they next agree.

        what: it is, for messages. values: a tensor, or numbers.
        """
        if self.agreement is not None:
            self.agreement.note(what, values)

    def same(self, what: str, *tensors: Any) -> bool:
        """Whether all ranks, which are about to do `what`, have the same tensors."""
        return self.agreement is None or self.agreement.apart(what, tensors) is None

    def from_first(self, value: Any) -> Any:
        """The first member's value, on all members. All must call this.

        The value is an object that can be pickled.
        """
        if self.size == 1:  # in a forked process, too
            return value
        require_rank(self.group)
        values = [value]
        dist.broadcast_object_list(values, src=self.members[0], group=self.group)
        return values[0]

    def gathered(self, value: Any) -> list[Any]:
        """The values of all members, on all members. All must call this.

        The value is an object that can be pickled.
        """
        if self.size == 1:
            return [value]
        require_rank(self.group)
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def __deepcopy__(self, memo: dict[int, Any]) -> Ranks:
        """The same: copies of a network communicate in the same groups."""
        return self


class AbsentRanks(Ranks):
    """Ranks that do not run. Steps are made for them to see what they would exchange.

    They have no process groups, say nothing and agree with the first of them.
    """

    @classmethod
    def numbered(cls, size: int) -> AbsentRanks:
        """So many ranks, seen from the first of them."""
        return cls(tuple(range(size)), 0)

    @property
    def reports(self) -> bool:
        """Nothing is said for ranks that do not run."""
        return False

    def timeout(self) -> float:
        """Nobody waits for them."""
        return 0.0

    def from_first(self, value: Any) -> Any:
        """The value itself."""
        return value

    def gathered(self, value: Any) -> list[Any]:
        """The value itself, once for each rank."""
        return [value] * self.size


class Alone(AbsentRanks):
    """This process by itself, whatever job it is of: a network on it sends nothing."""

    @classmethod
    def here(cls) -> Alone:
        """One rank, whose process group fails whatever is asked of it."""
        return cls((0,), 0, _NO_GROUP)


class _NoGroup:
    """In the place of a process group, so that no message goes to the job's."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("a network on one process must not send anything")


_NO_GROUP = _NoGroup()
