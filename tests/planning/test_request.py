"""The request: every default stands once, and its command line makes the same request again."""

from __future__ import annotations

import argparse
import inspect
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import synth
from synth.analysis.sweep import SweepOptions
from synth.base.errors import UsageError
from synth.base.work_balance import BALANCE
from synth.cli.arguments import request_of
from synth.cli.main import parser
from synth.layer.axes import AXES
from synth.layer.layer import Layer
from synth.layer.passes import TASKS
from synth.network.request import NetworkRequest
from synth.planning.decisions import STATIONARY
from synth.planning.plan import Plan
from synth.planning.request import PlanRequest
from synth.search.request import Request
from synth.search.strategies import STRATEGIES

DEFAULTS = {field.name: field.default for field in fields(PlanRequest)[2:]}
NAMES = st.sampled_from(["conv.yaml", "a folder/σ.yaml", "it's.yaml", "-.yaml"])


def arguments(*words: str) -> argparse.Namespace:
    return parser().parse_args(words)


@pytest.mark.parametrize("command", ["plan", "emit", "run", "simulate"])
def test_the_commands_have_the_defaults_of_the_request(command: str) -> None:
    args = arguments(command, "conv.yaml", "--procs", "4")
    assert {name: getattr(args, name) for name in DEFAULTS} == DEFAULTS
    assert request_of(args) == PlanRequest("conv.yaml", 4)


def test_plan_has_the_defaults_of_the_request() -> None:
    parameters = inspect.signature(synth.plan).parameters
    assert list(parameters) == [field.name for field in fields(PlanRequest)]
    assert {name: parameters[name].default for name in DEFAULTS} == DEFAULTS


def test_the_default_balance_is_one_number() -> None:
    bounds = arguments("bounds", "conv.yaml", "--procs", "4")
    replay = arguments("replay", "net.yaml", "--procs", "4", "--machine", "lassen")
    given = [bounds.balance, replay.balance, PlanRequest.balance, Plan.balance, NetworkRequest.balance]
    assert {*given, Request.balance, SweepOptions.balance} == {BALANCE}


def test_the_default_balance_is_written_once() -> None:
    """No other module spells the number."""
    root = Path(synth.__file__).parent
    spelled = [
        path.name
        for folder in ("synth", "benchmarks")
        for path in (root.parent / folder).rglob("*.py")
        if "balance" in (text := path.read_text(encoding="utf-8")) and "0.10" in text
    ]
    assert spelled == ["work_balance.py"]


def without_conflicts(**values: Any) -> PlanRequest | None:
    try:
        return PlanRequest(**values)
    except UsageError:
        return None


@st.composite
def requests(draw: st.DrawFn) -> PlanRequest:
    axes = st.sampled_from(AXES)
    values = {
        "layer": NAMES,
        "procs": st.integers(1, 2**30),
        "memory": st.sampled_from([None, 4096, "16GiB", "1.5M"]),
        "objective": st.sampled_from(["words", "time", "paper"]),
        "stationary": st.sampled_from(STATIONARY),
        "grid": st.none() | st.dictionaries(axes, st.integers(1, 4)),
        "balance": st.floats(0, 10),
        "exact_procs": st.booleans(),
        "pass_": st.sampled_from(TASKS),
        "machine": st.sampled_from([None, "lassen", "a machine.yaml"]),
        "strategy": st.sampled_from([None, *(each.name for each in STRATEGIES)]),
        "order": st.none() | st.lists(axes, unique=True, min_size=1),
        "panels": st.none() | st.integers(1, 9),
        "gradients": st.sampled_from([("in", "ker"), ("ker",), ["ker", "in"]]),
    }
    request = draw(st.fixed_dictionaries(values).map(lambda drawn: without_conflicts(**drawn)))
    return request or PlanRequest("conv.yaml", 4)


@given(requests(), st.sampled_from(["plan", "emit", "run", "simulate"]))
def test_the_command_line_makes_the_same_request(request: PlanRequest, command: str) -> None:
    synth_, *words = request.command_line(command)
    assert synth_ == "synth"
    again = request_of(arguments(*words))
    assert again.limit_bytes == request.limit_bytes
    assert again == replace(request, layer=again.layer, memory=again.memory)
    assert Path(again.layer) == Path(request.layer)  # type: ignore[arg-type]


def test_defaults_are_left_out_of_the_command_line() -> None:
    assert PlanRequest("conv.yaml", 4).command_line() == ["synth", "plan", "conv.yaml", "--procs", "4"]
    flags = PlanRequest("conv.yaml", 4, objective="time", machine="lassen").command_line("emit")[5:]
    assert flags == ["--objective", "time", "--machine", "lassen"]


def test_a_layer_built_in_python_has_no_command_line() -> None:
    request = PlanRequest(Layer.conv2d([8, 3, 8, 8], 4, 3), 4)
    with pytest.raises(UsageError, match="has no command line; write a layer file"):
        request.command_line()
