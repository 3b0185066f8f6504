"""Plan files: bit for bit there and back; every edit is refused in one sentence."""

from __future__ import annotations

import ast
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from effort import tried
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_problems import layers
from plan_mutants import run

from synth.base.errors import InputError
from synth.base.user_files import MOST_JSON
from synth.layer.layer import Layer
from synth.layer.passes import TASKS
from synth.network.plan import plan_json as network_plan_file
from synth.planning.derive import plan
from synth.planning.plan import Plan
from synth.planning.plan_file import EDITED, REMEDY, parse_plan, read_plan
from synth.search.strategies import STRATEGIES

NAMED = [strategy.name for strategy in STRATEGIES]
LAYER = Layer.conv3d([4, 6, 5, 6, 7], 8, 3, stride=2, padding=1, groups=2, name="σ layer")
PLAN = plan(LAYER, 12)
DATA: dict[str, Any] = PLAN.to_json()


@settings(max_examples=tried(15, 40))
@given(layers(), st.integers(1, 16), st.sampled_from(TASKS), st.sampled_from([None, *NAMED]))
def test_there_and_back(layer: Layer, procs: int, task: str, strategy: str | None) -> None:
    made = plan(layer, procs, pass_=task, strategy=strategy, balance=10)
    text = json.dumps(made.to_json())
    again = parse_plan(text, "p")
    assert again == made
    assert json.dumps(again.to_json()) == text


def test_limits_and_balance_come_back() -> None:
    made = plan(LAYER, 13, "4kB", balance=0.25)
    again = parse_plan(json.dumps(made.to_json(), indent=1), "p")
    assert (again.limit_bytes, again.balance, again.exact_procs) == (4000, 0.25, False)
    assert again == made
    exact = plan(LAYER, 12, exact_procs=True)
    assert parse_plan(json.dumps(exact.to_json()), "p").exact_procs


# key -> its type, or the types of its entries: what scripts rely on
CONTRACT: dict[str, Any] = {
    "schema": str,
    "name": str,
    "problem": {
        "extents": dict,
        "stride": list,
        "padding": list,
        "dilation": list,
        "groups": int,
        "dtype": str,
    },
    "procs": int,
    "used_procs": int,
    "pass": str,
    "algorithm": str,
    "stationary": str,
    "grid": dict.fromkeys("bgcdhwk", int),
    "work": dict.fromkeys("bgcdhwk", int),
    "tile": dict.fromkeys("bgcdhwk", int),
    "panels": int,
    "words": dict.fromkeys(["in", "ker", "out", "halo", "total"], int),
    "memory": {"words": int, "bytes": int, "limit_bytes": type(None)},
    "bounds": {"universal": float, "paper": float, "ratio": float},
    "closed_form": {"case": str, "cost": float, "T_k": float, "T_x": float},
    "relaxation": type(None),
    "alternatives": list,
}
ALTERNATIVE = {"name": str, "grid": dict, "words": int, "memory_bytes": int, "feasible": bool}


def check(data: dict[str, Any], contract: dict[str, Any]) -> None:
    for key, kind in contract.items():
        if isinstance(kind, dict):
            check(data[key], kind)
        else:
            assert type(data[key]) in ((int, float) if kind is float else (kind,)), key


def test_what_scripts_rely_on() -> None:
    check(DATA, CONTRACT)
    assert DATA["schema"] == "synth.plan/1"
    assert DATA["stationary"] in ("out", "in", "ker")
    assert DATA["algorithm"] in ("2D", "2.5D", "3D")
    for each in DATA["alternatives"]:
        if each["words"] is not None:
            check(each, ALTERNATIVE)
    assert set(DATA["problem"]["extents"]) == set("bgcdhwktrs")
    flat = plan(Layer.conv2d([2, 4, 5, 5], 4, 3), 2, "1MB").to_json()
    assert set(flat["problem"]["extents"]) == set("bchwkrs")
    assert set(flat["grid"]) == set("bchwk")
    assert flat["memory"]["limit_bytes"] == 10**6


def edited(change: Callable[[dict[str, Any]], object]) -> str:
    data = copy.deepcopy(DATA)
    change(data)
    return json.dumps(data)


def setting(*keys: str | int, to: object) -> Callable[[dict[str, Any]], object]:
    def change(data: Any) -> None:
        for key in keys[:-1]:
            data = data[key]
        data[keys[-1]] = to

    return change


REFUSED: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (setting("schema", to="synth.plan/2"), "schema is 'synth.plan/2', not 'synth.plan/1'"),
    (setting("name", to=3), "name is not text"),
    (setting("name", to=""), "name is , but the plan makes it conv3d"),
    (setting("procs", to=0), "procs is 0, not a whole number from 1 to 1073741824"),
    (setting("procs", to=True), "procs: expected `int`, got `bool`; write the plan anew"),
    (setting("procs", to=12.0), "procs: expected `int`, got `float`; write the plan anew"),
    (setting("procs", to=1), f"the grid has {PLAN.used_procs} processes, more than procs 1"),
    (setting("procs", to=13), f"id is {PLAN.id}, but the plan makes it "),
    (setting("id", to="0" * 12), f"id is 000000000000, but the plan makes it {PLAN.id}"),
    (setting("grid", to=[]), "grid: expected `object`, got `array`; write the plan anew"),
    (setting("grid", "q", to=1), "key in grid: invalid enum value 'q'; write the plan anew"),
    (setting("grid", "b", to=5), "grid.b is 5, not a whole number from 1 to 4"),
    (setting("grid", "b", to=-1), "grid.b is -1, not a whole number from 1 to 4"),
    (setting("used_procs", to=11), "used_procs is 11, but the plan makes it "),
    (setting("words", "total", to=1), "words is "),
    (setting("words", "in", to=float(PLAN.words["in"])), "words is "),
    (setting("work", "k", to=1), "work is "),
    (setting("tile", "k", to=99), "tile is "),
    (setting("panels", to=99), "panels is 99, but the plan makes it "),
    (setting("steps", to=99), "steps is 99, but the plan makes it "),
    (setting("stationary", to="all"), "stationary is all, but the plan makes it "),
    (setting("memory", to=None), "memory: expected `object`, got `null`; write the plan anew"),
    (setting("memory", "words", to=1), "memory is "),
    (setting("memory", "limit_bytes", to="1G"), "memory.limit_bytes: expected `int | null`, got `str`"),
    (setting("balance", "allowed", to=11), "balance.allowed is not a number from 0 to 10"),
    (setting("balance", "allowed", to=False), "balance.allowed: expected `float`, got `bool`"),
    (setting("balance", "least_work", to=0), "balance.least_work is 0, not a whole number from 1 to "),
    (setting("balance", "work", to=1), "balance is "),
    (setting("pass", to="backward-data"), "passes are not those of pass 'backward-data'"),
    (setting("passes", to=None), "passes: expected `array`, got `null`; write the plan anew"),
    (setting("passes", to=[]), "passes are not those of pass 'forward'"),
    (setting("passes", 0, "stationary", to="all"), "passes[0].stationary: invalid enum value 'all'"),
    (setting("passes", 0, "tiles", "c", to=0), "passes[0].tiles.c is 0, not a whole number from 1 to "),
    (setting("passes", 0, "kept", to=["none"]), "passes[0].kept[0]: invalid enum value 'none'"),
    (setting("passes", 0, "swapped", to=True), f"id is {PLAN.id}, but the plan makes it "),
    (setting("passes", 0, "kept", to=["ker"]), "passes[0].kept names ker, which is not saved before"),
    (setting("passes", 0, "keeps", to=["in"]), "passes[0].keeps names in, which is not reused later"),
    (
        setting("memory", "limit_bytes", to=1),
        f"memory.limit_bytes is 1, but the plan needs {PLAN.used_bytes}",
    ),
    (
        setting("balance", "least_work", to=1),
        f"balance.least_work is 1, but the plan makes it {PLAN.least_work}",
    ),
    (setting("bounds", "universal", to=1.0), "bounds is "),
    (setting("bounds", "ratio", to=True), "bounds is "),
    (setting("bounds", "paper", to=10**400), "bounds is "),  # fits no float
    (setting("closed_form", "T_k", to=1), "closed_form is "),
    (setting("paper_cost", "eq3", to=1.0), "paper_cost is "),
    (setting("alternatives", 0, "words", to=1), "digest is not that of relaxation, alternatives, time"),
    (setting("relaxation", to={"cost": 1.0}), "digest is not that of "),
    (setting("time", to={"seconds": 1.0}), "digest is not that of "),
    (setting("digest", to="0" * 16), "digest is not that of "),
    (setting("more", to=1), "more is no field of a plan"),
    (setting("memory", "limit_bytes", to=0), "memory.limit_bytes is 0, not a whole number from 1 to "),
    (setting("algorithm", to="4D"), "algorithm: invalid enum value '4D'"),
    (setting("algorithm", to="3D" if PLAN.algorithm == "2D" else "2D"), "algorithm is "),
    (lambda data: data.pop("algorithm"), "object missing required field `algorithm`"),
    (lambda data: data.pop("passes"), f"object missing required field `passes`; {EDITED}"),
    (lambda data: data.pop("grid"), f"object missing required field `grid`; {REMEDY}"),
    (setting("problem", to=None), "problem is not an object"),
    (setting("problem", "groups", to=4), "problem.groups: groups 4 does not divide the 6 input channels"),
    (setting("problem", "extents", "b", to=5), "problem.extents is "),
    (lambda data: data.pop("words"), "words is None, but the plan makes it "),
    (lambda data: data.pop("problem"), "problem is not an object"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_edits_are_refused(change: Callable[[dict[str, Any]], object], message: str) -> None:
    with pytest.raises(InputError) as fault:
        parse_plan(edited(change), "plan.json")
    told = str(fault.value)
    assert told.startswith(f"plan.json: {message}")
    assert "\n" not in told
    assert len(told) < 400
    assert fault.value.exit_code == 3


TRAINING = plan(Layer.conv2d([4, 6, 6, 6], 8, 3, padding=1), 4, pass_="training")


@pytest.mark.parametrize(
    ("passes", "key", "names", "message"),
    [
        (0, "keeps", ["ker"], "passes[1].kept names in, which is not saved before"),
        (1, "kept", [], "passes[1].kept lacks in, which an earlier pass keeps"),
        (1, "kept", ["in", "ker"], "passes[1].kept names ker, which is not saved before"),
        (2, "keeps", ["in"], "passes[2].keeps names in, which is not reused later"),
    ],
)
def test_a_pass_reuses_what_another_saves(passes: int, key: str, names: list[str], message: str) -> None:
    data = TRAINING.to_json()
    assert [each["pass"] for each in data["passes"]] == ["forward", "backward-filter", "backward-data"]
    data["passes"][passes][key] = names
    with pytest.raises(InputError) as fault:
        parse_plan(json.dumps(data), "p")
    assert str(fault.value) == f"p: {message}; {REMEDY}"


def test_an_edit_that_follows_the_messages_ends() -> None:
    """Who changes a decision, and then each number that a message names, gets a valid plan or none."""
    from synth.simulation.simulate import simulated

    source = {**TRAINING.to_json(), "balance": {**TRAINING.to_json()["balance"], "allowed": 10.0}}
    for i, key, names in [(0, "keeps", ["in"]), (1, "kept", []), (0, "kept", ["out"]), (2, "swapped", True)]:
        data = copy.deepcopy(source)
        data["passes"][i][key] = names
        for _ in range(30):
            try:
                made = parse_plan(json.dumps(data), "p")
            except InputError as fault:
                place, _, rest = str(fault).removeprefix("p: ").partition(" is ")
                right = rest.partition(", but the plan makes it ")[2].rpartition("; write")[0]
                if place not in data or not right:
                    break  # a contradiction, which no number repairs
                data[place] = (
                    ast.literal_eval(right) if right[0] in "{[0123456789" and place != "id" else right
                )
            else:
                simulated(made)
                break
        else:
            pytest.fail(f"passes[{i}].{key}: the messages lead nowhere")


def test_the_work_balance_of_pinned_axes_comes_back() -> None:
    made = plan(LAYER, 12, grid={"b": 3}, balance=10)
    assert (made.pinned, made.least_work, PLAN.least_work) == (("b",), 432, 288)
    assert parse_plan(json.dumps(made.to_json()), "p") == made
    data = made.to_json()
    del data["balance"]["pinned"]
    with pytest.raises(InputError, match=r"balance\.least_work is 432, but the plan makes it 288"):
        parse_plan(json.dumps(data), "p")
    data = plan(LAYER, 13).to_json()
    data["balance"]["exact_procs"] = True
    with pytest.raises(InputError, match=r"balance\.exact_procs is true, but the grid uses 12 of 13"):
        parse_plan(json.dumps(data), "p")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "p:1:1: is not JSON"),
        ("{", "p:1:2: is not JSON"),
        ("[]", "p: schema is 'None', not 'synth.plan/1'"),
        ("7", "p: schema is 'None', not 'synth.plan/1'"),
        ('{"schema": NaN}', "p: is not JSON"),
        ("[" * 100_000, "p: is not JSON"),
        ('{"schema": ' + "9" * 5000 + "}", "p: is not JSON"),
    ],
)
def test_what_is_no_plan(text: str, message: str) -> None:
    with pytest.raises(InputError) as fault:
        parse_plan(text, "p")
    assert str(fault.value) == f"{message}; {REMEDY}"


@pytest.mark.parametrize("schema", ["synth.plan/0", "synth.plan/2", "synth.plan/10", "", 1])
def test_other_schema_versions_are_refused(schema: object) -> None:
    with pytest.raises(InputError) as fault:
        parse_plan(edited(setting("schema", to=schema)), "p")
    assert str(fault.value) == f"p: schema is {str(schema)!r}, not 'synth.plan/1'; {REMEDY}"


def test_the_plan_of_a_network_is_told_from_that_of_a_layer() -> None:
    with pytest.raises(
        InputError, match=r"p: the file holds the plan of a network, .* run it with `synth.parallelize"
    ):
        parse_plan(json.dumps({"schema": network_plan_file.SCHEMA}), "p")


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(DATA))
    assert read_plan(path) == PLAN
    cases: list[tuple[bytes, str]] = [
        (b"\xff\xfe", "is not UTF-8 text"),
        (b" " * (MOST_JSON + 1), f"has more than {MOST_JSON} bytes; a plan file is smaller"),
    ]
    for content, message in cases:
        path.write_bytes(content)
        with pytest.raises(InputError, match=message):
            read_plan(path)
    with pytest.raises(InputError, match="is a directory, not a file; name a plan file"):
        read_plan(tmp_path)


def test_a_plan_by_hand_comes_back_without_its_search() -> None:
    made = Plan(LAYER, 4, PLAN.grid._replace(b=1, g=1, d=1, h=1, w=1, c=1, k=4), PLAN.first)
    assert made.least_work is None
    assert parse_plan(json.dumps(made.to_json()), "p") == made


def test_no_mutant_is_accepted_with_numbers_that_do_not_follow() -> None:
    counts, faults = run(300, 0)
    assert not faults
    assert counts["refused"] > counts["accepted rightly"] > 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_none_of_many_mutants_is_accepted_with_numbers_that_do_not_follow() -> None:
    assert not run(10_000, 1)[1]
