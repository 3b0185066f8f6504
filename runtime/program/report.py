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
    """Write a file atomically: if the disk is full, the old file stays."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name)
    try:
        with open(path + ".part", "wb") as file:
            file.write(data)
        os.replace(path + ".part", path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(path + ".part")
        raise
