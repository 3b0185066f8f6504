"""How an option is called where a user came in: on the command line, or in a call from Python.

An error is raised far below. It names an option by its field, and the door says the words for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum

from synth.base.flags import flag_words

# What `parallelize` and `plan_model` call an option; None where they have none
OF_MODELS = {"grid": "plan", "balance": None, "exact_procs": None}


class Door(Enum):
    """Where a user came in."""

    COMMAND_LINE = "synth"
    CALL = "synth.plan"
    MODEL = "synth.parallelize"


_DOOR: ContextVar[Door] = ContextVar("synth_door", default=Door.CALL)


@contextmanager
def entered_by(door: Door) -> Iterator[None]:
    """Options are named in the words of a door. Works as a decorator, too."""
    before = _DOOR.set(door)
    try:
        yield
    finally:
        _DOOR.reset(before)


def option(name: str, value: object = None) -> str:
    """An option, with a value unless that is None: `--memory 4096` or `memory=4096`.

    name: as in Python. "" where the door has no such option.
    """
    door = _DOOR.get()
    if door is Door.COMMAND_LINE:
        return " ".join(flag_words(name, True if value is None else value))
    shown = OF_MODELS.get(name, name) if door is Door.MODEL else name
    return "" if not shown else shown if value is None else f"{shown}={value!r}"


def either(*ways: tuple[str, str] | str) -> str:
    """The ways that a door has, joined by "or".

    ways: words, or (words with {} for an option, name of the option).
    """
    found = []
    for way in ways:
        words, name = (way, "") if isinstance(way, str) else way
        if not name or option(name):
            found.append(words.format(option(name)) if name else words)
    return " or ".join(found)
