"""Programs of plans with residue classes on real ranks: values as torch's, words as planned and counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from program_batch import run_programs

import synth
from synth.launch.run import Outcome
from synth.layer.layer import Layer

IMAGE = Layer.conv2d((2, 4, 11, 10), 6, 3, padding=(2, 1), dilation=(3, 2), name="image")
SIGNAL = Layer.conv1d((1, 4, 30), 4, 3, padding=((8, 0),), dilation=4, groups=2, name="causal")
STRIDED = Layer.conv2d((1, 4, 17, 9), 2, 3, stride=2, padding=3, dilation=(4, 1), name="strided")
HALF = Layer.conv1d((2, 4, 18), 6, 2, dilation=3, dtype="bfloat16", name="half")
UP = Layer.conv2d((2, 4, 7, 6), 6, 3, padding=1, dilation=2, transposed=True, name="up")
PLANS: list[tuple[Layer, dict[str, Any]]] = [
    (IMAGE, {"classes": {"h": 3, "w": 2}}),
    (
        IMAGE,
        {"classes": {"h": 3, "w": 2}, "grid": {"b": 2, "h": 2}, "rows": {"h": "in"}, "pass_": "training"},
    ),
    (IMAGE, {"classes": {"h": 3, "w": 1}, "pass_": "backward-data"}),
    (SIGNAL, {"classes": {"w": 2}, "grid": {"b": 2, "w": 2}, "pass_": "training"}),
    (STRIDED, {"classes": {"h": 2}, "pass_": "training"}),
    (HALF, {"classes": {"w": 3}, "pass_": "training"}),
    (UP, {"classes": {"h": 2, "w": 2}, "grid": {"b": 2, "k": 2}, "pass_": "training"}),
    (UP, {"classes": {"h": 1, "w": 2}}),
]


@pytest.mark.ranks
def test_programs_have_the_values_of_torch_and_the_planned_words(tmp_path: Path) -> None:
    """Uneven classes, padding that the dilation does not divide, rows cut within classes, half types."""
    plans = [synth.plan(layer, 4, exact_procs=True, balance=10.0, **wanted) for layer, wanted in PLANS]
    assert all(plan.classes for plan in plans)
    faults = run_programs(plans, 4, tmp_path / "programs")
    assert faults == [""] * len(plans)


def test_a_rate_counts_the_work_of_the_layer_without_filler() -> None:
    plan = synth.plan(SIGNAL, 4, classes={"w": 4}, balance=10.0)
    assert plan.nest.work > SIGNAL.nest.work
    seconds = 2 * SIGNAL.nest.work / 1e9
    told = str(Outcome(plan, seconds, [seconds], [dict.fromkeys(plan.words, 0)] * 4))
    assert "1.00 GFlop/s" in told
