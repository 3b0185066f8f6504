"""Files that users name: read within a bound of bytes, and only if they are plain files or standard input.

A pipe, a device or a huge file is refused before it is read: no reader waits for ever or fills the memory.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import stat
import sys
from collections.abc import Mapping
from typing import Any

from synth.base.errors import InputError
from synth.base.similar_names import similar
from synth.base.yaml_positions import MAX_BYTES, shown

STANDARD_INPUT = "-"
MOST_NAMES = 1000  # of a folder, among which a similar name is looked for
MOST_JSON = 8 << 20  # bytes of a plan or a certificate; parsed it takes up to 25 times as many
_read: list[tuple[Any, bytes]] = []  # standard input, and what was read of it


def is_standard_input(path: str | os.PathLike[str]) -> bool:
    """Whether a path is `-`."""
    return os.fspath(path) == STANDARD_INPUT


def read_text(path: str | os.PathLike[str], most: int = MAX_BYTES, meant: str = "YAML file") -> str:
    """The text of a UTF-8 file of at most `most` bytes, or of standard input for `-`.

    meant: what the user should have named, for messages. Raises `InputError` if the file is missing,
    unreadable, no plain file, too large, or not UTF-8.
    """
    name = shown(os.fspath(path), 4096)
    try:
        data = _standard_input() if is_standard_input(path) else _bytes_of(path, name, most, meant)
    except OSError as error:
        near = _near(path) if error.errno == errno.ENOENT else ""
        raise InputError(
            f"{name}: cannot be read ({error.strerror}); name a readable {meant}{near}"
        ) from error
    except ValueError as error:  # a NUL or a lone surrogate in the name
        raise InputError(f"{name}: is not a file name; name a {meant}") from error
    if len(data) > most:
        raise InputError(f"{name}: has more than {most} bytes; a {meant} is smaller")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        raise InputError(f"{name}:{line}:{column}: is not UTF-8 text; save the file as UTF-8") from error


def _near(path: str | os.PathLike[str]) -> str:
    """`; did you mean conv.yaml?` where the folder has a file with a similar name, else nothing."""
    folder, wanted = os.path.split(os.fspath(path))
    try:
        with os.scandir(folder or ".") as entries:
            names = [entry.name for entry in itertools.islice(entries, MOST_NAMES)]
    except OSError:
        return ""
    name = similar(wanted, names, cutoff=0.8)
    return f"; did you mean {shown(os.path.join(folder, name), 200)}?" if name else ""


def _bytes_of(path: str | os.PathLike[str], name: str, most: int, meant: str) -> bytes:
    """The bytes of a plain file; one more than `most` where there are more."""
    # a pipe is opened without waiting for who writes it, and the opened file is the one that is looked at
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(opened).st_mode
    if not stat.S_ISREG(mode):
        os.close(opened)
        kind = "a directory" if stat.S_ISDIR(mode) else "a pipe or device"
        raise InputError(f"{name}: is {kind}, not a file; name a {meant}")
    with open(opened, "rb") as file:
        return file.read(most + 1) or b""  # None for a file of the kernel that has nothing to say now


def _standard_input() -> bytes:
    """The bytes of standard input, read once however many readers ask; at most one more than any may have."""
    if sys.stdin is None:
        raise OSError(9, "standard input is closed")
    if not _read or _read[0][0] is not sys.stdin:
        stream = getattr(sys.stdin, "buffer", None)
        data = stream.read(MOST_JSON + 1) if stream is not None else sys.stdin.read(MOST_JSON + 1).encode()
        _read[:] = [(sys.stdin, data)]
    return _read[0][1]


def json_of(text: str, name: str, schema: str, remedy: str) -> dict[str, Any]:
    """The object of a JSON file of synth that declares a schema. Raises `InputError` for any other text.

    JSON has no NaN and no infinity, and a key that occurs twice has no meaning that all readers share.
    """
    twice = list[str]()

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict[str, Any]()
        for key, value in pairs:
            if key in found:
                twice.append(key)
            found[key] = value
        return found

    try:
        data = json.loads(text, parse_constant=_no_constant, object_pairs_hook=unique)
    except (ValueError, RecursionError) as fault:
        place = f":{fault.lineno}:{fault.colno}" if isinstance(fault, json.JSONDecodeError) else ""
        raise InputError(f"{name}{place}: is not JSON; {remedy}") from fault
    if twice:
        raise InputError(f"{name}: the key {twice[0][:60]!r} occurs twice in one object; keep one of them")
    if not isinstance(data, dict) or data.get("schema") != schema:
        found = data.get("schema") if isinstance(data, dict) else None
        raise InputError(f"{name}: schema is {str(found)[:60]!r}, not {schema!r}; {remedy}")
    return data


def _no_constant(constant: str) -> float:
    raise ValueError(constant)


def digest_of(data: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits of JSON data, so that a torn or edited file is noticed.

    All fields count but for "digest" itself.
    """
    rest = {key: value for key, value in data.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:16]
