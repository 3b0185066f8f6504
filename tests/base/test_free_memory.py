"""Free memory is the least that the system and the control groups say."""

from __future__ import annotations

from pathlib import Path

import pytest

from synth.base import free_memory


def test_the_least_of_what_the_system_says_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 900 kB\nMemAvailable: 500 kB\n")
    (tmp_path / "limit").write_text("9000\n")
    (tmp_path / "used").write_text("2000\n")
    group = str(tmp_path), "limit", "used"
    monkeypatch.setattr(free_memory, "MEMINFO", str(tmp_path / "meminfo"))
    monkeypatch.setattr(free_memory, "OWN_GROUP", str(tmp_path / "none"))
    monkeypatch.setattr(free_memory, "GROUPS", (group, ("/none", "limit", "used")))
    assert free_memory.available_bytes() == 7000
    (tmp_path / "limit").write_text("max\n")
    assert free_memory.available_bytes() == 500 * 1024
    monkeypatch.setattr(free_memory, "MEMINFO", str(tmp_path / "none"))
    assert free_memory.available_bytes() is None


@pytest.mark.parametrize("line", ["0::/slurm/job_7/step_0\n", "9:cpu,memory:/slurm/job_7/step_0\n"])
def test_the_limit_of_a_group_above_counts(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLURM limits the job; the step is a group in it."""
    job = tmp_path / "slurm" / "job_7"
    (job / "step_0").mkdir(parents=True)
    for folder, most, now in ((tmp_path, 9000, 100), (job, 5000, 3000), (job / "step_0", "max", 50)):
        (folder / "limit").write_text(f"{most}\n")
        (folder / "used").write_text(f"{now}\n")
    (tmp_path / "cgroup").write_text(f"1:name=systemd:/\n{line}")
    monkeypatch.setattr(free_memory, "MEMINFO", str(tmp_path / "none"))
    monkeypatch.setattr(free_memory, "OWN_GROUP", str(tmp_path / "cgroup"))
    monkeypatch.setattr(free_memory, "GROUPS", ((str(tmp_path), "limit", "used"),) * 2)
    assert free_memory.available_bytes() == 2000
