"""Free memory is the least that the system and the control groups say."""

from __future__ import annotations

from pathlib import Path

import pytest

from synth.base import free_memory


def test_the_least_of_what_the_system_says_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 900 kB\nMemAvailable: 500 kB\n")
    (tmp_path / "limit").write_text("9000\n")
    (tmp_path / "used").write_text("2000\n")
    group = str(tmp_path / "limit"), str(tmp_path / "used")
    monkeypatch.setattr(free_memory, "MEMINFO", str(tmp_path / "meminfo"))
    monkeypatch.setattr(free_memory, "GROUPS", (group,))
    assert free_memory.available_bytes() == 7000
    (tmp_path / "limit").write_text("max\n")
    assert free_memory.available_bytes() == 500 * 1024
    monkeypatch.setattr(free_memory, "MEMINFO", str(tmp_path / "none"))
    assert free_memory.available_bytes() is None
