"""Heartbeats: every rank tells the others through the store how far it has come."""

from __future__ import annotations

import datetime
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import torch.distributed as dist

from synth.runtime.grid.launched_job import (
    job_name,
    reason_of,
    store_address,
    store_place,
)
from synth.runtime.grid.local_processes import birth
from synth.runtime.grid.seals import read_now, sealed, unsealed
from synth.runtime.grid.word_counter import TrafficCounter

TICK = 0.5  # seconds between two heartbeats
WATCH_ALL = 32  # ranks; of more, each reads the heartbeats of O(log P) others
NONE = ("", 0, "")  # of no known process
STORE_FAULTS = RuntimeError, ValueError, OSError


class Sign(NamedTuple):
    """A heartbeat of a rank.

    ticks: its number. state: "here" while the rank takes part. reached, at: how far
    the rank has come, as a number and in words. host, pid, began: its process.
    """

    ticks: int
    state: str
    who: str
    reached: int
    at: str
    host: str
    pid: int
    began: str

    @property
    def process(self) -> tuple[str, int, str]:
        """What tells its process from all others."""
        return self.host, self.pid, self.began


class Heartbeats:
    """Sends this rank's heartbeats, and reads those of its peers, in a thread.

    The peers are all ranks, or of many those at the distances 1, 2, 4, 8, ... So every
    rank is read by others, and each look takes O(log P) calls of the store.

    name_of: the name of a rank in messages.
    timeout: seconds without a sign of life from the store or from a rank.
    job: what the ranks that watch each other have in common.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        name_of: Callable[[int], str],
        idle: bool,
        timeout: float,
        job: str | None = None,
    ) -> None:
        self.rank, self.size, self.idle = rank, size, idle
        self.name_of, self.who = name_of, name_of(rank)
        self.timeout, self.born = timeout, time.monotonic()
        self.traffic = TrafficCounter()
        self.traffic.latest = "the meeting of the ranks"
        self.members = list(range(size))  # their numbers in the job
        self.ticks, self.state = 0, "here"
        self.parent = os.getppid()
        self.ending, self.signing = threading.Lock(), threading.Lock()
        self.job = job_name() if job is None else job
        self.peers = peers_of(rank, size)
        self.first_key = f"first fault in {self.job}"
        self.knows_end = False  # that the keeper of the store has left
        self.own = socket.gethostname(), os.getpid(), birth(os.getpid())
        self.store: Any = None
        self.met = self.asking = False
        self.answered = self.born  # when the store answered last
        self.store_fault = ""
        self.failure_at = 0.0  # when this rank saw that another one has failed
        self.first_fault = ""  # what that one said
        self.keeper: int | None = 0  # the rank that keeps the store, if one does
        self.seen: dict[int, Sign] = {}  # rank -> its latest known heartbeat
        self.gone_since: dict[tuple[int, str], float] = {}  # see `require_siblings`
        self.beside: set[int] = set()  # ranks that were seen to run
        self.silent: set[int] = set()  # ranks that a stuck rank has not heard
        self.blamed, self.woken = "", threading.Event()
        self.severity = 0  # of what is blamed: 0 lost, else how late
        self.knows_why = False  # the reason why this rank ends names the lost rank
        self.courier: threading.Thread | None = None

    def connect(self, store: Any = None) -> None:
        """Send the first heartbeat. store: a connection of its own; None to make one.

        Raises `RuntimeError` if another process has joined as this rank.
        """
        self.store = store or dist.TCPStore(  # type: ignore[attr-defined,unused-ignore]
            *store_address(self.size),
            is_master=False,
            timeout=datetime.timedelta(seconds=self.timeout),
            wait_for_workers=False,
        )
        if not self.is_first():
            raise RuntimeError(
                f"another process has joined as rank {self.rank}: two jobs use"
                f" {store_place()}; give each job a MASTER_PORT of its own"
            )
        self.sign()
        self.count_in("have come")
        self.answered = time.monotonic()
        self.courier = threading.Thread(target=self.carry, daemon=True)
        self.courier.start()

    def key(self, rank: int) -> str:
        """Where the store holds the heartbeat of a rank."""
        return f"sign of rank {rank} in {self.job}"

    def count_in(self, what: str, by: int = 1) -> int:
        """How many ranks have said something once, with this one; by 0: without it."""
        return int(self.store.add(f"ranks that {what} in {self.job}", by))

    def is_first(self) -> bool:
        """Whether no other process has joined as this rank."""
        key = f"joined as {self.key(self.rank)}"
        own = sealed(key, json.dumps([*self.own, id(self)]))
        there = self.store.compare_set(key, "", own)
        if unsealed(key, there) is None:  # what a stranger wrote is written over
            self.store.set(key, own)
            return True
        return bool(there.decode() == own)

    def sign(self) -> None:
        """Send a heartbeat."""
        key = self.key(self.rank)
        with self.signing:
            self.ticks += 1
            reached, at = self.place()
            beat = Sign(self.ticks, self.state, self.who, reached, at, *self.own)
            self.store.set(key, sealed(key, json.dumps(beat)))

    def place(self) -> tuple[int, str]:
        """How far this rank has come, as a number and in words."""
        return 0 if self.idle else self.traffic.started, self.traffic.latest

    def reached(self) -> int:
        """How far a rank has come that is not late."""
        return self.traffic.started

    def signs(self) -> list[Sign]:
        """The latest heartbeats of the peers."""
        return [self.heard(rank) for rank in self.peers]

    def heard(self, rank: int) -> Sign:
        """A rank's latest heartbeat, which another process may have deleted."""
        text = read_now(self.store, self.key(rank))
        sign = None if text is None else sign_of(text)
        if sign is None:
            unknown = Sign(0, "here", self.name_of(rank), 0, "an unknown place", *NONE)
            sign = self.seen.get(rank, unknown)
        self.seen[rank] = sign
        return sign

    def carry(self) -> None:
        """The thread that waits for the store: heartbeats go out, and some come in."""
        while self.state == "here":
            try:
                self.sign()
                self.look()
                self.answered = time.monotonic()
            except STORE_FAULTS as error:
                self.store_fault = reason_of(error)
                return
            self.woken.wait(TICK)

    def look(self) -> None:
        """Read heartbeats. A keeper of the store that is gone cannot be asked."""
        if not self.failure_at:
            told = read_now(self.store, self.first_key)
            if told is not None:
                self.first_fault, self.failure_at = told, time.monotonic()
        if not self.met:
            return
        if self.asking:
            self.signs()
        elif self.keeper is not None and self.heard(self.keeper).state == "done":
            self.know_end()

    def know_end(self) -> None:
        """Let the keeper of the store know that this rank needs it no more."""
        if not self.knows_end:
            self.knows_end = True
            self.count_in("know the end")

    def farewell(self) -> None:
        """The last heartbeat. The last rank of all removes what they have written."""
        with suppress(*STORE_FAULTS):
            self.sign()
            self.know_end()
            if self.count_in("have left") == self.size:
                self.remove_keys()

    def remove_keys(self) -> None:
        """Remove all keys of these ranks, which have left."""
        counted = "have come", "know the end", "have left"
        for rank in range(self.size):
            self.store.delete_key(self.key(rank))
            self.store.delete_key(f"joined as {self.key(rank)}")
        for what in counted:
            self.store.delete_key(f"ranks that {what} in {self.job}")


def peers_of(rank: int, size: int) -> list[int]:
    """The ranks whose heartbeats a rank reads; itself, too, where these are all."""
    if size <= WATCH_ALL:
        return list(range(size))
    steps = [1 << place for place in range((size - 1).bit_length())]
    found = {(rank + sign * step) % size for step in steps for sign in (1, -1)}
    return sorted(found - {rank})


def sign_of(text: str) -> Sign | None:
    """A heartbeat from its JSON text; None if it is none."""
    kinds = int, str, str, int, str, str, int, str
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(told, list) and list(map(type, told)) == list(kinds):
        return Sign(*told)
    return None
