"""What can go wrong, one class per kind of fault; every message is one sentence and a remedy.

The command line turns a class into its exit code; nothing else looks at the code.
"""

from __future__ import annotations

from typing import ClassVar


class SynthError(Exception):
    """A fault that a user can mend. `str(error)` is the whole message, ready to print."""

    exit_code: ClassVar[int] = 1


class UsageError(SynthError):
    """The command line, or the arguments of a call, contradict themselves or are out of range."""

    exit_code = 2


class InputError(SynthError):
    """An input file is wrong; the message starts with `file:line:column:` where there is a place."""

    exit_code = 3


class InfeasibleError(SynthError):
    """No plan fits the request; the message names the smallest request that would do."""

    exit_code = 4


class CheckError(SynthError):
    """Two derivations of one number or value disagree: a plan, a program or a machine is wrong."""

    exit_code = 5


class RunError(SynthError):
    """A distributed run did not end by itself with a result."""

    exit_code = 6
