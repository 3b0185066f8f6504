"""A limit of time that is looked at between the calls of torch, and no messages."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

Clock = Callable[[], float]
# namespaces of torch's collectives
MESSAGES = "c10d", "_c10d_functional", "_c10d_functional_autograd"


class OutOfTime(BaseException):
    """The limit is reached. No `Exception`, so that no model takes it for its own."""


class Deadline(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises `OutOfTime` before the first call of torch that begins after the limit.

    As a context it sees all calls inside of it, those of backward passes, too. It
    raises `RuntimeError` for a message to other ranks, of which none takes part.
    clock: seconds. end: of the clock; None where nothing limits.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.clock, self.begin = clock, clock()
        self.end: float | None = None

    @property
    def seconds(self) -> float:
        """The limit, from the start; infinite for none."""
        return float("inf") if self.end is None else self.end - self.begin

    @property
    def passed(self) -> float:
        """Seconds since the start."""
        return self.clock() - self.begin

    def within(self, seconds: float | None) -> None:
        """Let the limit be so many seconds after the start; None for no limit."""
        self.end = None if seconds is None else self.begin + seconds

    def look(self) -> None:
        """Raise `OutOfTime` if the limit is reached."""
        if self.end is not None and self.clock() > self.end:
            raise OutOfTime

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Look, then make the call."""
        self.look()
        if func.namespace in MESSAGES:
            raise RuntimeError("it exchanges messages with other ranks by itself")
        return func(*args, **(kwargs or {}))
