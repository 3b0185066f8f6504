"""Values of all ranks of a process group, combined along a tree of messages.

A collective of gloo that gathers takes P messages, or P times the bytes, on every rank.
Along the tree of `runtime.grid.rank_tree` a rank exchanges O(log P) messages. A rank
whose neighbor in the tree ends sees that at once. The others learn it from the store.
Up to `DIRECT` ranks gather directly, so that each sees the end of any other.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from synth.runtime.grid.rank_tree import DIRECT, children_of, parent_of
from synth.runtime.grid.ranks import Ranks
from synth.runtime.grid.transport import carries_host

T = TypeVar("T")
TAG = 0x5E7  # of these messages: others may be under way in the same group
FRAME = 1024  # bytes of a message; what is longer follows in a second one
SIZE = 4  # of these, for the length


class GroupTree:
    """The tree over some ranks of a process group that carries tensors of the host.

    group: torch's; None for the default one. members: global ranks, of which the first
    is the root. me: the place of this rank among them.
    """

    def __init__(self, group: Any, members: Sequence[int], me: int) -> None:
        self.group, self.root = group, me == 0
        self.parent = None if me == 0 else members[parent_of(me)]
        self.children = [members[each] for each in children_of(me, len(members))]

    def combined(
        self,
        value: T,
        combine: Callable[[T, T], T],
        conclude: Callable[[T], Any] | None = None,
    ) -> Any:
        """The values of all members, on all of them. All must call this.

        combine: of a member's value with that of one of its children in the tree.
        conclude: what the root makes of all, for all; None for the combined value.
        """
        value = self.to_root(value, combine)
        return self.from_root(conclude(value) if self.root and conclude else value)

    def to_root(self, value: T, combine: Callable[[T, T], T]) -> T:
        """The value of this member and all below it, which its parent gets."""
        for child in self.children:
            value = combine(value, self._received(child))
        if self.parent is not None:
            self._send(self.parent, value)
        return value

    def from_root(self, value: Any) -> Any:
        """The root's value, on all members. All must call this."""
        if self.parent is not None:
            value = self._received(self.parent)
        for child in self.children:
            self._send(child, value)
        return value

    def _send(self, peer: int, value: Any) -> None:
        data = pickle.dumps(value)
        head = len(data).to_bytes(SIZE, "little") + data[: FRAME - SIZE]
        for part in (head.ljust(FRAME), data[FRAME - SIZE :]):
            if part:
                words = torch.frombuffer(bytearray(part), dtype=torch.uint8)
                dist.send(words, peer, self.group, TAG)

    def _received(self, peer: int) -> Any:
        head = torch.empty(FRAME, dtype=torch.uint8)
        dist.recv(head, peer, self.group, TAG)
        data = head.numpy().tobytes()
        size = int.from_bytes(data[:SIZE], "little")
        if size > FRAME - SIZE:
            rest = torch.empty(size - (FRAME - SIZE), dtype=torch.uint8)
            dist.recv(rest, peer, self.group, TAG)
            data += rest.numpy().tobytes()
        return pickle.loads(data[SIZE : SIZE + size])


def by_tree(group: Any, size: int) -> bool:
    """Whether so many ranks of a group combine their values along the tree.

    Where nothing carries tensors of the host, they gather, in few steps.
    """
    return size > DIRECT and carries_host(group)


def combined(
    ranks: Ranks,
    value: T,
    combine: Callable[[T, T], T],
    conclude: Callable[[T], Any] | None = None,
) -> Any:
    """The values of some ranks, on all of them; see `GroupTree.combined`.

    The values can be pickled. All ranks must call this.
    """
    if by_tree(ranks.group, ranks.size):
        tree = GroupTree(ranks.group, ranks.members, ranks.me)
        return tree.combined(value, combine, conclude)
    first, *others = ranks.gathered(value)
    for other in others:
        first = combine(first, other)
    return conclude(first) if conclude else first
