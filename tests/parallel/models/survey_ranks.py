"""What the ranks of the tests of surveyed models do."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.models_survey.entry import entries_of
from benchmarks.models_survey.ranks import compare


def compared(library: str, name: str) -> dict[str, Any]:
    """What the survey finds of a model: errors beside one process, and words, planned and received."""
    (entry,) = (each for each in entries_of(library) if each.name == name)
    try:
        return compare(entry)
    finally:
        torch.set_default_dtype(torch.float32)
