"""The site of the documentation: it builds without warnings, and what it shows is up to date."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from test_docs import alike

import synth

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the site's modules, from which they can be imported."""
    folder = ROOT / "docs/site"
    monkeypatch.syspath_prepend(folder)
    return folder


def module(name: str) -> ModuleType:
    return importlib.import_module(name)


def test_it_builds_without_warnings(tmp_path: Path) -> None:
    """All pages are read and all links are resolved; the builder writes nothing."""
    pytest.importorskip("furo", reason="pip install -e '.[docs]'")
    pytest.importorskip("myst_parser", reason="pip install -e '.[docs]'")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-E", "-c", "docs/site"]
    done = subprocess.run(
        [*command, "-b", "dummy", "-d", str(tmp_path), ".", str(tmp_path / "out")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_page_is_in_the_index() -> None:
    both = [(ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("index", "evidence")]
    trees = "\n".join(re.findall(r"```\{toctree\}(.*?)```", "".join(both), re.S)).split()
    for page in [*(ROOT / "docs").glob("*.md"), *NOTEBOOKS]:
        name = page.relative_to(ROOT / "docs").with_suffix("").as_posix()
        assert name == "index" or name in trees, name


@pytest.mark.usefixtures("site")
def test_the_picture_of_the_architecture_is_that_of_the_import_contract() -> None:
    architecture = module("architecture")
    assert architecture.PICTURE.read_text(encoding="utf-8") == architecture.svg(), "run `make pictures`"
    for package, rows in architecture.contracts():
        for folder in (each for row in rows for each in row):
            assert f">{folder}<" in architecture.svg()
            assert ROOT.joinpath(*package.split("."), folder).is_dir()


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_show_what_their_cells_give(path: Path) -> None:
    stored = json.loads(path.read_text(encoding="utf-8"))
    again = module("run_notebooks").executed(stored)
    assert len(shown(again)) >= 3
    for now, then in zip(shown(again), shown(stored), strict=True):
        assert alike(now, then), f"run `make notebooks`:\n{now}"


def shown(notebook: dict[str, list[dict[str, list[dict[str, list[str]]]]]]) -> list[str]:
    """What the cells of a notebook print."""
    found = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    return ["".join(each["text"]) for each in found if "text" in each]


@pytest.mark.usefixtures("site")
def test_notebooks_print_and_show_their_last_expression() -> None:
    class Shown:
        def _repr_html_(self) -> str:
            return "<b>1</b>"

    run = module("run_notebooks").outputs
    assert run("print(1)\nx = 2", {}) == [{"output_type": "stream", "name": "stdout", "text": ["1\n"]}]
    (value,) = run("Shown()", {"Shown": Shown})
    assert value["data"]["text/html"] == ["<b>1</b>"]
    assert run("None", {}) == []


@pytest.mark.usefixtures("site")
def test_docstrings_become_restructured_text() -> None:
    lines = [
        "The *first* `line` of `Plan.x`.",
        "",
        "count: how many, at",
        "    most.",
        "",
        "    f(1)",
        "",
        "- a",
    ]
    assert module("docstrings").restructured(lines) == [
        "The \\*first\\* \\ ``line``\\  of \\ ``Plan.x``\\ .",
        "",
        "``count``",
        "    how many, at most.",
        "",
        "::",
        "",
        "    f(1)",
        "",
        "- a",
        "",
    ]


@pytest.mark.usefixtures("site")
def test_a_sentence_that_begins_with_a_name_is_no_argument() -> None:
    lines = ["plan: with a training", "step. options: those of `x`."]
    assert module("docstrings").restructured(lines) == [
        "plan: with a training step. options: those of \\ ``x``\\ .",
        "",
    ]


def test_every_public_name_has_a_docstring() -> None:
    for name in set(synth.__all__) - {"__version__"}:
        assert (getattr(synth, name).__doc__ or "").strip(), name


def test_the_table_of_the_api_names_public_names() -> None:
    rows = [
        line for line in (ROOT / "docs/api.md").read_text(encoding="utf-8").splitlines() if line[:2] == "| "
    ]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[2])}
    assert named <= set(synth.__all__)
    assert {"plan", "parallelize", "lower_bounds", "InfeasibleError"} <= named


def test_the_tutorial_shows_its_files() -> None:
    text = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    assert f"```python\n{(ROOT / 'examples/tutorial.py').read_text(encoding='utf-8')}```" in text
    assert f"```yaml\n{(ROOT / 'examples/networks/tutorial.yaml').read_text(encoding='utf-8')}```" in text


@pytest.mark.usefixtures("site")
def test_numbers_of_tables_are_told_from_words() -> None:
    number = module("conf").NUMBER
    for text in ("9.9", "1,837,191", "164 864", "< 1", "17.6 %", "3.5 ms", "866 KiB", "0.27", "1e-6", "-"):
        assert number.fullmatch(text), text
    for text in ("b=8", "60 Mbit/s", "5 | 6", "synth", "2 of 4", "conv2"):
        assert not number.fullmatch(text), text
