"""`-` as the name of an input file: standard input, read once however many readers ask for it."""

from __future__ import annotations

import os
import sys
from typing import Any

NAME = "-"
_read: list[tuple[Any, bytes]] = []  # the stream, and what was read of it


def is_standard_input(path: str | os.PathLike[str]) -> bool:
    """Whether a path is `-`."""
    return os.fspath(path) == NAME


def standard_input(most: int) -> bytes:
    """All bytes of standard input; one more than `most` where there are more. Raises `OSError`."""
    if sys.stdin is None:
        raise OSError(9, "standard input is closed")
    if not _read or _read[0][0] is not sys.stdin:
        stream = getattr(sys.stdin, "buffer", None)
        data = stream.read(most + 1) if stream is not None else sys.stdin.read(most + 1).encode()
        _read[:] = [(sys.stdin, data)]
    return _read[0][1]
