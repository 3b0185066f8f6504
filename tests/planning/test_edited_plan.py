"""Plan files that a user edited: decisions are taken, and a wrong or a lost edit is one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cases import CASES

import synth
from synth.base.errors import InputError
from synth.planning.edited_plan import parse_edited_plan
from synth.planning.one_line import one_line
from synth.planning.plan import Plan
from synth.planning.plan_file import parse_plan
from synth.planning.plan_json import to_json

ROOT = Path(__file__).parents[2]
Edit = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def plan() -> Plan:
    made = synth.plan(ROOT / "examples" / "small.yaml", 8)
    assert isinstance(made, Plan)
    return made


def edited(plan: Plan, edit: Edit) -> Plan:
    data = json.loads(json.dumps(to_json(plan)))
    edit(data)
    return parse_edited_plan(json.dumps(data), "plan.json")


def test_a_file_that_nobody_edited_is_the_plan(plan: Plan) -> None:
    same = edited(plan, lambda data: None)
    assert same == plan
    assert same.least_work == plan.least_work


@pytest.mark.parametrize("name", sorted(CASES))
@pytest.mark.one_in(3)
def test_decisions_alone_make_the_plan(name: str) -> None:
    """What follows from them is left out, so nothing but the fields of `--as` is read."""
    kept = {"schema", "name", "problem", "procs", "grid", "pass", "passes", "order", "turned", "classes"}
    data = {key: value for key, value in to_json(CASES[name]).items() if key in kept}
    assert parse_edited_plan(json.dumps(data), "plan.json").id == CASES[name].id


@pytest.mark.parametrize(
    ("edit", "line"),
    [
        (lambda data: data["grid"].update(b=2, k=4), "b=2 k=4; Out"),
        (lambda data: data["grid"].update(b=2, h=4), "b=2 h=4; Out"),
        (lambda data: data["passes"][0]["tiles"].update(c=4), "b=8; Out; c/4"),
        (lambda data: data.update(order=["g", "d", "w", "h", "c", "k", "b"]), "b=8; Out"),
    ],
)
def test_an_edit_is_the_plan_of_its_line(plan: Plan, edit: Edit, line: str) -> None:
    assert one_line(plan) == "b=8; Out"
    made = edited(plan, edit)
    assert one_line(made) == line
    again = synth.plan(ROOT / "examples" / "small.yaml", 8, as_=line)
    assert isinstance(again, Plan)
    assert made.id == again.id
    assert made.words == again.words


def test_passes_that_are_left_out_are_searched(plan: Plan) -> None:
    def edit(data: dict[str, Any]) -> None:
        data["grid"] |= {"b": 2, "c": 2, "k": 2}
        del data["passes"]

    made = edited(plan, edit)
    best = synth.plan(plan.layer, 8, grid={"b": 2, "c": 2, "k": 2}, rows={"h": "out", "w": "out"})
    assert isinstance(best, Plan)
    assert made.words == best.words
    assert made.grid == best.grid


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda d: d["grid"].update(b=9), r"grid\.b is 9, not a whole number from 1 to 8"),
        (lambda d: d["grid"].update(h=2), r"the grid has 16 processes, more than procs 8"),
        (lambda d: d["grid"].update(x=2), r"grid.*[Ii]nvalid enum value 'x'"),
        (lambda d: d["grid"].update(b="8"), r"grid.*[Ee]xpected `int`, got `str`"),
        (lambda d: d.update(procs=0), r"procs is 0, not a whole number from 1"),
        (lambda d: d.pop("grid"), r"missing required field `grid`"),
        (lambda d: d.update(order=["b", "k"]), r"order does not name each of the axes b, g, d, h, w, c, k"),
        (lambda d: d.update(turned=["b"]), r"rows b=in: blocks of small share no rows along b"),
        (lambda d: d.update(classes={"h": 3}), r"classes h=3: small has stride 1 and dilation 1"),
        (lambda d: d["passes"][0].update(stationary="none"), r"passes.*stationary.*nvalid enum value 'none'"),
        (lambda d: d["passes"][0]["tiles"].update(c=99), r"passes\[0\]\.tiles\.c is 99, not a whole number"),
        (lambda d: d["passes"][0].update(keeps=["in"]), r"passes\[0\]\.keeps names in, which is not reused"),
        (lambda d: d["passes"][0].update(panels=4), r"passes\[0\]\.panels is no field of a plan"),
        (lambda d: d["passes"].append(d["passes"][0]), r"passes are not those of pass 'forward'"),
        (lambda d: d["memory"].update(limit_bytes=400), r"memory\.limit_bytes is 400, but the plan needs"),
        (lambda d: d["balance"].update(exact_procs=True) or d["grid"].update(b=4), r"uses 4 of 8 processes"),
        (lambda d: d.update(odrer=d.pop("order")), r"odrer is no field of a plan; did you mean order\?"),
        (
            lambda d: d.update(stationary="in"),
            r"stationary is in, but it follows from passes\[0\]\.",
        ),
        (
            lambda d: d.update(panels=4),
            r"panels is 4, but it follows from passes\[0\]\.tiles, which",
        ),
        (lambda d: d["words"].update(total=5), r"words is .*, but it follows from grid and passes"),
        (lambda d: d["problem"].update(stride=[0, 1]), r"problem\.stride"),
        (lambda d: d.update(name=3), r"name is not text; write the name of the layer"),
        (lambda d: d.update(schema="synth.plan/9"), r"schema is 'synth\.plan/9', not 'synth\.plan/1'"),
    ],
)
def test_a_wrong_edit_is_one_sentence(plan: Plan, edit: Edit, said: str) -> None:
    with pytest.raises(InputError, match=rf"^plan\.json: .*{said}") as fault:
        edited(plan, edit)
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize(("there", "key"), [('"grid": {', "k"), ('"passes": [', "procs")])
def test_a_key_that_occurs_twice_is_refused(plan: Plan, there: str, key: str) -> None:
    text = json.dumps(to_json(plan))
    text = text.replace(there, f'{there}"k": 2, ' if key == "k" else f'"procs": 4, {there}', 1)
    for read in (parse_edited_plan, parse_plan):
        with pytest.raises(InputError, match=rf"^plan\.json: the key '{key}' occurs twice in one object"):
            read(text, "plan.json")


def test_the_plan_of_a_network_is_refused(tmp_path: Path) -> None:
    net = tmp_path / "net.yaml"
    net.write_text("input: [4, 4, 8, 8]\nlayers:\n  - {name: a, conv2d: {out_channels: 4, kernel: 3}}\n")
    made = json.dumps(synth.plan(net, 2).to_json())
    with pytest.raises(InputError, match="holds the plan of a network, not the plan of a layer"):
        parse_edited_plan(made, "net.json")
