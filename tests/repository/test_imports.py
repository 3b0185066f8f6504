"""What a cold start loads: planning must not wait for libraries that it does not use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "cvxpy", "sympy", "networkx", "matplotlib", "rich", "jinja2", "scipy", "pandas"}


def loaded(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after some code."""
    program = f"{code}\nimport sys\nprint('LOADED', *sorted({{m.partition('.')[0] for m in sys.modules}}))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True
    )
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("LOADED "))
    return set(line.split()[1:])


def command(*argv: str) -> str:
    return f"from synth.cli.main import main\ntry:\n    main({list(argv)!r})\nexcept SystemExit:\n    pass"


@pytest.mark.parametrize(
    "argv",
    [
        ["plan", "examples/conv.yaml", "--procs", "64"],
        ["plan", "examples/conv.yaml", "--procs", "64", "--json"],
        ["plan", "examples/small.yaml", "--procs", "8", "--memory", "128KiB", "--pass", "training"],
        ["simulate", "examples/small.yaml", "--procs", "4"],
    ],
    ids=lambda argv: " ".join(argv),
)
def test_planning_is_light(argv: list[str]) -> None:
    modules = loaded(command(*argv))
    assert "numpy" in modules
    assert modules & HEAVY == set()


@pytest.mark.parametrize("argv", [["--help"], ["plan", "--help"]], ids=" ".join)
def test_help_is_lighter(argv: list[str]) -> None:
    assert loaded(command(*argv)) & (HEAVY | {"numpy", "yaml", "msgspec"}) == set()


def test_importing_synth_loads_nothing() -> None:
    assert loaded("import synth") & (HEAVY | {"numpy", "yaml", "msgspec", "argparse"}) == set()


def test_the_test_can_fail() -> None:
    assert "networkx" in loaded("import networkx")
