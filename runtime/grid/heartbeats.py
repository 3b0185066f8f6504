"""Heartbeats: every rank tells the others through the store how far it has come."""

from __future__ import annotations

import datetime
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from synth.runtime.grid.launched_job import job_name, reason_of, store_place
from synth.runtime.grid.local_processes import birth
from synth.runtime.grid.word_counter import TrafficCounter

TICK = 0.5  # seconds between two heartbeats
STORE_FAULTS = RuntimeError, ValueError, OSError


class Heartbeats:
    """Sends this rank's heartbeats, and reads those of the others, in a thread.

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
        job = job_name() if job is None else job
        self.keys = [f"sign of rank {peer} in {job}" for peer in range(size)]
        self.first_key = f"first fault in {job}"
        self.own = socket.gethostname(), os.getpid(), birth(os.getpid())
        self.store: Any = None
        self.met = self.asking = False
        self.answered = self.born  # when the store answered last
        self.store_fault = ""
        self.failure_at = 0.0  # when this rank saw that another one has failed
        self.first_fault = ""  # what that one said
        self.keeper: int | None = 0  # the rank that keeps the store, if one does
        self.seen: dict[int, list[Any]] = {}  # rank -> its latest known heartbeat
        self.gone_since: dict[tuple[int, str], float] = {}  # see `require_siblings`
        self.beside: set[int] = set()  # ranks that were seen to run
        self.silent: set[int] = set()  # ranks that a stuck rank has not heard
        self.blamed, self.woken = "", threading.Event()
        self.knows_why = False  # the reason why this rank ends names the lost rank
        self.courier: threading.Thread | None = None

    def connect(self, store: Any = None) -> None:
        """Send the first heartbeat. store: a connection of its own; None to make one.

        Raises `RuntimeError` if another process has joined as this rank.
        """
        self.store = store or dist.TCPStore(  # type: ignore[attr-defined,unused-ignore]
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            timeout=datetime.timedelta(seconds=self.timeout),
            wait_for_workers=False,
        )
        if self.store.add(f"joined as {self.keys[self.rank]}", 1) > 1:
            raise RuntimeError(
                f"another process has joined as rank {self.rank}: two jobs use"
                f" {store_place()}; give each job a MASTER_PORT of its own"
            )
        self.sign()
        self.answered = time.monotonic()
        self.courier = threading.Thread(target=self.carry, daemon=True)
        self.courier.start()

    def sign(self) -> None:
        """Send a heartbeat."""
        with self.signing:
            self.ticks += 1
            beat = [self.ticks, self.state, self.who, *self.place(), *self.own]
            self.store.set(self.keys[self.rank], json.dumps(beat))

    def place(self) -> tuple[int, str]:
        """How far this rank has come, as a number and in words."""
        return 0 if self.idle else self.traffic.started, self.traffic.latest

    def reached(self) -> int:
        """How far a rank has come that is not late."""
        return self.traffic.started

    def signs(self) -> list[list[Any]]:
        """The latest heartbeat of every rank."""
        found = [json.loads(beat) for beat in self.store.multi_get(self.keys)]
        self.seen = dict(enumerate(found))
        return found

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
        if not self.failure_at and self.store.check([self.first_key]):
            self.first_fault = self.store.get(self.first_key).decode()
            self.failure_at = time.monotonic()
        if not self.met:
            return
        if self.asking:
            self.signs()
        elif self.keeper is not None:
            self.seen[self.keeper] = json.loads(self.store.get(self.keys[self.keeper]))
