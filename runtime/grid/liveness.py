"""Failure detector: ranks send heartbeats, and name the rank that sends none."""

from __future__ import annotations

import datetime
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from typing import Any, NoReturn

import torch.distributed as dist

from synth.runtime.grid.word_counter import TrafficCounter

TICK = 0.5  # seconds between two heartbeats
SILENCE = 2.0  # after a failure, a rank without a heartbeat for so long is lost


class Watch:
    """A thread that reports this rank's progress, and ends the process with code 6.

    It ends the process when the launcher is gone or sends a signal, and when another
    rank sends no heartbeat. The main thread may hang in a collective meanwhile. Before
    the end it prints which ranks are lost or late, and where they were last.
    """

    def __init__(
        self, rank: int, size: int, who: str, idle: bool, timeout: float
    ) -> None:
        self.rank, self.who, self.idle = rank, who, idle
        self.timeout = timeout
        self.traffic = TrafficCounter()
        self.ticks, self.state = 0, "here"
        self.parent, self.lock = os.getppid(), threading.Lock()
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self.keys = [f"sign of rank {peer} in {attempt}" for peer in range(size)]
        self.first_key = f"first fault in {attempt}"
        self.store = dist.TCPStore(  # type: ignore[attr-defined,unused-ignore]
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            timeout=datetime.timedelta(seconds=timeout),
            wait_for_workers=False,
        )
        self.own = socket.gethostname(), os.getpid(), birth(os.getpid())
        self.sign()

    def begin(self) -> None:
        """Start the thread, and catch the signals that would end this rank."""
        self.bell, self.ring = os.pipe()
        os.set_blocking(self.ring, False)
        signal.set_wakeup_fd(self.ring)  # works even while the main thread hangs
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        sys.excepthook = lambda kind, error, trace: self.end(reason_of(error))
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def close(self) -> None:
        """Stop the thread: only the exit remains."""
        with self.lock:
            self.state = "done"
            self.sign()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.write(self.ring, b"\0")
        self.thread.join()  # a thread in the store would abort the exit

    def sign(self) -> None:
        """Send a heartbeat."""
        self.ticks += 1
        place = 0 if self.idle else self.traffic.started, self.traffic.latest
        beat = [self.ticks, self.state, self.who, *place, *self.own]
        self.store.set(self.keys[self.rank], json.dumps(beat))

    def signs(self) -> list[list[Any]]:
        """The latest heartbeat of every rank."""
        return [json.loads(beat) for beat in self.store.multi_get(self.keys)]

    def watch(self) -> None:
        """The thread: send heartbeats, and watch for what must end this rank."""
        since, started = time.monotonic(), -1
        heard: list[tuple[int, float]] = []  # by rank: its ticks, and when they changed
        while self.state == "here":
            rung, _, _ = select.select([self.bell], [], [], TICK)
            if self.state != "here":
                return
            if rung:
                number = os.read(self.bell, 1)[0]
                self.end(f"stopped by {signal.Signals(number).name}")
            if os.getppid() != self.parent:
                self.end("its launcher is gone")
            try:
                with self.lock:
                    self.sign()
                now = time.monotonic()
                if started != self.traffic.started:
                    since, started, heard = now, self.traffic.started, []
                if (
                    now - since < self.timeout / 2
                ):  # ask others only if this rank is stuck
                    continue
                signs = self.signs()
            except RuntimeError:
                if self.state == "here":
                    self.end("the launcher or rank 0, who keeps the store, is gone")
                return
            heard = heard or [(0, now)] * len(signs)
            heard = [
                old if sign[0] == old[0] or sign[1] != "here" else (sign[0], now)
                for sign, old in zip(signs, heard, strict=True)
            ]
            if any(
                now - when > self.timeout / 2 and sign[1] == "here"
                for sign, (_, when) in zip(signs, heard, strict=True)
            ):
                self.end(f"no sign of life from every rank in {self.timeout:g} s")

    def end(self, reason: str) -> NoReturn:
        """Print why this rank ends and which rank failed first, and exit at once."""
        with self.lock:  # a second caller waits here until the exit
            self.state, latest = "failed", self.traffic.latest
            told = f"{self.who}: failed, last started {latest}: {reason}"
            try:
                blamed = self.blame(f"{self.who}, last started {latest}: {reason}")
            except RuntimeError:  # the store is gone
                blamed = ""
            say(told + blamed, sys.stderr)
            os._exit(6)

    def blame(self, own: str) -> str:
        """The ranks that are lost, else those that are late, else the first to fail."""
        self.sign()
        reached = self.traffic.started
        first = self.store.compare_set(self.first_key, "", own).decode()
        before, begin = self.signs(), time.monotonic()
        lost = before
        while lost and time.monotonic() - begin < SILENCE:
            time.sleep(0.1)
            pairs = list(zip(before, self.signs(), strict=True))
            lost = [new for old, new in pairs if old[0] == new[0] and new[1] == "here"]
        for sign in lost:
            end_lost(*sign[5:])
        signs = self.signs()
        least = min((sign[3] for sign in signs if sign[3]), default=0)
        late = [
            sign for sign in signs if sign[1] == "here" and sign[3] == least < reached
        ]
        named = [f"; {who} is lost, last seen at {at}" for _, _, who, _, at, *_ in lost]
        if not named:
            named = [f"; {who} is late, still at {at}" for _, _, who, _, at, *_ in late]
        if not named and first != own:
            named = [f"; the first to fail was {first}"]
        return "".join(named[:8])


def birth(pid: int) -> str:
    """When a process of this machine started: tells apart processes with one id."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def end_lost(host: str, pid: int, began: str) -> None:
    """Kill a lost rank after a failure, if it is on this machine."""
    if host == socket.gethostname() and began and began == birth(pid):
        os.kill(pid, signal.SIGKILL)


def reason_of(error: BaseException) -> str:
    """An error as one line."""
    text = (str(error).strip().splitlines() or [""])[0]
    text = text.partition(". This is typically")[
        0
    ]  # gloo's guess, after its source line
    text = text.partition("] ")[2] if text.startswith("[/") else text
    if text and isinstance(error, RuntimeError | ValueError | OSError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def say(line: str, to: Any = None) -> None:
    """Print one line at once, in one piece even if many ranks print."""
    stream = to or sys.stdout
    stream.write(line + "\n")
    stream.flush()
