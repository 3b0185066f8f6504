"""Calls and bytes of each rank, from 16 to 65 536 ranks, which one process plays: flat or logarithmic."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from counting_store import CountingStore

from synth.runtime.comm.agreement import Told, _own
from synth.runtime.comm.group_tree import FRAME, GroupTree
from synth.runtime.grid import meeting
from synth.runtime.grid.heartbeats import Heartbeats
from synth.runtime.grid.hosts import HostList
from synth.runtime.grid.rank_tree import Said, StoreTree

PAGE = Path(__file__).parents[3] / "docs" / "scale.md"
FEW = (16, 64, 256, 1024)
MANY = (4096, 16384, 65536)
Counts = tuple[int, int]


def _some(size: int) -> list[int]:
    """Ranks of which one looks or signs; all of a kind do the same."""
    return sorted({0, 1, 2, size // 3, size // 2, size - 1})


def _beats(store: CountingStore, rank: int, size: int) -> Heartbeats:
    beats = Heartbeats(rank, size, "rank {}".format, False, 60.0, "synth/0/start 0")
    beats.own, beats.store, beats.met = ("node-0000", 123456, "12345678"), store, True
    return beats


def joined(size: int) -> Counts:
    """A rank joins: it is the only one of its number, sends a heartbeat, and all wait for all, then part."""
    store = CountingStore()
    for what in ("here", "through"):
        store.held[f"ranks {what}"], store.held[f"all {what}"] = str(size - 7).encode(), b""
    for rank in _some(size):
        store.now = rank
        beats = _beats(store, rank, size)
        assert beats.is_first()
        beats.sign()
        beats.count_in("have come")
        meeting.wait_until_all(store, size, "here")
        meeting.part(store, rank, size)
    return store.most()


def combined(size: int) -> Counts:
    """A group of all ranks is created; or plans are compared. No key remains."""
    store = CountingStore()
    _tree(store, "synth/0/group", range(size))
    assert store.held == {}
    return store.most()


def _tree(store: CountingStore, name: str, ranks: range) -> None:
    """Some ranks combine a value."""
    trees = [StoreTree(store, name, place, len(ranks), 60.0) for place in range(len(ranks))]
    found = list[Any](ranks)
    for place in reversed(range(len(ranks))):
        store.now = ranks[place]
        found[place] = trees[place].up([3, []], max)
    for place, store.now in enumerate(ranks):
        assert trees[place].down(found[place]) == [3, []]


def listed(size: int) -> Counts:
    """Ranks find those of their host, eight. No key remains."""
    store = CountingStore()
    lists = [HostList(store, "synth/0/use", (f"node-{rank // 8}", ""), rank) for rank in range(size)]

    def each(run: Callable[[int], Any]) -> list[Any]:
        found = []
        for store.now in range(size):
            found.append(run(store.now))
        return found

    each(lambda rank: lists[rank].enter())
    _tree(store, "synth/0/use/all", range(size))
    found = each(lambda rank: lists[rank].read())
    assert found[size - 1] == list(range(size - 8, size))
    for first in range(0, size, 8):
        _tree(store, f"synth/0/use/from {first}", range(first, first + 8))
    each(lambda rank: lists[rank].leave(found[rank]))
    assert store.held == {}
    return store.most()


def looked(size: int) -> Counts:
    """Each half second a rank sends a heartbeat and looks for a fault and for the keeper of the store."""
    return _look(size, asking=False)


def stuck(size: int) -> Counts:
    """The same of a rank that is stuck, and asks its peers."""
    return _look(size, asking=True)


def _look(size: int, asking: bool) -> Counts:
    store = CountingStore()
    beats = {rank: _beats(store, rank, size) for rank in _some(size)}
    for rank in {peer for each in beats.values() for peer in each.peers} | {0}:
        _beats(store, rank, size).sign()
    store.calls.clear(), store.sent.clear(), store.received.clear()
    for rank, each in beats.items():
        store.now, each.asking = rank, asking
        each.sign()
        each.look()
        assert len(each.seen) == (len(set(each.peers)) if asking else 1)
    return store.most()


class Post(GroupTree):
    """A tree whose messages are counted instead of sent."""

    queues: dict[tuple[int, int], deque[Any]]
    counts: Counter[int]

    def __init__(self, members: range, me: int, queues: Any, counts: Counter[int]) -> None:
        super().__init__(None, members, me)
        self.me, self.queues, self.counts = me, queues, counts

    def _send(self, peer: int, value: Any) -> None:
        self.counts[self.me] += 1
        self.queues.setdefault((self.me, peer), deque()).append(value)

    def _received(self, peer: int) -> Any:
        self.counts[self.me] += 1
        return self.queues[peer, self.me].popleft()


def agreed(size: int) -> Counts:
    """All ranks agree before a pass. Messages are of one size."""
    queues, counts = dict[tuple[int, int], deque[Any]](), Counter[int]()
    trees = [Post(range(size), rank, queues, counts) for rank in range(size)]
    found: list[Any] = [_own(rank, b"forward of 4 inputs", 7, "0" * 16, False) for rank in range(size)]
    for rank in reversed(range(size)):
        found[rank] = trees[rank].to_root(found[rank], Told.with_child)
    told = [tree.from_root(each) for tree, each in zip(trees, found, strict=True)]
    assert set(told) == {Told(Said("forward of 4 inputs", 0), Said("7", 0), Said("0" * 16, 0), False)}
    return max(counts.values()), max(counts.values()) * FRAME


ROWS: dict[str, Callable[[int], Counts]] = {
    "join, wait for all, part": joined,
    "create a group": combined,
    "find the ranks of a host": listed,
    "look, each 0.5 s": looked,
    "look while stuck": stuck,
    "agree before a pass": agreed,
}


def _of_page() -> dict[tuple[str, int], Counts]:
    """The table of the page: (what, ranks) -> calls and bytes."""
    sizes: list[int] = []
    found = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == "a rank's calls / bytes at P =":
            sizes = [int(cell.replace(" ", "")) for cell in cells[1:]]
        elif cells[0] in ROWS:
            for size, cell in zip(sizes, cells[1:], strict=True):
                calls, size_in_bytes = re.findall(r"\d+", cell.replace(" ", ""))
                found[cells[0], size] = int(calls), int(size_in_bytes)
    return found


@pytest.mark.parametrize("what", ROWS)
@pytest.mark.parametrize("size", [*FEW, *(pytest.param(n, marks=pytest.mark.slow) for n in MANY)])
def test_the_page_has_the_calls_and_bytes_of_a_rank(what: str, size: int) -> None:
    assert _of_page()[what, size] == ROWS[what](size)


@pytest.mark.parametrize("what", ROWS)
def test_calls_and_bytes_are_flat_or_logarithmic(what: str) -> None:
    """Each time that P grows fourfold, no more is added than a few calls; of bytes, what these carry."""
    page, sizes = _of_page(), (*FEW, *MANY)
    for which, most in ((0, 13), (1, 6144)):
        counts = [page[what, size][which] for size in sizes]
        steps = [after - before for before, after in pairwise(counts[1:])]
        assert max(steps) <= most
        assert counts[-1] <= counts[1] + 5 * most


def test_every_rank_is_watched_and_watches_few() -> None:
    for size in (2, 5, 32, 33, 100, 1000, 4096):
        watched = Counter(peer for rank in range(size) for peer in _peers(rank, size) if peer != rank)
        assert set(watched) == set(range(size))
        assert max(watched.values()) == min(watched.values()) <= max(31, 2 * size.bit_length())


def _peers(rank: int, size: int) -> list[int]:
    from synth.runtime.grid.heartbeats import peers_of

    return peers_of(rank, size)


def test_the_last_rank_that_leaves_removes_all_keys() -> None:
    store, size = CountingStore(), 40
    beats = [_beats(store, rank, size) for rank in range(size)]
    for each in beats:
        assert each.is_first()
        each.sign()
        each.count_in("have come")
    for each in beats:
        assert store.held
        each.state = "done"
        each.farewell()
    assert store.held == {}
