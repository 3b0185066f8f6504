"""The README and the page of commands: commands run as written, and its table names every command."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest

import synth
from synth.cli.main import main, parser

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
ROWS = [row for line in PAGE.splitlines() if line.startswith("| `synth") for row in line.split("|")[1:2]]
COMMANDS = [
    command for row in ROWS for command in re.findall(r"`synth ([^`]*)`", row) if command[0].islower()
]
MEASURES = [command for command in COMMANDS if command.startswith("calibrate")]
NETWORK = """
input: [32, 3, 16, 16]
layers:
  - {name: one, conv2d: {out_channels: 32, kernel: 3, padding: 1}}
  - relu: {}
  - {name: two, conv2d: {out_channels: 64, kernel: 3, stride: 2, padding: 1}}
  - globalpool: {}
"""
MODEL = "from torch import nn\n\n\ndef factory():\n    return nn.Conv2d(3, 8, 7, 2, 3)\n"


def test_the_shown_report_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    command, shown = re.findall(r"^    \$ synth (.*)\n\n((?:    .*\n|\n)*)", README, re.M)[0]
    assert main(shlex.split(command)) == 0
    printed = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for line in shown.splitlines():
        assert line.strip() == "..." or " ".join(line.split()) in printed


@pytest.mark.ranks
def test_every_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("LAYER.yaml").write_text((ROOT / "examples/small.yaml").read_text())
    Path("NET.yaml").write_text(NETWORK)
    Path("pkg").mkdir()
    Path("pkg/mod.py").write_text(MODEL)
    for name in ("plan.json", "a.json", "b.json"):
        assert main(["plan", "LAYER.yaml", "--procs", "4", "--json", "-o", name]) == 0
    assert main(["plan", "LAYER.yaml", "--procs", "4", "--certify", "-o", "certificate.json"]) == 0
    for command in COMMANDS:
        if command in MEASURES and not request.config.getoption("--slow"):
            continue  # a minute on a busy machine
        assert main(shlex.split(command)) == 0, command
    for made in ("conv.py", "net.yaml", "report.html", "words.svg"):
        assert Path(made).stat().st_size > 0


def test_every_command_is_in_the_table() -> None:
    known = parser()._subparsers
    assert known is not None
    (commands,) = (set(action.choices or ()) for action in known._group_actions)
    assert commands == {command.split()[0] for command in COMMANDS}


def measured(results: str) -> dict[tuple[str, str], list[float]]:
    """(network, contender) -> seconds, MB moved and MB held on 4 processes, of a table of results."""
    found, network, procs = {}, "", ""
    for line in (ROOT / "benchmarks/results" / results).read_text(encoding="utf-8").splitlines():
        cells = [cell.strip(" *") for cell in line.strip("|").split("|")]
        if len(cells) == 12:
            network, procs = cells[0] or network, cells[1] or procs
            if procs == "4":
                found[network, cells[2]] = [float(cells[i]) for i in (4, 9, 10)]
    return found


def test_the_gains_are_those_of_the_results() -> None:
    table = README.split("| network | links |")[1].split("\n\n")[0]
    results = {"60 Mbit/s": measured("models-60mbit.md"), "memory": measured("models.md")}
    network = links = ""
    seen = 0
    for line in table.splitlines()[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        network, links = cells[0].split(",")[0].replace("-", "").lower() or network, cells[1] or links
        words, moved, held, seconds = map(float, cells[3:])
        found = results[links][network, {"synth": "ours, local", "Tensor": "tensor"}.get(cells[2], cells[2])]
        assert [seconds, moved, held] == pytest.approx(found, abs=0.051)
        assert seconds == pytest.approx(found[0], abs=0.0051)
        assert words == pytest.approx(found[1] / 4, abs=0.051)  # float32
        seen += 1
    assert seen == 16


PICTURE = ROOT / "docs/pictures/gains.svg"


def test_the_first_screen_has_the_numbers_of_its_picture() -> None:
    first, picture = README.split("| who |")[0], PICTURE.read_text(encoding="utf-8")
    numbers = [text for text in re.findall(r"<text [^>]*>([^<]*)</text>", picture) if text[0].isdigit()]
    assert len(numbers) == 1 + 2 * 5  # the title begins with a digit, too
    holds, receives = ("5.82 GiB", "5.96 GiB", "70.9 GiB"), ("66.9 million", "102 million", "28.6 million")
    for said in (*holds, *receives):
        assert said in " ".join(first.split())
        assert said.split()[0] in numbers
    assert "60 of 64 processes have no volume" in picture


def test_a_bound_at_the_load_of_a_plan_and_one_at_an_even_share() -> None:
    layer = ROOT / "examples/conv.yaml"
    for procs in (64, 61):
        made = synth.plan(layer, procs)
        assert isinstance(made, synth.Plan)
        alone = synth.lower_bounds(layer, procs, plans=False, relaxations=False).points[0].received
        certified, even = round(made.bound.words), round(alone.bound or 0)
        assert (certified == even) == (procs == 64)
    shown = (f"{number:,}".replace(",", " ") for number in (certified, even))
    assert "certificate has {} words and `--bounds-only` {}".format(*shown) in " ".join(README.split())


@pytest.mark.slow
def test_the_picture_is_that_of_the_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs/site"))
    gains = importlib.import_module("gains")
    assert gains.svg(gains.planned()) == PICTURE.read_text(encoding="utf-8"), "run `make pictures`"
