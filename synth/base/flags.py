"""The words that ask for a plan on the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import PurePath


def flag_of(name: str) -> str:
    """The flag of a field of `PlanRequest`."""
    return f"--{name.rstrip('_').replace('_', '-')}"


def flag_words(name: str, value: object) -> list[str]:
    """The words that give a field of `PlanRequest` a value on the command line."""
    flag = flag_of(name)
    match value:
        case True:
            return [flag]
        case Mapping():
            return [flag, ",".join(f"{axis}={parts}" for axis, parts in value.items())]
        case str() if name != "order":
            return [flag, portable_path(value) if name == "machine" else value]
        case os.PathLike():
            return [flag, portable_path(value)]
        case Sequence():
            return [flag, ",".join(value)]
        case _:
            return [flag, str(value)]


def portable_path(path: str | os.PathLike[str]) -> str:
    """A relative path as it is; of an absolute path, or one with `..` or `~`, the file's name alone.

    A path that starts with a dash gets `./` before it, so that no command takes it for a flag.
    """
    given = PurePath(path)
    machine_specific = given.is_absolute() or ".." in given.parts or "~" in given.parts
    text = given.name if machine_specific else os.fspath(path)
    return f"./{text}" if text.startswith("-") and text != "-" else text
