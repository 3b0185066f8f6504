"""One thread of a process makes networks at a time.

Tracing a model and comparing ranks are work of a whole process. Two threads would meet
their partners on other ranks in any order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from synth.base.errors import UsageError

T = TypeVar("T")
SAID = (
    "two threads of this process make networks at once, which ranks would do in another order; call"
    " parallelize in one thread, for one model after the other"
)


class OneThread:
    """Refuses a second thread, and tells the first one."""

    def __init__(self) -> None:
        self.free, self.met = threading.Lock(), False

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Raise `UsageError` while another thread is in here. Works as a decorator, too."""
        if not self.free.acquire(blocking=False):
            self.met = True
            raise UsageError(SAID)
        self.met = False
        try:
            yield
        finally:
            self.free.release()

    def made(self, make: Callable[[], T]) -> T:
        """What is made in here. Raises `UsageError` if another thread came meanwhile."""
        found = make()
        if self.met:
            raise UsageError(SAID)
        return found


MAKING = OneThread()
