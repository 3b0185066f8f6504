"""Random hostile files and command lines, and all past failures (see `fuzz`).

The fuzzer runs in a process of its own, so that a blow-up or a hang fails a test and does no more.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from effort import tried
from fuzz import corpus, judge, read_case

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("path", corpus(), ids=lambda path: path.stem)
def test_past_failures(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    judge(read_case(path), tmp_path)


def fuzzed(*flags: str) -> str:
    """What the fuzzer says of a run without failures."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests/support")])
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/support/fuzz.py"), *flags],
        env={**os.environ, "PYTHONPATH": paths},
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def test_random_cases() -> None:
    examples = tried(6, 15)
    told = fuzzed("--examples", f"{examples}")
    assert told.startswith(f"{8 * examples} cases in ")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_random_cases() -> None:
    told = fuzzed("--examples", "200", "--seconds", "600", "--seed", "1")
    assert int(told.split()[0]) >= 1600
