"""The name of the algorithm: it follows from what the id hashes, so one id has one text."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis_problems import layers

from synth.base.errors import InfeasibleError
from synth.codegen.render import render
from synth.layer.layer import Layer
from synth.planning.derive import plan
from synth.planning.plan import Plan
from synth.planning.plan_file import parse_plan

CONV4 = Layer.conv2d([32, 256, 14, 14], 256, 3, padding=1, name="conv4")
MATMUL = Layer.matmul(2048, 2048, 2048)


def again(made: Plan, memory: int | None, procs: int | None = None) -> Plan:
    """The grid, residue classes and stationary tensor of a plan, fixed, under another memory limit."""
    return plan(
        made.layer,
        procs or made.procs,
        memory,
        grid=made.grid._asdict(),
        stationary=made.first.stationary.lower(),
        balance=10,
        pass_=made.pass_,
        classes={**dict.fromkeys(made.layer.spatial_axes, 1), **dict(made.classes)},
    )


@pytest.mark.parametrize(("share", "name"), [(1.0, "3D"), (0.8, "3D"), (0.5, "2.5D"), (0.45, "2D")], ids=str)
def test_less_memory_splits_less(share: float, name: str) -> None:
    free = plan(CONV4, 64)
    tight = plan(CONV4, 64, int(share * free.used_bytes))
    assert tight.algorithm == name
    assert (tight.words["total"] > free.words["total"]) == (name != "3D")


def test_a_fixed_grid_has_the_name_of_its_decisions() -> None:
    """A limit that does not bind changes neither the id nor the name; buffers of messages do not stay."""
    frees = "    context.keep_no_buffers()  # the plan has a limit\n"
    pinned = plan(CONV4, 64, grid={"b": 16, "c": 2, "k": 2}, stationary="out")
    assert pinned.algorithm == "2.5D"  # another split of as many processes moves fewer words
    for memory in (pinned.used_bytes, 2**30, 2**40):
        limited = plan(CONV4, 64, memory, grid={"b": 16, "c": 2, "k": 2}, stationary="out")
        assert (limited.id, limited.algorithm) == (pinned.id, pinned.algorithm)
        assert render(limited).count(frees) == 1
        assert _without_memory(render(limited).replace(frees, "")) == _without_memory(render(pinned))
    best = plan(CONV4, 64)
    same = plan(CONV4, 64, grid=best.grid._asdict(), stationary="out")
    assert (same.id, same.algorithm) == (best.id, "3D")


def _without_memory(program: str) -> str:
    """A program without the line that says what it holds: without a limit buffers of messages, too."""
    return "\n".join(line for line in program.splitlines() if not line.startswith("Memory at most"))


def test_idle_processes_do_not_change_the_name_of_a_limited_plan() -> None:
    tight = plan(MATMUL, 64, int(0.6 * plan(MATMUL, 64).used_bytes))
    assert tight.used_procs < 64
    assert tight.algorithm == "2.5D"


@settings(max_examples=40)
@given(
    layers(6),
    st.integers(1, 12),
    st.floats(0.3, 1.5),
    st.sampled_from(["forward", "backward-data", "training"]),
    st.booleans(),
    st.sampled_from([0.0, 0.1, 10.0]),
)
def test_plans_with_one_id_have_one_name(
    layer: Layer, procs: int, share: float, task: str, exact: bool, balance: float
) -> None:
    try:
        free = plan(layer, procs, pass_=task, exact_procs=exact, balance=balance)
        tight = plan(
            layer, procs, max(8, int(share * free.used_bytes)), pass_=task, exact_procs=exact, balance=balance
        )
    except InfeasibleError:
        assume(False)
        raise
    if tight.limit_bytes and free.used_bytes <= tight.limit_bytes:
        assert tight.id == free.id
    known = {free.id: free.algorithm}
    assert free.algorithm in ("2D", "3D")  # nothing kept the search from splitting freely
    for made in (tight, again(free, None), again(tight, None), again(free, free.used_bytes)):
        assert known.setdefault(made.id, made.algorithm) == made.algorithm


@given(layers(6), st.integers(2, 12), st.floats(0.3, 1))
@settings(max_examples=20)
def test_a_plan_file_keeps_the_name(layer: Layer, procs: int, share: float) -> None:
    try:
        made = plan(layer, procs, max(8, int(share * plan(layer, procs).used_bytes)))
    except InfeasibleError:
        assume(False)
        raise
    read = parse_plan(json.dumps(made.to_json()), "p")
    assert (read, read.algorithm, str(read)) == (made, made.algorithm, str(made))
