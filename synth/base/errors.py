"""Error classes, one per kind of fault. A message is one sentence and a remedy.

The command line exits with the `exit_code` of the class.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar


class SynthError(Exception):
    """A fault that a user can fix; the base of all errors of this package.

    `str(error)` is the complete message, ready to print; `exit_code` is what the command line ends with.
    """

    exit_code: ClassVar[int] = 1


class UsageError(SynthError):
    """Arguments of the command line or of a call contradict each other or are out of range."""

    exit_code = 2


class InputError(SynthError):
    """An input file is wrong. The message starts with `file:line:column:` if the position is known."""

    exit_code = 3


class InfeasibleError(SynthError):
    """No plan fits the request. The message names the smallest change that makes a plan possible.

    `proven` is false where a search under a memory limit ended early; the message says so, too.
    `enough_bytes` is the memory per process that a network plan needs, where the message names it.
    """

    exit_code = 4
    proven = True

    def __init__(self, message: str = "", enough_bytes: int | None = None) -> None:
        super().__init__(message)
        self.enough_bytes = enough_bytes


class CheckError(SynthError):
    """Two derivations of one value disagree: a plan, a program or a machine is wrong."""

    exit_code = 5


class RunError(SynthError):
    """A distributed run ended without a result."""

    exit_code = 6


class MissingExtraError(SynthError, ModuleNotFoundError):
    """An optional dependency is absent. The message names the `pip install` command that adds it."""

    exit_code = 2


@contextmanager
def said_of(what: str, error: type[SynthError] = UsageError, remedy: str = "") -> Iterator[None]:
    """Raise an error that says of what a `UsageError` is, and what to do, in its place."""
    try:
        yield
    except UsageError as fault:
        raise error(f"{what}: {fault}{remedy}") from fault
