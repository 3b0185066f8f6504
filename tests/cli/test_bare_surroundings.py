"""Surroundings that lack what is usually there, and values that are far too long."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from synth.cli.main import LONGEST, main
from synth.parallel.machine_here import kept

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "conv.yaml")


@pytest.mark.parametrize(
    "flags",
    [("--procs", "9"), ("--procs", "4", "--as"), ("--procs", "4", "--memory"), ("--procs", "4", "--")],
)
def test_a_long_value_does_not_fill_the_terminal(
    flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    long = "9" * 70_000 if flags[-1] == "9" else "\x1bx" * 35_000
    words = [*flags[:-1], flags[-1] + long] if flags[-1] in ("9", "--") else [*flags, long]
    assert main(["plan", EXAMPLE, *words]) in (2, 3)
    said = capsys.readouterr().err
    assert len(said) < LONGEST + 100
    assert len(said.splitlines()) == 1
    assert said.strip().isprintable()


def test_a_bare_environment_is_enough() -> None:
    kept_names = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")
    environment = {name: os.environ[name] for name in kept_names if name in os.environ}
    ended = subprocess.run(
        [sys.executable, "-m", "synth", "plan", EXAMPLE, "--procs", "4"],
        env=environment | {"TMPDIR": "/nonexistent"},
        cwd=Path(__file__).parents[2],
        text=True,
        capture_output=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""


def test_a_pipe_in_the_cache_folder_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "numbers.json")
    found, why = kept(tmp_path / "numbers.json", {})
    assert found is None
    assert "is a pipe or device, not a file" in why
