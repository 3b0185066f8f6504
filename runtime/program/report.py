"""The files that a rank writes: a JSON report and, on request, its results."""

from __future__ import annotations

import contextlib
import io
import json
import os
from typing import Any

import torch

from synth.runtime.grid.boxes import Box


def write_report(folder: str, rank: int, facts: dict[str, Any]) -> None:
    """Write `rank-00003.json` atomically: readers see all of it or nothing."""
    text = json.dumps(facts) + "\n"
    write_part(folder, f"rank-{rank:05d}.json", text.encode())


def save_shards(
    folder: str, rank: int, shards: dict[str, tuple[Box, torch.Tensor]]
) -> None:
    """Write `rank-00003.pt`: tensor -> the box that a rank computed, and its values."""
    saved = {
        name: {"box": box, "values": values.cpu()}
        for name, (box, values) in shards.items()
    }
    data = io.BytesIO()  # torch's writer hides why a file cannot be written
    torch.save(saved, data)
    write_part(folder, f"rank-{rank:05d}.pt", data.getbuffer())


def write_part(folder: str, name: str, data: bytes | memoryview) -> None:
    """Write a file atomically: if the disk is full, the old file stays.

    Until it is complete it has no name, so a rank that is killed leaves no part of it.
    """
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name)
    part, linked = path + ".part", "/proc/self/fd"
    unnamed, handle = getattr(os, "O_TMPFILE", 0), -1
    with contextlib.suppress(OSError):
        os.unlink(part)  # of a rank without such files
    if unnamed and os.path.isdir(linked):
        with contextlib.suppress(OSError):  # not every file system has them
            handle = os.open(folder, unnamed | os.O_WRONLY, 0o666)
    try:
        with open(part, "wb") if handle < 0 else os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            if handle >= 0:
                os.link(f"{linked}/{handle}", part, src_dir_fd=handle)
        os.replace(part, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
