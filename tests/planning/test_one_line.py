"""The one-line form: print, read, same plan; what is no plan of the layer is refused in one sentence."""

from __future__ import annotations

import json
import random

import pytest
from cases import CASES
from effort import tried
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_problems import layers
from seeded_problems import random_plan

import synth
from synth.base.errors import UsageError
from synth.layer.layer import Layer
from synth.layer.passes import TASKS
from synth.planning.derive import plan
from synth.planning.one_line import one_line
from synth.planning.plan import Plan
from synth.planning.plan_consistency import decision_faults
from synth.planning.plan_file import parse_plan

LAYER = Layer.conv2d([8, 6, 8, 8], 8, 3, padding=1)


def typed(made: Plan) -> Plan:
    """The plan that the line of another one gives."""
    gradients = [tensor.lower() for tensor in made.gradients]
    asked = {"gradients": gradients} if made.pass_ == "training" else {}
    return plan(made.layer, made.procs, made.limit_bytes, pass_=made.pass_, as_=one_line(made), **asked)  # type: ignore[arg-type]


@settings(max_examples=tried(15, 40), deadline=None)
@given(
    layers(), st.integers(1, 12), st.sampled_from(TASKS), st.sampled_from([None, "khwcbgd"]), st.booleans()
)
def test_print_and_read(layer: Layer, procs: int, task: str, order: str | None, tight: bool) -> None:
    made = plan(layer, procs, pass_=task, order=order, balance=10)
    if tight:
        made = plan(layer, procs, made.used_bytes, pass_=task, order=order, balance=10)
    again = typed(made)
    assert again.id == made.id
    assert parse_plan(json.dumps(again.to_json()), "p") == again


@pytest.mark.parametrize("seed", range(60))
def test_any_plan_is_printed_and_read(seed: int) -> None:
    """Orders, tiles, swapped loops and saved tensors that no search would choose."""
    rng = random.Random(seed)
    made = random_plan(rng, rng.choice(TASKS))
    if not list(decision_faults(made)):
        assert typed(made).id == made.id


@pytest.mark.parametrize("name", sorted(CASES))
def test_cases(name: str) -> None:
    """Among them residue classes, cuts by input rows, transposed layers."""
    assert typed(CASES[name]).id == CASES[name].id


def test_reports_print_the_line() -> None:
    made = plan(LAYER, 4, order="kb", grid={"b": 2, "k": 2})
    assert one_line(made).startswith("b=2 k=2; order k,b; ")
    for text in (str(made), synth.report(made)):
        assert f'--as "{one_line(made)}"' in text


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "a stationary tensor is missing"),
        ("b=2", "a stationary tensor is missing"),
        ("b=2; Outt", "'Outt' is no decision and no stationary tensor"),
        ("b=2; forward", "'forward' names no stationary tensor"),
        ("b=2 b=2; Out", "'b=2' is no count of an axis"),
        ("q=2; Out", "'q=2' is no count of an axis"),
        ("b=9; Out", "grid.b is 9, not a whole number from 1 to 8"),
        ("b=8; Out", "the grid has 8 processes, more than procs 4"),
        ("b=2; Out; c/7", "passes[0].tiles.c is 7, not a whole number from 1 to 6"),
        ("b=2; Out; k/2 c/2", "does not begin with the loop along which Out streams; write 'c/2 k/2'"),
        ("b=2; Out; reuses In", "passes[0].kept names in, which is not saved before"),
        ("b=2; backward-data Out", "passes are not those of pass 'forward'"),
        ("b=2; rows b=in; Out", "share no rows along b"),
        ("b=2; rows w=up; Out", "rows w=up is not in or out"),
        ("b=2; classes h=2; Out", "its numbers of classes are 1"),
        ("b=2; order b,b; Out", "order does not name each of the axes"),
    ],
)
def test_what_is_no_plan(line: str, said: str) -> None:
    with pytest.raises(UsageError) as fault:
        plan(LAYER, 4, as_=line)
    assert said in str(fault.value)


def test_a_line_leaves_nothing_to_search() -> None:
    with pytest.raises(UsageError, match=r"is a whole plan; leave out grid=\{'b': 2\}"):
        plan(LAYER, 4, as_="b=4; Out", grid={"b": 2})
    with pytest.raises(UsageError, match="objective time searches a plan"):
        plan(LAYER, 4, as_="b=4; Out", objective="time", machine="lassen")
    with pytest.raises(UsageError, match=r"memory\.limit_bytes is 64, but the plan needs"):
        plan(LAYER, 4, 64, as_="b=4; Out")
    with pytest.raises(UsageError, match=r"as_='b=4; Out' is for one layer, not for the network"):
        synth.plan("examples/networks/tutorial.yaml", 4, as_="b=4; Out")
