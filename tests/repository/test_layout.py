"""The folders at the top: one copy of the code, imported under one name."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXTS = {".py", ".j2", ".md", ".sh", ".toml", ".yaml"}
BARE = re.compile(r"^\s*(?:from|import)\s+(?:runtime|codegen)\b", re.M)


@pytest.mark.parametrize("name", ["codegen", "runtime"])
def test_a_folder_at_the_top_is_the_package_of_synth_itself(name: str) -> None:
    link = ROOT / "synth" / name
    assert (ROOT / name / "__init__.py").is_file()
    assert link.is_symlink()
    assert link.resolve() == ROOT / name


def test_nothing_imports_the_bare_names() -> None:
    """A folder of the same name in a user's project would be imported instead."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in listed.stdout.splitlines()]
    texts = [path for path in paths if path.suffix in TEXTS and path.is_file()]
    assert len(texts) > 300
    assert [path.name for path in texts if BARE.search(path.read_text(encoding="utf-8"))] == []


def test_the_test_can_fail() -> None:
    for line in ("from runtime.grid import boxes", "    import codegen", "import runtime as r"):
        assert BARE.search(line)
    for line in ("from synth.runtime.grid import boxes", "import synth.codegen", "from runtimes import x"):
        assert not BARE.search(line)


def test_files_of_tests_have_different_names() -> None:
    """pytest imports them by their names alone."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("*.py"))
    assert len(names) > 300
    assert [name for name, count in names.items() if count > 1 and name != "conftest.py"] == []
