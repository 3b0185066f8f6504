"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile

from synth.base.errors import UsageError


def put(text: str, path: str | None) -> None:
    """To a file, whole or not at all, or to stdout where there is no path; see `write_bytes`."""
    if path is None:
        sys.stdout.write(text)
    else:
        write_whole(path, text)


def write_whole(path: str, text: str) -> None:
    """Write a text file, see `write_bytes`."""
    write_bytes(path, text.encode())


def write_bytes(path: str, data: bytes) -> None:
    """Write a file through a neighbour that is renamed into place.

    Raises `UsageError` where it cannot be written; what was there before is then still there.
    """
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        _write_in_place(path, data)  # a device or a pipe is written to, never replaced
        return
    if "\0" in path:
        raise UsageError(f"{path!r} is no file name; name a file")
    folder = os.path.dirname(path) or "."
    try:
        handle, waiting = tempfile.mkstemp(dir=folder, prefix=".synth-", suffix=".part")
    except OSError as fault:
        raise UsageError(
            f"{path}: cannot be written ({fault.strerror}); check the folder and its rights"
        ) from fault
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(waiting, 0o666 & ~mask)
        os.replace(waiting, path)
    except OSError as fault:
        with contextlib.suppress(OSError):
            os.unlink(waiting)
        raise UsageError(f"{path}: cannot be written ({fault.strerror}); check space and rights") from fault
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(waiting)
        raise


def _write_in_place(path: str, data: bytes) -> None:
    try:
        with open(path, "wb") as file:
            file.write(data)
    except OSError as fault:
        raise UsageError(f"{path}: cannot be written ({fault.strerror}); name a file") from fault
