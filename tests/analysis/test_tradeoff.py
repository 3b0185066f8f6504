"""Words against memory: the bound below every plan, both falling as memory grows."""

from __future__ import annotations

import itertools

import pytest

from synth.analysis.tradeoff import memory_curve
from synth.planning.derive import plan as plan_layer


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
