"""Atomic file writes: a file appears completely or not at all."""

from __future__ import annotations

import contextlib
import os
import sys

from synth.base.errors import UsageError


def put(text: str, path: str | None) -> None:
    """Write text to a file, see `write_bytes`, or to stdout if `path` is None."""
    if path is None:
        sys.stdout.write(text)
    else:
        write_whole(path, text)


def write_whole(path: str, text: str) -> None:
    """Write a text file, see `write_bytes`."""
    write_bytes(path, text.encode())


def write_bytes(path: str, data: bytes) -> None:
    """Write a temporary file in the same folder and rename it to `path`.

    Raises `UsageError` if the file cannot be written. An earlier file at `path` is then unchanged.
    """
    import tempfile  # takes 10 ms that `synth --help` does not need

    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        _write_in_place(path, data)  # a device or pipe must not be replaced by a file
        return
    if "\0" in path:
        raise UsageError(f"{path!r} is not a file name; name a file")
    folder = os.path.dirname(path) or "."
    try:
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=".synth-", suffix=".part")
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
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except OSError as fault:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise UsageError(f"{path}: cannot be written ({fault.strerror}); check space and rights") from fault
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _write_in_place(path: str, data: bytes) -> None:
    try:
        with open(path, "wb") as file:
            file.write(data)
    except OSError as fault:
        raise UsageError(f"{path}: cannot be written ({fault.strerror}); name a file") from fault
