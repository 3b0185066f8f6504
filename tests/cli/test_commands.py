"""The commands of the laboratory, from the command line: output, exit codes, messages, start-up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import CONV, Captured, told


def test_bounds(capsys: Captured, tmp_path: Path) -> None:
    picture = tmp_path / "b.svg"
    code, out, err = told(capsys, "bounds", CONV, "--procs", "1:64", "--plot", str(picture))
    assert (code, err) == (0, "")
    assert "b=8 x c=2 x k=4" in out
    assert picture.exists()
    code, out, _ = told(capsys, "bounds", CONV, "--procs", "64", "--bounds-only", "--json")
    (point,) = json.loads(out)["points"]
    assert point["received"]["bound"] == pytest.approx(146400.88, abs=0.01)
    assert point["received"]["plan"] is None


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--procs", "64:1"), 2, "synth: --procs '64:1' is empty: 64 is more than 1; write LOW:HIGH"),
        (("--procs", "4", "--memory", "1GiB:1MiB"), 2, "synth: --memory '1GiB:1MiB' is empty"),
        (("--procs", "64", "--memory", "1KiB"), 4, "synth: no plan for 64 processes fits 1KiB per process"),
        (
            ("--procs", "64", "--memory", "1:3"),
            2,
            "synth: memory is 3 bytes; it must hold at least one float32",
        ),
        (("--procs", "64", "--plot", "x.jpg"), 2, "synth: x.jpg: a picture is a .svg, .png or .pdf file"),
        (("--procs", "1:99999", "--memory", "1:1G", "--points", "999"), 2, "are more than 10000 points"),
    ],
)
def test_bounds_of_bad_ranges(capsys: Captured, words: tuple[str, ...], code: int, message: str) -> None:
    got, out, err = told(capsys, "bounds", CONV, *words)
    assert (got, out) == (code, "")
    assert message in err
    assert err.count("\n") == 1


def test_certify(capsys: Captured, tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    assert told(capsys, "plan", CONV, "--procs", "64", "--certify", "-o", str(file))[0] == 0
    code, out, _ = told(capsys, "certify", str(file))
    assert code == 0
    assert "as claimed\nso a process receives at least" in out
    plan = str(tmp_path / "p.json")
    assert told(capsys, "plan", CONV, "--procs", "64", "--json", "-o", plan)[0] == 0
    assert "plan d9e6b4656711 has this layer" in told(capsys, "certify", str(file), "--plan", plan)[1]
    assert told(capsys, "plan", CONV, "--procs", "32", "--json", "-o", plan)[0] == 0
    code, out, err = told(capsys, "certify", str(file), "--plan", plan)
    assert (code, out) == (5, "")
    assert "procs is 64 in it and 32 in the plan" in err
    file.write_text(file.read_text().replace('"words": "1464', '"words": "1564'))
    code, out, err = told(capsys, "certify", str(file))
    assert (code, out) == (5, "")
    assert err.startswith("synth: the certificate is wrong")


def test_report_and_plot(capsys: Captured, tmp_path: Path) -> None:
    plan, page, picture = (str(tmp_path / name) for name in ("p.json", "r.html", "w.svg"))
    assert told(capsys, "plan", "examples/small.yaml", "--procs", "8", "--json", "-o", plan)[0] == 0
    assert told(capsys, "report", plan, "-o", page)[0] == 0
    assert Path(page).read_text(encoding="utf-8").startswith("<!doctype html>")
    assert told(capsys, "plot", plan, "--picture", "words", "-o", picture)[0] == 0
    data = json.loads(Path(plan).read_text())
    Path(plan).write_text(json.dumps({**data, "words": {"total": 1}}))
    for words in (("report", plan), ("plot", plan, "-o", picture)):
        code, out, err = told(capsys, *words)
        assert (code, out) == (3, "")
        assert "write the plan anew" in err


def test_plan_imports_nothing_heavy() -> None:
    heavy = ("torch", "cvxpy", "sympy", "networkx", "matplotlib", "jinja2", "rich", "msgspec")
    code = (
        "import sys; from synth.cli.main import main; main(['plan', 'examples/conv.yaml', '--procs', '64']); "
        f"found = [m for m in {heavy!r} if m in sys.modules]; sys.exit(f'imported {{found}}' if found else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_help_does_not_import_numpy() -> None:
    code = "import sys, synth.cli.main as c; c.parser().format_help(); sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
