"""Results of whole networks: compared with ours of the same statistics, merged over runs, and shown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from benchmarks.suite.models.contenders import blocks
from benchmarks.suite.models.lines import Line, merged, overview, page, read, write
from examples.models import CosmoFlow
from examples.unet3d import UNet3d


def rank(seconds: dict[str, list[float]], moved: int) -> dict[str, Any]:
    """What one rank wrote: every contender starts at 0."""
    return {
        "times": {name: [(0.0, each) for each in every] for name, every in seconds.items()},
        "traffic": dict.fromkeys(seconds, (moved, 2 * moved)),
        "processor": dict.fromkeys(seconds, 0.5),
        "held": dict.fromkeys(seconds, 8),
        "refused": {"spatial": "it does not fit"},
        "statistics": {name: "local" if name in ("ours, local", "DDP") else "global" for name in seconds},
    }


SECONDS = {"ours": [4.0, 2.0], "ours, local": [2.0, 1.0], "DDP": [6.0], "tensor": [6.0, 3.0]}
SLOWER = {name: [2 * each for each in every] for name, every in SECONDS.items()}


def line(network: str, measured: str) -> Line:
    """A network on two ranks, of which the second is twice as slow."""
    return Line.of(network, measured, [rank(SECONDS, 10), rank(SLOWER, 20)])


def test_peers_are_compared_with_ours_of_their_statistics() -> None:
    found = {row.name: row for row in line("some", "today").rows}
    assert found["ours"].seconds.median == 6.0
    assert found["DDP"].ratio.median == 3.0
    assert found["DDP"].rounds == 1
    assert found["tensor"].ratio.median == 1.5
    assert found["tensor"].moved == 60
    assert found["tensor"].processor == 1.0
    best = line("some", "today").fastest
    assert best is not None
    assert best.name == "tensor"


def test_bytes_of_peers_are_compared_with_plans_for_words() -> None:
    assert line("some", "today").fewest_bytes is None
    moved = {"ours": 50, "ours, for words": 20, "ours, local, for words": 40, "DDP": 50, "tensor": 30}
    ranks = rank({name: [1.0] for name in moved}, 0)
    ranks["traffic"] = {name: (each, 0) for name, each in moved.items()}
    ranks["statistics"]["ours, local, for words"] = "local"
    found = Line.of("some", "today", [ranks])
    assert found.fewest_bytes == 1.25  # DDP with local statistics; the other peer has 1.5
    assert [row.name for row in found.peers] == ["DDP", "tensor"]
    assert "| 1.25 |" in overview([found])[2]


def test_time_model_of_a_line() -> None:
    timed = replace(line("some", "today"), predicted={"ours": 6.6, "ours, local": 2.4})
    assert timed.errors == pytest.approx({"ours": 0.1, "ours, local": -0.2})
    assert "| 6.600 / 2.400 | +10% / -20% |" in overview([timed])[2]
    assert overview([timed])[-1].startswith("The time model is off by 15% ")


def test_lines_of_several_runs_are_merged(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    assert read(file) == []
    first, second, again = line("one", "08:00"), line("two", "08:10"), line("one", "09:00")
    write(file, "a machine", merged(file, [first, second]))
    assert merged(file, [again]) == [again, second]
    assert json.loads(file.read_text())["machine"] == "a machine"
    text = page("a machine", "how", merged(file, [again]))
    assert "| one | 2 | ours | 2 | 6.000 |" in text
    assert "| 09:00 |" in text
    assert "| 08:10 |" in text
    assert "* two, P = 2: spatial: it does not fit" in text
    assert overview([first])[-2:] == [
        "fastest peer / ours: 1.50 in the geometric mean of 1 lines, 1.50 at least.",
        "DDP / ours: 3.00 in the geometric mean of 1 lines, 3.00 at least.",
    ]


@pytest.mark.parametrize(("model", "units"), [(UNet3d(base=4, levels=3), 7), (CosmoFlow(16, base=4), 6)])
def test_fsdp2_gathers_blocks(model: nn.Module, units: int) -> None:
    """Blocks of a U-Net, large layers of a sequence; no unit of its own for a normalization."""
    found = blocks(model)
    assert len(found) == units
    assert not any(isinstance(each, nn.BatchNorm3d) for each in found)
