"""What a rank leaves behind: a JSON report and, on request, its share of Out."""

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


def save_share(folder: str, rank: int, box: Box, out: torch.Tensor) -> None:
    """Write `rank-00003.pt`: a share of Out and the box of the tensor that it is."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"rank-{rank:05d}.pt")
    torch.save({"box": box, "out": out.cpu()}, path + ".part")
    os.replace(path + ".part", path)
