"""Lean programs: short, of torch alone, with the words of the plan; they find wrong values and words."""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from allowed import refused
from cases import CASES
from lean_ranks import run_lean
from seeded_problems import random_plan

import synth
from synth.base.errors import UsageError
from synth.codegen.lean import render_lean
from synth.layer.axes import PerAxis
from synth.layer.layer import Layer
from synth.layer.passes import TASKS
from synth.planning.plan import Plan
from synth.schedule.pass_plan import PassPlan

REFUSED = {name for name, plan in CASES.items() if plan.classes or plan.nest.dtype == "bfloat16"}
LEAN = {name: plan for name, plan in CASES.items() if name not in REFUSED}
FEW = (  # every kind of move, on 4 ranks
    *("data_rotated", "cannon", "spatial", "idle_channel", "ker_stationary_sums", "back_spatial"),
    *("filter_data", "training_streams_b", "training_streams_up", "training_streams_matrix"),
)
LONGEST = 250, 320  # lines of a program of one pass, and of a training step
UNDIVIDED = {"conv1d": {"w": 1}}  # lean programs have no residue classes
EXAMPLES = sorted(path for path in Path("examples").rglob("*.yaml") if path.parent.name != "networks")


def faults(plans: dict[str, Plan], folder: Path) -> dict[str, object]:
    """Plan -> what its program said, where it found a fault or counted other words than the plan has."""
    by_size: dict[int, list[str]] = defaultdict(list)
    for name, plan in plans.items():
        by_size[plan.procs].append(name)
    found: dict[str, object] = {}
    for size, names in by_size.items():
        made = run_lean([render_lean(plans[name]) for name in names], size, folder / f"{size}")
        for name, ranks in zip(names, made, strict=True):
            plan = plans[name]
            for rank, (code, words, said) in enumerate(ranks):
                d = plan.distribution
                idle = rank >= plan.used_procs
                planned = plan.received.at(d.at(rank)) if not idle else dict.fromkeys(("in", "ker", "out"), 0)
                counted = {tensor.lower(): count for tensor, count in words.items()}
                if code or counted != {key: planned[key] for key in counted}:
                    found[name] = code, counted, planned, said
    return found


@pytest.mark.ranks
def test_lean_programs_compute_what_one_process_does(tmp_path: Path) -> None:
    plans = LEAN | {"idle_channel": replace(CASES["channel"], procs=4)}
    assert faults({name: plans[name] for name in FEW}, tmp_path) == {}


@pytest.mark.ranks
@pytest.mark.slow
def test_every_case(tmp_path: Path) -> None:
    assert faults(LEAN, tmp_path) == {}


@pytest.mark.ranks
@pytest.mark.slow
def test_random_plans(tmp_path: Path) -> None:
    plans = {}
    for seed in range(160):
        plan = random_plan(random.Random(seed), TASKS[seed % len(TASKS)])
        if not plan.classes and plan.nest.dtype not in ("bfloat16", "float16"):
            plans[f"{seed}"] = plan
    assert len(plans) > 100
    assert faults(plans, tmp_path) == {}


@pytest.mark.ranks
def test_the_check_finds_wrong_values_and_words(tmp_path: Path) -> None:
    right = render_lean(CASES["spatial"])
    words = right.replace('= 657, {"In": ', '= 657, {"In": 1')
    values = right.replace("return F.conv2d(", "return 2 * F.conv2d(")
    uncounted = right.replace("RECEIVED[tensor] += ", "RECEIVED[tensor] += 0 * ")
    assert len({right, words, values, uncounted}) == 4
    made = run_lean([right, words, values, uncounted], 4, tmp_path / "programs")
    assert [[rank[0] for rank in ranks] for ranks in made] == [[0] * 4, [5] * 4, [5] * 4, [5] * 4]
    said = [ranks[0][2] for ranks in made]
    assert "values and words are right" in said[0]
    assert "planned are 657, {'In': 1648, 'Ker': 1764, 'Out': 0}" in said[1]
    assert "rank 3: Out differs from one process" in said[2]
    assert "words: 0, {'In': 0, 'Ker': 0, 'Out': 0}; planned are 657, {'In': 648," in said[3]


@pytest.mark.parametrize("name", LEAN)
@pytest.mark.one_in(4)
def test_the_text_is_short_and_of_torch_alone(name: str) -> None:
    text = render_lean(LEAN[name])
    assert "synth.runtime" not in text
    assert refused(text, standalone=True) == []
    assert text.count("\n") <= LONGEST[bool(LEAN[name].later)]
    tree = ast.parse(text)
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert defined <= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


@pytest.mark.parametrize("path", EXAMPLES, ids=str)
@pytest.mark.one_in(4)
def test_programs_of_the_examples_are_short(path: Path) -> None:
    for procs in (1, 4, 8, 12, 16, 48, 64):
        plan = synth.plan(path, procs, classes=UNDIVIDED.get(path.stem))
        assert render_lean(plan).count("\n") <= 250
    for procs in (4, 16, 64):
        plan = synth.plan(path, procs, classes=UNDIVIDED.get(path.stem), pass_="training")
        assert render_lean(plan).count("\n") <= 300


def test_the_tutorial_says_how_long_its_program_is() -> None:
    lines = render_lean(synth.plan("examples/small.yaml", 4)).count("\n")
    assert f"This lean program has {lines} lines" in Path("docs/tutorial.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_has_no_lean_program_is_refused_in_one_sentence(name: str) -> None:
    said = "knows no residue classes" if CASES[name].classes else "bfloat16 would be rounded"
    with pytest.raises(UsageError, match=rf"^\w+: a lean program .*{said}.*, or leave out lean$"):
        render_lean(CASES[name])


def test_many_different_ranks_are_not_listed() -> None:
    layer = Layer.conv2d((1, 2, 300, 2), 2, 3, padding=1)
    text = render_lean(Plan(layer, 151, PerAxis(h=151), PassPlan()))
    assert text.count("\n") <= LONGEST[0]


def test_a_name_is_never_code() -> None:
    quoted = replace(CASES["data"], layer=replace(CASES["data"].layer, name='it\'s a "layer" \\N{x}'))
    tree = ast.parse(render_lean(quoted))
    plain = ast.parse(render_lean(CASES["data"]))
    assert [type(node) for node in ast.walk(tree)] == [type(node) for node in ast.walk(plain)]
