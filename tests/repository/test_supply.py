"""What is shipped: pinned, built alike twice, and its shell scripts clean."""

from __future__ import annotations

import hashlib
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
SOURCES = ("synth", "codegen", "runtime", "pyproject.toml", "README.md")
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


def wheel(folder: Path, seed: str, touched: int) -> bytes:
    """A wheel, built in a folder whose files were all changed at some time."""
    without = shutil.ignore_patterns("__pycache__")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / "tree" / name, ignore=without)
        else:
            shutil.copy(ROOT / name, folder / "tree" / name)
    for path in (folder / "tree").rglob("*"):
        os.utime(path, (touched, touched))
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000", "PYTHONHASHSEED": seed}
    words = ["-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(folder)]
    subprocess.run([sys.executable, *words, str(folder / "tree")], env=environment, check=True)
    (built,) = folder.glob("*.whl")
    return built.read_bytes()


def test_the_wheel_is_reproducible(tmp_path: Path) -> None:
    digests = set()
    for name, seed, touched in (("one", "1", 1_600_000_000), ("another", "2", 1_710_000_000)):
        (tmp_path / name / "tree").mkdir(parents=True)
        digests.add(hashlib.sha256(wheel(tmp_path / name, seed, touched)).hexdigest())
    assert len(digests) == 1


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed")
def test_shell_scripts_are_clean(tmp_path: Path) -> None:
    scripts = [ROOT / ".ci/run", ROOT / "examples/demo.sh"]
    for number, program in enumerate(("conv.py", "it's; rm -rf $HOME `x`.py", "--help", "a b\\c.py")):
        script = tmp_path / f"{number}.sbatch"
        text = render_sbatch(CASES["summa"], program, 4, cpus_per_task=2, gpus_per_task=1, partition="gpu")
        assert not re.search(r"\beval\b|\bsudo\b|\bchmod\b|\bcurl\b|\bsource\b|\bsh -c\b", text)
        assert "python --help" not in text
        script.write_text(text)
        scripts.append(script)
    # SC2016: what looks like an expression in a name stays as it is written
    done = subprocess.run(
        [str(SHELLCHECK), "--severity=style", "--exclude=SC2016", *map(str, scripts)],
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
