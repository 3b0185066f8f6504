"""The numbers of one layer and of one network are the same in all commands, files, pages and pictures.

Each command says them in its own words. They are read from what it prints, as a reader does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import synth
from synth.base.units import show_bytes
from synth.cli.main import main

Run = Callable[..., str]
LAYER = Path("examples/small.yaml").resolve()
NETWORK = Path("examples/networks/tutorial.yaml").resolve()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in an empty folder; returns what it printed."""
    monkeypatch.chdir(tmp_path)

    def call(*words: object) -> str:
        assert main([str(each) for each in words]) == 0
        return capsys.readouterr().out

    return call


def number(pattern: str, text: str) -> float:
    """The one number that a pattern finds in a text; spaces group its digits."""
    found = {each.replace(" ", "") for each in re.findall(pattern, text)}
    assert len(found) == 1, (pattern, found)
    return float(found.pop())


N = r"(\d{1,3}(?: \d{3})+|\d+(?:\.\d+)?)"


@pytest.mark.parametrize("pass_", ["forward", "training"])
def test_one_layer(run: Run, pass_: str) -> None:
    asked = (LAYER, "--procs", 4, "--pass", pass_)
    text = run("plan", *asked)
    run("plan", *asked, "--json", "-o", "plan.json")
    data: dict[str, Any] = json.loads(Path("plan.json").read_text())
    plan = synth.read_plan("plan.json")
    assert isinstance(plan, synth.Plan)
    words, bound = plan.words["total"], plan.bound.words
    explained, simulated = run("explain", "plan.json"), json.loads(run("simulate", "plan.json", "--json"))
    program = run("emit", *asked)
    run("report", "plan.json", "-o", "report.html")
    page = Path("report.html").read_text()
    said = {
        "plan": number(rf"together {N} words", text),
        "plan, its row among strategies": number(rf"this plan +\S.*?  +{N}  +1\.00", text),
        "plan --json": data["words"]["total"],
        "explain": number(rf"together +{N}\n", explained),
        "explain --json": json.loads(run("explain", "plan.json", "--json"))["words"],
        "simulate": simulated["words"]["total"],
        "diff": number(rf"received together +{N}  ", run("diff", "plan.json", "plan.json")),
        "emit": number(rf"at most {N} words\s+received", program),
        "report": number(rf"words received</span><strong>{N}<", page),
        "str": number(rf"words +{N} received per process", str(plan)),
    }
    assert set(said.values()) == {words}, said
    bounds = {
        "plan": number(rf"universal lower bound +{N} received", text),
        "explain": number(rf"what no schedule goes below\n +{N} words", explained),
        "plan --json": data["bounds"]["universal"],
    }
    assert {round(each) for each in bounds.values()} == {round(bound)}, bounds
    assert round(number(rf"lower bound</span><strong>{N}<", page)) == round(bound)
    memory = {
        "plan": number(rf"memory per process, at most\n +{N} words", text),
        "simulate": simulated["planned_memory_words"],
        "emit": number(rf"Memory at most {N} words", program),
    }
    assert set(memory.values()) == {plan.used_words}, memory
    assert show_bytes(plan.used_bytes) in page
    assert max(simulated["peak_words_per_rank"]) <= plan.used_words
    if pass_ == "forward":
        point = json.loads(run("bounds", LAYER, "--procs", 4, "--json"))["points"][0]["received"]
        assert point["plan"]["words"] == words
        assert point["bound"] == pytest.approx(bound)
        study = synth.lower_bounds(LAYER, 4)
        assert study.records()[0]["received.plan.words"] == words
        assert number(rf"\n4 +{N}  ", str(study).split("accessed words")[0]) == round(bound)
        run("plan", *asked, "--certify", "-o", "certificate.json")
        certified = run("certify", "certificate.json", "--plan", "plan.json")
        ((above, below),) = re.findall(r"at least (\d+)(?:/(\d+))? words", certified)
        assert 0 <= bound - int(above) / int(below or 1) < 1


@pytest.mark.parametrize("pass_", ["forward", "training"])
def test_one_network(run: Run, pass_: str) -> None:
    asked = (NETWORK, "--procs", 4, "--pass", pass_)
    text = run("plan", *asked)
    run("plan", *asked, "--json", "-o", "plan.json")
    data: dict[str, Any] = json.loads(Path("plan.json").read_text())
    made = synth.plan(NETWORK, 4, pass_=pass_)
    assert isinstance(made, synth.NetworkPlan)
    words = round(made.cost) + sum(made.words_beside.values())
    run("report", "plan.json", "-o", "report.html")
    page, read = Path("report.html").read_text(), synth.read_plan("plan.json")
    explained = json.loads(run("explain", "plan.json", "--json"))
    said = {
        "plan": number(rf"all in all at most {N} words", text) if made.words_beside else words,
        "plan, beside what is in use": number(rf"this plan +{N}  +", text.split("what is in use today")[1]),
        "plan --json": data["cost"] + sum(data.get("beside", {}).values()),
        "plan --json, beside what is in use": data["today"][0]["words"],
        "explain": explained["cost"],
        "report": number(rf"words in all</span><strong>{N}<", page),
        "str": number(rf"{N} words received", str(made)),
        "str of the file": number(rf"{N} words received", str(read)),
    }
    assert set(said.values()) == {words}, said
    held = show_bytes(made.held_bytes)
    assert f"holds at most {held}" in text
    assert f"{held} per process" in str(made)
    assert f"{held} per process" in str(read)
    assert page.count(held) >= 2  # the tile, and the row of this plan
    assert data["today"][0]["memory_bytes"] == made.held_bytes
    singles = {each.name: each.cost for each in made.single_strategies}
    assert {each["name"]: each["cost"] for each in data["singles"]} == singles


def test_seconds_of_one_network(run: Run) -> None:
    asked = (NETWORK, "--procs", 16, "--machine", "lassen", "--pass", "training")
    played = json.loads(run("replay", *asked, "--json"))
    text = run("replay", *asked, "--report", "replay.html")
    planned = run("plan", *asked, "--objective", "time")
    page = Path("replay.html").read_text()
    ms = number(rf"together {N} ms", planned)
    assert played["planned_seconds"] * 1e3 == pytest.approx(ms, rel=1e-3)
    assert number(rf"the plan counts {N} ms", text) == number(rf"the plan counts {N} ms", page) == ms
    assert number(rf"training step: {N} ms = ", text) == pytest.approx(played["seconds"] * 1e3, rel=1e-3)
    assert played["pass"] == "training"
    forward = (NETWORK, "--procs", 16, "--machine", "lassen", "--pass", "forward")
    predicted = json.loads(run("predict", *forward, "--json"))
    plan = run("plan", *forward, "--objective", "time")
    (row,) = (each for each in predicted["made"] if each["strategy"] == "plan")
    assert row["seconds"] * 1e3 == pytest.approx(number(rf"together {N} ms", plan), rel=1e-3)
    assert "strategy " in run("predict", *forward, "--csv", "rows.csv")
    rows = Path("rows.csv").read_text()
    assert rows == run("predict", *forward, "--csv")
    assert f"plan,{row['seconds']}," in rows
