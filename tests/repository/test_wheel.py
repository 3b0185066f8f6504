"""The wheel: reproducible, one package name, and at work beside folders named `runtime` and `codegen`."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("synth", "codegen", "runtime", "proof", "pyproject.toml", "README.md")
OTHERS = 'raise ImportError("this folder belongs to the user")\n'


def built(folder: Path, seed: str = "0", touched: int = 1_700_000_000) -> Path:
    """A wheel, built in a folder whose files were all changed at some time."""
    tree = folder / "tree"
    tree.mkdir(parents=True)
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, tree / name)
    for path in tree.rglob("*"):
        os.utime(path, (touched, touched), follow_symlinks=False)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000", "PYTHONHASHSEED": seed}
    words = ["-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(folder)]
    subprocess.run([sys.executable, *words, str(tree)], env=environment, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the working tree."""
    return built(tmp_path_factory.mktemp("wheel"))


@pytest.mark.slow
def test_the_wheel_is_reproducible(wheel: Path, tmp_path: Path) -> None:
    """Other times of the files, another order of sets: the same bytes."""
    again = built(tmp_path, seed="1", touched=1_600_000_000)
    assert hashlib.sha256(again.read_bytes()).digest() == hashlib.sha256(wheel.read_bytes()).digest()


def test_the_wheel_holds_one_package_with_all_its_files(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    (metadata,) = {name.partition("/")[0] for name in names} - {"synth"}
    assert metadata.endswith(".dist-info")
    assert zipfile.ZipFile(wheel).read(f"{metadata}/top_level.txt").decode().split() == ["synth"]
    walked = (
        Path(folder, name).relative_to(ROOT)
        for folder, _, files in os.walk(ROOT / "synth", followlinks=True)
        for name in files
        if name != "ruff.toml"
    )
    caches = re.compile(r"(^|/)(__pycache__|\.\w+)/")
    sources = {path.as_posix() for path in walked if not caches.search(path.as_posix())}
    assert {name for name in names if name.startswith("synth/")} == sources
    for folder in ("codegen/templates", "reports/html/templates", "machine/data"):
        assert any(name.startswith(f"synth/{folder}/") for name in names), folder


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of a fresh environment: the wheel, and the packages that it needs."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False)
    (packages,) = home.glob("lib/python*/site-packages")
    needed = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "needed.pth").write_text("\n".join(needed) + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(home / "bin/python")]
    flags = ["-q", "--no-deps", "--no-index", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", *flags, str(wheel)], check=True)
    return home / "bin"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's project with folders `runtime` and `codegen` of its own, importable and not ours."""
    for name in ("runtime", "codegen"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(OTHERS)
    shutil.copy(ROOT / "examples/small.yaml", tmp_path / "layer.yaml")
    return tmp_path


def ran(project: Path, command: list[str | Path]) -> str:
    """What a command prints in the project's folder, from which Python imports first."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        command,
        cwd=project,
        env={**clean, "PYTHONPATH": str(project)},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_folders_of_the_project_would_be_imported(environment: Path, project: Path) -> None:
    """The trap works: whoever imports the bare name gets the user's folder."""
    for name in ("runtime", "codegen"):
        with pytest.raises(AssertionError, match="this folder belongs to the user"):
            ran(project, [environment / "python", "-c", f"import {name}"])


def test_synth_comes_from_the_wheel(environment: Path, project: Path) -> None:
    script = "import synth.codegen, synth.runtime; print(synth.runtime.__path__[0])"
    folder = Path(ran(project, [environment / "python", "-c", script]).strip())
    assert folder.is_relative_to(environment.parent)
    assert not folder.is_symlink()


@pytest.mark.slow
def test_plan_emit_and_emitted_programs_work_beside_such_folders(environment: Path, project: Path) -> None:
    """As a command and as a module; the program of one process also runs, and checks its values."""
    python, synth = environment / "python", environment / "synth"
    assert "grid" in ran(project, [synth, "plan", "layer.yaml", "--procs", "4"])
    assert "grid" in ran(project, [python, "-m", "synth", "plan", "layer.yaml", "--procs", "4"])
    ran(project, [synth, "emit", "layer.yaml", "--procs", "1", "-o", "alone.py"])
    assert "check: every shard" in ran(project, [python, "alone.py", "--check"])
    flags = ["--procs", "4", "--pass", "training", "--module", "-o", "module.py"]
    ran(project, [python, "-m", "synth", "emit", "layer.yaml", *flags])
    ran(project, [python, "-c", "import module; print(module.layer)"])


@pytest.mark.ranks
@pytest.mark.slow
def test_run_works_beside_such_folders(environment: Path, project: Path) -> None:
    told = ran(project, [environment / "synth", "run", "layer.yaml", "--procs", "2", "--bench", "0"])
    assert "words   on every rank as planned" in told
