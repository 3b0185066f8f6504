"""Ranks that this machine cannot hold are refused; many on few cores are warned of."""

from __future__ import annotations

import pytest

from synth.base.errors import UsageError
from synth.cli.main import main
from synth.launch import capacity


def test_ranks_beyond_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "available_bytes", lambda: 10 * (capacity.TORCH_BYTES + 7))
    capacity.require_memory(10, 7)
    with pytest.raises(UsageError, match=r"11 ranks need .* available here; take at most 10, or write"):
        capacity.require_memory(11, 7)
    monkeypatch.setattr(capacity, "available_bytes", lambda: 1)
    with pytest.raises(UsageError, match="are available here; write the program with `synth emit --sbatch`"):
        capacity.require_memory(1, 0)
    monkeypatch.setattr(capacity, "available_bytes", lambda: None)
    capacity.require_memory(10**6, 10**9)


def test_many_ranks_on_few_cores_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "usable_cores", lambda: 2)
    assert capacity.crawl(8) == ""
    assert "100 ranks share 2 cores: they take about 85 s to load torch" in capacity.crawl(100)
    monkeypatch.setattr(capacity, "usable_cores", lambda: 128)
    assert capacity.crawl(128) == ""


def test_synth_run_asks_before_it_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(capacity, "available_bytes", lambda: 4 * capacity.TORCH_BYTES)
    assert main(["run", "examples/small.yaml", "--procs", "4"]) == 2
    assert "4 ranks need " in capsys.readouterr().err
