"""Failure detector: ranks send heartbeats, and name the rank that sends none.

The thread that decides never waits for another process. A second thread sends and reads
heartbeats, because the store may stop answering. The last words have a deadline, too.
So a rank always ends, within its timeout and a few seconds.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import NoReturn

from synth.runtime.grid.heartbeats import (
    STORE_FAULTS,
    TICK,
    WATCH_ALL,
    Heartbeats,
    Sign,
)
from synth.runtime.grid.launched_job import (
    agent_store,
    ends_within,
    plain,
    reason_of,
    say_at_once,
    say_last,
    store_keeper,
)
from synth.runtime.grid.local_processes import (
    end_lost,
    end_sibling,
    is_halted,
    is_orphan,
    is_running,
    siblings,
    siblings_by_fate,
)
from synth.runtime.grid.seals import read_now, sealed, unsealed

TO_START = 2.0  # seconds in which a launcher usually has started all its ranks
MISSING = 1.0  # seconds without a process that was there, which a glance can miss
UNSEEN = 10.0  # the same of one that never was: a busy launcher may still start it
PATIENCE = 0.4  # of the timeout: until a stuck rank asks others, and until they answer;
# until a rank is missed that was never there, or is stopped, before all have met
SILENCE = 2.0  # after a failure, a rank without a heartbeat for so long is lost
AGREEING = 1.2  # seconds more, in which many ranks find out whom they blame together
BLAMING = 3.0  # seconds in which a failed rank finds out who failed first
ANOTHER = "another rank has failed"
LONGEST = 2.0**31  # seconds of a timer of the system, which counts nanoseconds
LAST_WORDS = 3.5  # seconds from the reason to end until the end


class Watch(Heartbeats):
    """Threads that report this rank's progress, and end the process with code 6.

    They end it when the launcher is gone or sends a signal. They end it when the store
    or another rank sends no heartbeat, or when the ranks do not meet in time. The main
    thread may hang meanwhile. Before the end, this rank prints which ranks are missing,
    lost or late, and where they were last.
    """

    @property
    def many(self) -> bool:
        """Whether this rank watches some of the others only."""
        return self.size > WATCH_ALL

    @property
    def more(self) -> float:
        """Seconds that last words take longer."""
        return AGREEING if self.many else 0.0

    # -- life -----------------------------------------------------------------------

    def begin(self) -> None:
        """Start to watch, and catch the signals that would end this rank."""
        self.bell, self.ring = os.pipe()
        os.set_blocking(self.ring, False)
        signal.set_wakeup_fd(self.ring)  # works even while the main thread hangs
        self.caught = {
            number: signal.signal(number, lambda *_: None)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
            if signal.getsignal(number) != signal.SIG_IGN  # nohup ignores SIGHUP
        }
        sys.excepthook = lambda kind, error, trace: self.end(reason_of(error))
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()
        atexit.register(self.leave)

    def meet(self) -> None:
        """All ranks have sent a heartbeat: from now on all are waited for."""
        self.traffic.latest, self.met = "no communication yet", True

    def finish(self) -> None:
        """Tell the others that this rank is done, and stop."""
        self.state = "done"
        self.farewell()
        self.leave()

    def close(self) -> None:
        """The same at the end of a program: only the exit remains."""
        self.finish()
        self.limit_life()  # what follows may wait for other ranks

    def leave(self) -> None:
        """Stop both threads: one that is in the store would abort the exit."""
        self.state = "left" if self.state == "here" else self.state
        signal.set_wakeup_fd(-1)
        for number, handler in self.caught.items():
            signal.signal(number, handler)
        self.caught = {}
        with suppress(OSError):
            os.write(self.ring, b"\0")
        self.thread.join()
        self.woken.set()
        if self.courier:
            self.courier.join(2 * TICK)
        self.limit_life(0)
        atexit.unregister(self.leave)

    def limit_life(self, seconds: float | None = None) -> None:
        """Let the kernel end this process after some seconds; 0: let it live on.

        This is for a thread that hangs and keeps all others of the process waiting.
        """
        most = min(self.timeout + 4 if seconds is None else seconds, LONGEST)
        signal.setitimer(signal.ITIMER_REAL, most)

    # -- watching -------------------------------------------------------------------

    def watch(self) -> None:
        """The thread that decides whether this rank must end."""
        since, started = time.monotonic(), -1
        heard: dict[int, tuple[int, float]] = {}  # rank -> its ticks, when they changed
        bell = select.poll()  # `select.select` takes no file beyond the 1024th
        bell.register(self.bell, select.POLLIN)
        while self.state == "here":
            self.limit_life()
            rung = bell.poll(1000 * TICK)
            if self.state != "here":
                return
            number = os.read(self.bell, 1)[0] if rung else 0
            if number in self.caught:
                self.end(f"stopped by {signal.Signals(number).name}")
            gone = os.getppid() != self.parent or is_orphan()
            if gone and self.heeds_launcher():
                self.end("its launcher is gone")
            now = time.monotonic()
            # of many ranks, those beside one that is lost look for it at once
            if self.failure_at and now - self.failure_at > (
                0 if self.many else BLAMING
            ):
                self.end(ANOTHER)
            self.require_store(now)
            if started != self.traffic.started:
                since, started = now, self.traffic.started
            patience = PATIENCE * self.timeout
            self.asking = now - since >= patience  # if this rank is stuck
            if not self.asking:
                heard = {}
                continue
            for rank, sign in tuple(self.seen.items()):
                ticks, when = heard.get(rank, (-1, now))
                fresh = sign.ticks != ticks or sign.state != "here"
                heard[rank] = (sign.ticks, now) if fresh else (ticks, when)
            limit = now - patience
            self.silent = {rank for rank, (_, when) in heard.items() if when < limit}
            # One that runs on this machine may be slow: collectives have a timeout.
            if any(not is_running(*self.seen[rank].process) for rank in self.silent):
                self.end(f"no sign of life from every rank in {patience:g} s")

    def heeds_launcher(self) -> bool:
        """Whether this rank must end with the process that started it."""
        return True

    def require_store(self, now: float) -> None:
        """End this rank if the ranks do not meet, or if the store is gone."""
        waited = 0.0 if self.met else now - self.born
        if waited > TO_START:
            self.require_siblings(now)
        if waited > self.timeout:
            self.end(f"the ranks did not meet within {self.timeout:g} s")
        if self.courier and self.store_fault and self.state == "here":
            self.end(f"{store_keeper()} is gone")
        if self.courier and now - self.answered > self.timeout:
            self.end(f"{store_keeper()} does not answer for {self.timeout:g} s")

    def require_siblings(self, now: float) -> None:
        """End this rank if one beside it has ended or is stopped before they meet."""
        gone, stopped = siblings_by_fate()
        self.beside |= set(self.members) - gone
        fates = (
            (gone & self.beside, MISSING, "ended"),
            (gone - self.beside, min(UNSEEN, PATIENCE * self.timeout), "ended"),
            (stopped, PATIENCE * self.timeout, "was stopped"),
        )
        for ranks, patience, fate in fates:
            for rank in sorted(ranks & set(self.members)):
                since = self.gone_since.setdefault((rank, fate), now)
                if now - since >= patience:
                    name, self.knows_why = self.name_of(self.members.index(rank)), True
                    if rank in stopped:
                        end_sibling(rank)
                    self.end(f"{name} {fate} before the ranks met")
        known = {(r, fate) for ranks, _, fate in fates for r in ranks}
        self.gone_since = {k: t for k, t in self.gone_since.items() if k in known}

    # -- the end --------------------------------------------------------------------

    def end(self, reason: str) -> NoReturn:
        """Print why this rank ends and which rank failed first, and exit at once."""
        with self.ending:  # a second caller waits here until the exit
            try:
                self.state, begin = "failed", time.monotonic()
                seconds = LAST_WORDS + self.more
                if not ends_within(seconds, lambda: self.speak(reason)):
                    say_at_once(self.told(reason))
                self.keep_store(begin + seconds)
            finally:
                os._exit(6)

    def keep_store(self, end: float) -> None:
        """The rank that keeps the store ends last, so that the others learn why."""
        if self.rank != self.keeper or agent_store():
            return
        end += self.more  # others began later
        if self.store is None:  # it has no connection of its own yet
            time.sleep(max(0.0, end - time.monotonic()))
            return

        def wait() -> None:
            with suppress(*STORE_FAULTS):
                while (
                    self.many  # of which it reads some heartbeats only
                    or not self.met
                    or any(sign.state == "here" for sign in self.signs())
                ):
                    time.sleep(0.1)

        ends_within(max(0.0, end - time.monotonic()), wait)

    def speak(self, reason: str) -> None:
        """Print the reason, and whom to blame as far as that can be found out."""
        own = f"{self.who}, last started {self.traffic.latest}: {reason}"
        if not ends_within(BLAMING + self.more, lambda: self.blame(own)):
            self.store_fault = self.store_fault or "silent"
        say_last(self.told(reason))

    def told(self, reason: str) -> str:
        """The last words of this rank, with whom it blames so far."""
        own = f"{self.who}: failed, last started {self.traffic.latest}: {reason}"
        return plain(own + (self.blamed or self.guess()))

    def guess(self) -> str:
        """Whom to blame if the store is silent: rank 0, if that keeps the store."""
        if self.first_fault:
            return f"; the first to fail was {self.first_fault}"
        if self.knows_why:
            return ""
        if self.gone_since and not self.met:  # the first that were gone
            first = min(self.gone_since.values())
            lost = [r for (r, _), since in self.gone_since.items() if since == first]
            for rank in lost:
                end_sibling(rank)  # if it is stopped, and has not ended
            names = [self.name_of(self.members.index(rank)) for rank in sorted(lost)]
            return "".join(f"; {name} is lost" for name in names[:8])
        keeper = self.keeper
        if self.store_fault and agent_store():  # of another host, which is cut off
            signs = [self.seen[rank] for rank in sorted(self.silent)]
            far = [sign for sign in signs if sign.host != self.own[0]]
            return "".join(f"; {self.lost(sign)}" for sign in far[:8])
        if not self.store_fault or self.rank == keeper:
            return ""
        if keeper is None:
            return "; rank 0 is lost, which keeps the store"
        if keeper not in self.seen:
            name = self.name_of(keeper)
            return f"; {name} has ended or is cut off, who keeps the store"
        if not is_running(*self.seen[keeper].process):
            end_lost(*self.seen[keeper].process)
        return f"; {self.lost(self.seen[keeper])}"

    def lost(self, sign: Sign) -> str:
        """The words for a lost rank, from its latest heartbeat."""
        if sign.state == "done":
            return f"{sign.who} has left after {sign.at}"
        words = f"{sign.who} is lost, last seen at {sign.at}"
        if sign.host == self.own[0]:
            return words
        return f"{words}, or the link to its host {sign.host} is cut"

    def blame(self, own: str) -> None:
        """Find the ranks that are missing, lost or late, or the first to fail."""
        if self.store is None or self.store_fault:
            return
        try:
            self.sign()
            first = self.first_to_fail(own)
            end = time.monotonic() + BLAMING + self.more - TICK / 2
            blamed = "" if self.met or self.knows_why else self.missing()
            heard = own.endswith(ANOTHER)
            if not self.knows_why and (self.many or not heard):
                blamed = blamed or self.lost_or_late(may_be_late=not heard)
            if self.many:
                blamed = self.first_blamed(blamed, end)
            if not blamed and first != own:
                blamed = f"; the first to fail was {first}"
            self.blamed = blamed
        except STORE_FAULTS as error:
            self.store_fault = reason_of(error)

    def first_to_fail(self, own: str) -> str:
        """The words of the rank that failed first: this one, if no other has."""
        told = sealed(self.first_key, plain(own))
        there = self.store.compare_set(self.first_key, "", told)
        first = unsealed(self.first_key, there)
        if first is None:  # what a stranger wrote is written over
            self.store.set(self.first_key, told)
        return own if first in (None, plain(own)) else str(first)

    def first_blamed(self, blamed: str, end: float) -> str:
        """Whom the ranks blame together, of which each sees its peers alone.

        Who is lost counts before who is late, and the latest before others. A rank that
        blames nobody waits for what the others find.
        """
        key = f"blamed in {self.job}"
        own = json.dumps([self.severity, blamed])
        while True:
            there = read_now(self.store, key)
            least, found = json.loads(there) if there else (math.inf, "")
            if blamed and self.severity < least:
                before, told = sealed(key, there) if there else "", sealed(key, own)
                if unsealed(key, self.store.compare_set(key, before, told)) is None:
                    self.store.set(key, told)  # over what a stranger wrote
            elif least == 0 or time.monotonic() > end:
                return str(found or blamed)
            elif blamed:  # who is late; another rank may be later, or lost
                end, blamed = min(end, time.monotonic() + TICK), ""
            else:
                time.sleep(0.1)

    def missing(self) -> str:
        """The ranks that are gone before all have met, else those that have not come.

        Of this machine, it ends those that are stopped, or have not come.
        """
        gone, absent, late = list[str](), list[str](), dict[int, str]()
        (ended, stopped), here = siblings_by_fate(), siblings()
        for index in self.peers:
            rank = self.members[index]
            name = f"; {self.name_of(index)} is lost, it"
            if index == self.keeper and not agent_store():
                continue  # it answers, even if it waits for others to come
            if self.store.check([self.key(index)]):
                sign = self.heard(index)
                if sign.state == "here" and is_halted(*sign.process):
                    gone.append(f"; {self.lost(sign)}")
            elif rank in stopped:
                gone.append(f"{name} was stopped before it came")
                end_sibling(rank)
            elif rank in ended:
                gone.append(f"{name} never came")
            elif rank not in here:
                absent.append(f"{name} never came")
            else:
                late[rank] = f"{name} never came"
        if not gone and not absent and self.heeds_launcher():
            for rank in late:
                end_sibling(rank)
        return "".join((gone or absent or list(late.values()))[:8])

    def lost_or_late(self, may_be_late: bool) -> str:
        """The ranks that are lost, else those that are late. Ends the lost ones."""
        before, begin = self.signs(), time.monotonic()
        lost = before
        while lost and time.monotonic() - begin < SILENCE:
            time.sleep(0.1)
            pairs = list(zip(before, self.signs(), strict=True))
            here = [(old, new) for old, new in pairs if new.state == "here"]
            lost = [
                new
                for old, new in here
                if old.ticks == new.ticks or is_halted(*new.process)
            ]
        hung = [self.seen[rank].who for rank in self.silent]
        lost = [e for e in lost if e.who in hung or not is_running(*e.process)]
        for sign in lost:
            end_lost(*sign.process)
        if lost:
            return "".join(f"; {self.lost(sign)}" for sign in lost[:8])
        if not may_be_late:
            return ""
        signs = self.signs()
        least = min((sign.reached for sign in signs if sign.reached), default=0)
        self.severity = 1 + least
        late = [
            sign
            for sign in signs
            if sign.state == "here" and sign.reached == least < self.reached()
        ]
        named = [f"; {each.who} is late, still at {each.at}" for each in late]
        left = [sign for sign in signs if sign.state == "done"]
        named = named or [f"; {each.who} has left after {each.at}" for each in left]
        return "".join(named[:8])
