"""Atomic file writes: a file appears completely or not at all."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from synth.base.errors import UsageError


def put(text: str, path: str | None) -> None:
    """Write text to a file, see `write_bytes`, or to stdout if `path` is None or `-`."""
    if path is None or path == "-":
        sys.stdout.write(text)
        sys.stdout.flush()  # a full disk is found before other outputs appear
    else:
        write_whole(path, text)


def write_whole(path: str, text: str) -> None:
    """Write a text file, see `write_bytes`."""
    write_bytes(path, text.encode())


def write_bytes(path: str, data: bytes) -> None:
    """Write a temporary file in the same folder and rename it to `path`.

    An earlier file keeps its rights, and a symbolic link its target, which is replaced. Raises `UsageError`
    if the file cannot be written. An earlier file at `path` is then unchanged.
    """
    with staged(path, data):
        pass


@contextlib.contextmanager
def staged(path: str, data: bytes) -> Iterator[None]:
    """Write the data; it appears at `path` when the block ends, and not at all where that raises.

    Outputs that belong together are staged one in the other. `-` is stdout. Raises `UsageError` as
    `write_bytes` does.
    """
    if path == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        yield
        return
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        _write_in_place(path, data)  # a device or pipe must not be replaced by a file
        yield
        return
    if "\0" in path:
        raise UsageError(f"{path!r} is not a file name; name a file")
    target = os.path.realpath(path) if os.path.islink(path) else path
    handle = named = None
    try:
        with _told(path, "the folder and its rights"):
            handle, named = _unnamed(os.path.dirname(target) or ".")
        with _told(path):
            _fill(handle, data, target)
        yield
        with _told(path):
            named = named or _linked(handle, os.path.dirname(target) or ".")
            os.replace(named, target)
            named = None
    finally:
        if handle is not None:
            os.close(handle)
        if named is not None:
            with contextlib.suppress(OSError):
                os.unlink(named)


@contextlib.contextmanager
def _told(path: str, what: str = "space and rights") -> Iterator[None]:
    try:
        yield
    except OSError as fault:
        raise UsageError(f"{path}: cannot be written ({fault.strerror}); check {what}") from fault


def _unnamed(folder: str) -> tuple[int, str | None]:
    """A new file without a name, which a killed process leaves to nobody; elsewhere one with its name."""
    unnamed = getattr(os, "O_TMPFILE", 0)
    if unnamed and os.path.isdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # not every file system has such files
            return os.open(folder, unnamed | os.O_WRONLY, 0o600), None
    import tempfile  # takes 10 ms that `synth --help` does not need

    return tempfile.mkstemp(dir=folder, prefix=".synth-", suffix=".part")


def _linked(handle: int, folder: str) -> str:
    """A name for a file without one, for the moment until it is renamed."""
    name = os.path.join(folder, f".synth-{os.getpid()}-{os.urandom(4).hex()}.part")
    # with `src_dir_fd`, which the absolute path ignores, Python calls linkat and follows the link of /proc
    os.link(f"/proc/self/fd/{handle}", name, src_dir_fd=handle, follow_symlinks=True)
    return name


def _fill(handle: int, data: bytes, target: str) -> None:
    with os.fdopen(os.dup(handle), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    try:
        mode = os.stat(target).st_mode & 0o7777
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        mode = 0o666 & ~mask
    os.fchmod(handle, mode)


def _write_in_place(path: str, data: bytes) -> None:
    try:
        with open(path, "wb") as file:
            file.write(data)
    except OSError as fault:
        raise UsageError(f"{path}: cannot be written ({fault.strerror}); name a file") from fault
