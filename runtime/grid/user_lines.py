"""The line of the user's code that leads to a call, for messages."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

# what runs a model without the user around it
RUN_MODELS = "runtime/tracing/trace.py", "runtime/model/self_check/passes.py"


class UserLine(NamedTuple):
    """A line of a file.

    warned: the warnings that Python has shown for the module. place: of the call in the
    code, which tells the calls of a line apart.
    """

    path: str
    number: int
    warned: dict[str | tuple[str, type[Warning], int], int]
    place: int

    def __str__(self) -> str:
        return f" ({Path(self.path).name}:{self.number})"


def user_line() -> UserLine | None:
    """The innermost line that runs and is neither torch's nor our own; None for none.

    A model that is traced has none outside of it: the search ends where it is run from.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if ends_search(file):
            if not is_users(file):
                return None
            warned = frame.f_globals.setdefault("__warningregistry__", {})
            return UserLine(file, frame.f_lineno, warned, frame.f_lasti)
        frame = frame.f_back
    return None


@cache  # asked for every frame of every call of a model
def ends_search(file: str) -> bool:
    """Whether a file is the user's, or runs a model without one."""
    return is_users(file) or file.endswith(RUN_MODELS)


@cache
def is_users(file: str) -> bool:
    """Whether a file is neither torch's nor our own."""
    torch_code, own = str(Path(torch.__file__).parent), str(Path(__file__).parents[2])
    return not file.startswith((torch_code, own, "<"))
