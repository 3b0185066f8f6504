"""Words against memory: the bound below every plan, both falling as memory grows."""

from __future__ import annotations

import itertools

import pytest

from synth.analysis.tradeoff import memory_curve
from synth.planning.derive import plan as plan_layer


@pytest.mark.parametrize("gradients", [("in", "ker"), ("ker",)])
def test_the_curve_of_a_training_step_is_that_of_its_passes(gradients: tuple[str, ...]) -> None:
    plan = plan_layer("examples/resnet50/conv4_x_3x3.yaml", 64, pass_="training", gradients=gradients)
    curve = memory_curve(plan, points=6, searches=3)
    at = next(p for p in curve if p.limit_words == plan.used_words)
    assert at.bound == pytest.approx(plan.bound.words, rel=1e-3)  # their loads may differ a little
    assert at.bound > plan_layer("examples/resnet50/conv4_x_3x3.yaml", 64).bound.words
    assert at.regime == "3D"
    assert at.words == plan.words["total"]
    assert all(p.words >= p.bound for p in curve if p.words is not None)


@pytest.mark.parametrize(("layer", "procs"), [("conv", 64), ("small", 8), ("matmul", 27)])
def test_bound_below_plans_and_both_fall(layer: str, procs: int) -> None:
    plan = plan_layer(f"examples/{layer}.yaml", procs)
    curve = memory_curve(plan)
    assert [p.limit_words for p in curve] == sorted({p.limit_words for p in curve})
    for one, more in itertools.pairwise(curve):
        assert one.bound >= more.bound * (1 - 1e-12)
        if one.words is not None:
            assert more.words is not None
            assert more.words <= one.words
    assert all(p.words >= p.bound * (1 - 1e-9) for p in curve if p.words is not None)
    at = next(p for p in curve if p.limit_words == plan.used_words)
    assert at.words == plan.words["total"]
