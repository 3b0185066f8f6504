"""Bounds of work that are the same on every machine, where seconds are not: calls, and steps of a search."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from synth.search.effort import Effort


class Counted(Effort):
    """What one search does, with the tilings that it examines."""

    examined = 0

    def tile(self, size: int, examined: int) -> None:
        self.examined += examined
        super().tile(size, examined)


class Efforts(list[Counted]):
    """What all searches do in which this stands for `Effort`."""

    def __call__(self, *args: Any) -> Counted:
        self.append(Counted(*args))
        return self[-1]

    @property
    def work(self) -> tuple[int, int]:
        """(Steps, examined tilings) of all searches."""
        return sum(each.steps for each in self), sum(each.examined for each in self)


@contextmanager
def at_most(calls: int) -> Iterator[None]:
    """Raises `AssertionError` where the block calls more functions, of Python or of C, in this thread.

    It is raised as soon as there are more, so that a block without end ends.
    """
    made = 0

    def count(frame: Any, event: str, function: Any) -> None:
        nonlocal made
        made += event in ("call", "c_call")
        if made > calls:
            sys.setprofile(None)
            raise AssertionError(f"more than {calls} calls")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(before)
    assert made <= calls, f"more than {calls} calls"
