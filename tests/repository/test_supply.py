"""What is shipped: its dependencies pinned, its shell scripts clean."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from cases import CASES

from synth.codegen.sbatch import render_sbatch

ROOT = Path(__file__).parents[2]
SHELLCHECK = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def name_of(requirement: str) -> str:
    """The normal form of what a requirement or a pin names."""
    return re.split(r"[<>=\[; ]", requirement)[0].lower().replace("_", "-")


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    asked = {*project["dependencies"], *(each for extra in extras for each in extra)}
    asked = {each for each in asked if not each.startswith(f"{project['name']}[")}  # an extra in another
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line[0] != "#"]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
    assert {name_of(each) for each in asked} <= {name_of(pin) for pin in pins}


def test_the_oldest_versions_are_those_that_are_declared() -> None:
    """What users install is not older than what `make versions` tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    apart = ("dev", "docs", "models")  # tools, and libraries that models come from
    used = {extra: each for extra, each in extras.items() if extra not in apart}
    asked = [*project["dependencies"], *(each for extra in used.values() for each in extra)]
    declared = dict(each.lower().split(">=") for each in asked if ">=" in each)
    lines = (ROOT / "constraints-oldest.txt").read_text().splitlines()[1:]
    pins = dict(line.split("==") for line in lines)
    for name, version in declared.items():
        parts = version.split(".")
        assert pins[name].split(".")[: len(parts)] == parts, f"{name}: {pins[name]}, declared is {version}"


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed")
def test_shell_scripts_are_clean(tmp_path: Path) -> None:
    scripts = [ROOT / ".ci/run", ROOT / ".ci/light", ROOT / "examples/demo.sh"]
    for number, program in enumerate(("conv.py", "it's; rm -rf $HOME `x`.py", "--help", "a b\\c.py")):
        script = tmp_path / f"{number}.sbatch"
        text = render_sbatch(CASES["summa"], program, 4, cpus_per_task=2, gpus_per_task=1, partition="gpu")
        assert not re.search(r"\beval\b|\bsudo\b|\bchmod\b|\bcurl\b|\bsource\b|\bsh -c\b", text)
        assert "python --help" not in text
        script.write_text(text)
        scripts.append(script)
    # SC2016: quoted names may look like expressions
    done = subprocess.run(
        [str(SHELLCHECK), "--severity=style", "--exclude=SC2016", *map(str, scripts)],
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
