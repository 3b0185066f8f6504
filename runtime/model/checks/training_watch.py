"""Failure detector of a training loop: the ranks of a network watch each other.

A training loop is the user's program, so this catches no signals and replaces no exit.
It ends the process only if another rank, or the store, sends no sign of life for as
long as the timeout of the process group. A rank that raises says so to the others.
"""

from __future__ import annotations

import atexit
import functools
import gc
import os
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

import synth.runtime
from synth.runtime.grid.heartbeats import STORE_FAULTS, TICK
from synth.runtime.grid.launched_job import (
    agent_store,
    ends_within,
    reason_of,
    say_at_once,
    store_keeper,
)
from synth.runtime.grid.liveness import LAST_WORDS, LONGEST, Watch
from synth.runtime.grid.ranks import Ranks, use_of

if TYPE_CHECKING:
    from synth.runtime.model.network import Network

AWAY, WAITING = 1, 2  # what the main thread does: something else, or a collective
LIBRARIES = tuple(
    os.path.dirname(os.path.abspath(str(file))) + os.sep
    for file in (os.__file__, torch.__file__, synth.runtime.__file__, synth.__file__)
)
INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
LOOKING = threading.Lock()
COLLECTIVES = os.path.join("torch", "distributed"), os.path.join("runtime", "comm")


class TrainingWatch(Watch):
    """Watches the ranks of one network until `leave`, or until the process ends."""

    def __init__(self, ranks: Ranks) -> None:
        job = f"network {use_of(ranks.members)}"
        members = ranks.members
        super().__init__(
            ranks.me,
            ranks.size,
            lambda place: f"rank {members[place]}",
            False,
            ranks.timeout(),
            job,
        )
        self.members = list(ranks.members)
        self.keeper = 0 if ranks.members[0] == 0 else None
        self.keeps_store = ranks.rank == 0 and not agent_store()
        self.main = threading.main_thread().ident
        self.lost_store_at, self.released = 0.0, False
        self.bell, self.ring = os.pipe()
        self.caught = {}
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()  # a store that is gone now may be tried for long
        try:
            with keeper_named():
                self.connect(own_store())
        except BaseException:
            self.state = "left"
            self.wake()
            raise
        atexit.register(self.leave_at_exit)
        hook = sys.excepthook
        if not isinstance(hook, ExceptionHook):
            hook = sys.excepthook = ExceptionHook(hook)
        hook.watches.add(self)

    # -- what differs from a program --------------------------------------------------

    def look(self) -> None:
        """Read heartbeats; the ranks have met when all have sent one."""
        if not self.met:
            self.met = self.count_in("have come", 0) >= self.size
        super().look()

    def place(self) -> tuple[int, str]:
        """Whether this rank waits in a collective; what it started last, and where."""
        waits, where = whereabouts(self.main or 0)
        latest = self.traffic.latest + (f", at {where}" if where else "")
        return WAITING if waits else AWAY, latest

    def reached(self) -> int:
        """Ranks that do not wait in a collective are late."""
        return WAITING

    def watch(self) -> None:
        """The same; the pipe of this thread ends with it."""
        try:
            super().watch()
        finally:
            os.close(self.bell)

    def carry(self) -> None:
        """The same; a network that was collected says farewell from this thread."""
        super().carry()
        if self.released:
            self.farewell()
            atexit.unregister(self.leave_at_exit)

    def heeds_launcher(self) -> bool:
        """A script may start ranks and end; torchrun stays as long as its ranks."""
        return "TORCHELASTIC_RUN_ID" in os.environ

    def limit_life(self, seconds: float | None = None) -> None:
        """Set no timer: those of the process belong to the user's program."""

    def require_store(self, now: float) -> None:
        """End this rank if the store is gone or silent, and a rank is waited for."""
        if self.store_fault and self.keeper_is_done():
            self.state = "done"  # the job ends: nobody is left to be watched
            return
        if not self.store_fault:
            super().require_store(now)
            return
        if self.lost_store_at == 0.0:
            self.lost_store_at, self.lost_at = now, self.traffic.started
        if self.lost_at != self.traffic.started:
            self.lost_store_at, self.lost_at = now, self.traffic.started
        elif self.place()[0] == WAITING and now - self.lost_store_at > self.timeout:
            super().require_store(now)

    def keeper_is_done(self) -> bool:
        """Whether the rank that keeps the store has left in order."""
        return self.keeper in self.seen and self.seen[self.keeper or 0].state == "done"

    # -- the end ----------------------------------------------------------------------

    def mourn(self, error: BaseException) -> None:
        """Tell the others, and the user, that an exception ends this rank.

        A rank that another one has let down ends at once: destructors of its process
        groups would wait for ranks that are gone. Else the process ends as Python ends
        it, or by the kernel after the timeout.
        """
        self.state, begin = "failed", time.monotonic()
        seconds, reason = LAST_WORDS + self.more, reason_of(error)
        if not ends_within(seconds, lambda: self.speak(reason)):
            say_at_once(self.told(reason))
        self.keep_store(begin + seconds)
        if self.blamed or self.store_fault:
            with suppress(OSError, ValueError):
                sys.stdout.flush()
            os._exit(6)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, min(self.timeout, LONGEST))

    def release(self) -> None:
        """Stop to watch because the network was collected.

        The collector may run in any thread, inside of any function of Python's
        libraries. So this takes no lock, starts no thread and waits for nothing: the
        two threads see it and end.
        """
        if os.getpid() != self.own[1]:  # a fork of this process
            return
        if self.state == "here":
            self.released, self.state = True, "done"
        self.wake()

    def wake(self) -> None:
        """Let the thread that decides look at the state: the other end is closed."""
        ring, self.ring = self.ring, -1
        if ring >= 0:
            os.close(ring)

    def leave(self) -> None:
        """Stop to watch: this rank needs the others no more."""
        if os.getpid() != self.own[1]:
            return
        if self.state == "here":
            self.state = "done"
            ends_within(TICK, self.farewell)
        atexit.unregister(self.leave_at_exit)
        self.wake()
        if threading.current_thread() is not self.thread:
            self.thread.join(2 * LAST_WORDS if self.state == "failed" else TICK)
        if self.courier:
            self.woken.set()
            self.courier.join(TICK)

    def leave_at_exit(self) -> None:
        """The same before the process ends: others read it while there is a store."""
        in_order = self.state == "here"
        self.leave()
        if in_order and self.keeps_store and os.getpid() == self.own[1]:
            ends_within(LAST_WORDS, self.until_read)

    def until_read(self) -> None:
        """Wait until every other rank knows that this one has left, or has left."""
        with suppress(*STORE_FAULTS):
            key = f"ranks that have left in {self.job}"
            while self.met and self.store.check([key]):
                if self.count_in("know the end", 0) >= self.size:
                    return
                time.sleep(TICK / 5)


def own_store() -> Any:
    """A connection of its own to the job's store."""
    torch_own: Any = dist.distributed_c10d
    store = torch_own._get_default_store()
    store.check(["synth"])  # an open connection to none fails at once, a new one waits
    return store.clone()


@contextmanager
def keeper_named() -> Iterator[None]:
    """Raise `RuntimeError` with the rank that keeps the store, if that is gone."""
    try:
        yield
    except dist.DistError as error:
        raise RuntimeError(f"{store_keeper()} is gone ({reason_of(error)})") from error


class ExceptionHook:
    """Prints an exception as before, then lets the watches of this process tell it."""

    def __init__(self, before: Callable[..., Any]) -> None:
        self.before = before
        self.watches: weakref.WeakSet[TrainingWatch] = weakref.WeakSet()

    def __call__(self, kind: Any, error: BaseException, trace: Any) -> None:
        self.before(kind, error, trace)
        for each in tuple(self.watches):
            if each.own[1] != os.getpid():
                continue
            if each.state == "here":
                each.mourn(error)  # in the main thread, where Python calls this
            elif each.state == "failed":
                each.thread.join(2 * LAST_WORDS)  # it ends this process


@contextmanager
def watched(ranks: Ranks) -> Iterator[Callable[[Network], Network]]:
    """Watch these ranks while they make a network, then as long as that lives.

    Yields a function that takes the network. One rank alone watches nobody.
    """
    watch = TrainingWatch(ranks) if ranks.size > 1 else None

    def adopt(network: Network) -> Network:
        if watch is not None:
            watch.traffic = network.program.context.traffic
            lasting = network.program.context.process_groups  # of all its step graphs
            weakref.finalize(lasting, watch.release).atexit = False
        return network

    try:
        yield adopt
    except BaseException as error:
        if watch is not None and not is_of_torchs_collective(error):
            watch.leave()  # else the ranks will hear why this one ends, if it does
        raise


def whereabouts(thread: int) -> tuple[bool, str]:
    """Whether a thread waits for other ranks, and the line of the user's code it is at.

    The collector is off meanwhile. A destructor that it calls may let the other threads
    run. The frame that Python just makes an object of would then be gone, and the walk
    would read freed memory (`f_back` of CPython 3.11). The start of a thread would wait
    for the lock that Python holds in `sys._current_frames`.
    """
    with LOOKING:
        collects = gc.isenabled()
        gc.disable()
        try:
            frame = sys._current_frames().get(thread)
            return is_collective(frame), user_line(frame)
        finally:
            if collects:
                gc.enable()


def is_collective(frame: FrameType | None) -> bool:
    """Whether this frame is of a function that waits for other ranks."""
    file = frame.f_code.co_filename if frame else ""
    return any(folder in file for folder in COLLECTIVES)


def is_of_torchs_collective(error: BaseException) -> bool:
    """Whether torch.distributed raised an error: a rank may be lost."""
    first = error.__cause__ or error  # of which a sentence was made
    frames = [frame for frame, _ in traceback.walk_tb(first.__traceback__)]
    return bool(frames) and COLLECTIVES[0] in frames[-1].f_code.co_filename


def user_line(frame: FrameType | None) -> str:
    """File and line of the innermost call outside of the libraries.

    That of an installed package, such as one that loads data, if there is no other.
    """
    installed = ""
    while frame:
        file = frame.f_code.co_filename
        if not file.startswith("<") and not is_library(file):
            line = f"{os.path.basename(file)}:{frame.f_lineno}"
            if not any(folder in file for folder in INSTALLED):
                return line
            installed = installed or line
        frame = frame.f_back
    return installed


@functools.cache
def is_library(file: str) -> bool:
    """Whether a source file belongs to Python, torch or synth."""
    return os.path.abspath(file).startswith(LIBRARIES)
