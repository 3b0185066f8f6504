"""The parametrised geometric program has the same optima as one that is built for each point."""

from __future__ import annotations

import pytest
from effort import tried
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_problems import image_nests

from synth.analysis.gp_parametric import ProgramFamily
from synth.base.errors import InfeasibleError
from synth.bounds.geometric_program import relax_accessed, relax_received
from synth.layer.nest import Nest

TENSORS = ("In", "Ker", "Out")


def anew(nest: Nest, procs: int, memory: float | None) -> float | None:
    try:
        return relax_received(nest, procs, memory).cost
    except InfeasibleError:
        return None


@settings(derandomize=True, deadline=None, max_examples=tried(3, 6))
@given(
    image_nests(groups=3), st.lists(st.tuples(st.integers(1, 300), st.floats(0.5, 9)), min_size=2, max_size=3)
)
def test_same_optima(nest: Nest, asked: list[tuple[int, float]]) -> None:
    family = ProgramFamily(nest)
    for procs, scale in asked:
        for memory in (None, scale * nest.total_words / procs + 30):
            close = 1e-5 * (nest.total_words / procs + 1)
            once, again = anew(nest, procs, memory), family.received(procs, memory)
            assert (once is None) == (again is None)
            if once is not None and again is not None:
                assert again == pytest.approx(once, rel=1e-5, abs=close)
                smooth = family.received(procs, memory, halos=False)
                assert smooth is not None
                assert smooth <= again + close
            if memory is None:
                least = min(relax_accessed(nest, procs, memory, t).cost for t in TENSORS)  # type: ignore[arg-type]
                assert family.accessed(procs, memory) == pytest.approx(least, rel=1e-5)
