"""The README: its commands run as written, and its table names every command."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from synth.cli import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `synth ([^`]*)`", README, re.M)
CHEAP = [
    row
    for row in ROWS
    if row.split()[0] in ("plan", "emit", "simulate") and "..." not in row and "NET" not in row
]


def test_the_shown_report_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    command, shown = re.findall(r"^    \$ synth (.*)\n\n((?:    .*\n|\n)*)", README, re.M)[0]
    assert main(shlex.split(command)) == 0
    printed = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for line in shown.splitlines():
        assert line.strip() == "..." or " ".join(line.split()) in printed


def test_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("LAYER.yaml").write_text((ROOT / "examples/small.yaml").read_text())
    assert main(["plan", "LAYER.yaml", "--procs", "4", "--json", "-o", "plan.json"]) == 0
    assert {row.split()[0] for row in CHEAP} == {"plan", "emit", "simulate"}
    for row in [*CHEAP, "schema"]:
        assert main(shlex.split(row)) == 0, row
