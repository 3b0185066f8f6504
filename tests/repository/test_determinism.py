"""The same request gives the same bytes in every process, whatever the order of Python sets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NETWORK = """
network: small
input: [8, 16, 12, 12]
layers:
  - {name: a, conv2d: {out_channels: 32, kernel: 3, padding: 1}}
  - {name: b, conv2d: {out_channels: 32, kernel: 1}}
  - {name: s, add: {}, from: [a, b]}
  - globalpool: {}
  - flatten: {}
  - linear: {out_features: 10}
"""
TRAINING = "--pass training --memory 1MiB"
COMMANDS = (
    "plan layer.yaml --procs 61 -o plan.txt",
    "plan layer.yaml --procs 61 --json -o plan.json",
    f"plan layer.yaml --procs 16 {TRAINING} --json -o training.json",
    "plan layer.yaml --procs 16 --objective time --machine lassen --json -o time.json",
    "plan layer.yaml --procs 16 --certify -o certificate.json",
    "plan layer.yaml --procs 16 --explain latex -o derivation.tex",
    "plan network.yaml --procs 8 --pass training --json -o network.json",
    "emit layer.yaml --procs 12 -o program.py",
    f"emit layer.yaml --procs 12 {TRAINING} --module -o module.py",
    f"emit layer.yaml --procs 12 {TRAINING} --standalone -o standalone.py --sbatch job.sbatch",
    "bounds layer.yaml --procs 1:64 --bounds-only --csv -o bounds.csv",
    "report plan.json -o layer.html",
    "report network.json -o network.html",
    *(f"plot plan.json --picture words -o words.{ending}" for ending in ("svg", "png", "pdf")),
)
SCRIPT = """
import sys
from synth.cli.main import main
for command in sys.argv[1:]:
    assert main(command.split()) == 0, command
"""


def written(folder: Path, seed: str) -> dict[str, bytes]:
    """What a fresh process writes for all commands, by file name."""
    folder.mkdir()
    (folder / "layer.yaml").write_text((ROOT / "examples/small.yaml").read_text())
    (folder / "network.yaml").write_text(NETWORK)
    subprocess.run(
        [sys.executable, "-c", SCRIPT, *COMMANDS],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
        check=True,
    )
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], dict[str, bytes]]:
    folder = tmp_path_factory.mktemp("written")
    return written(folder / "one", "1"), written(folder / "other", "2")


def test_two_processes_write_the_same_bytes(files: tuple[dict[str, bytes], dict[str, bytes]]) -> None:
    one, other = files
    assert len(one) == len(COMMANDS) + 3  # with the batch script, and the two inputs
    assert one.keys() == other.keys()
    assert [name for name in one if one[name] != other[name]] == []
