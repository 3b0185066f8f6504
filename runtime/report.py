"""What a rank leaves behind: a JSON report and, on request, its shares of results."""

from __future__ import annotations

import json
import os
from typing import Any

import torch

from runtime.blocks import Box


def write_report(folder: str, rank: int, facts: dict[str, Any]) -> None:
    """Write `rank-00003.json`; readers see all of it or nothing."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"rank-{rank:05d}.json")
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump(facts, file)
        file.write("\n")
    os.replace(path + ".part", path)


def save_shares(
    folder: str, rank: int, shares: dict[str, tuple[Box, torch.Tensor]]
) -> None:
    """Write `rank-00003.pt`: tensor -> the box of it that a rank made, its values."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"rank-{rank:05d}.pt")
    saved = {
        name: {"box": box, "values": values.cpu()}
        for name, (box, values) in shares.items()
    }
    torch.save(saved, path + ".part")
    os.replace(path + ".part", path)
