"""Short habits of training code, on two ranks: as in one process, or refused in a sentence."""

from __future__ import annotations

import pytest
from habits_ranks import HABITS, QUICK
from habits_table import PLANS
from rank_pool import RankPool, pool_of

pytestmark = pytest.mark.ranks
ALL = [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK), id=name) for name in HABITS]


two = pool_of(__file__, "habits_ranks.py", 2)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.one_in(12)
def test_habit(two: RankPool, name: str, request: pytest.FixtureRequest) -> None:
    """With every plan, or with --slow alone; else the plans take turns."""
    turn = [*PLANS][list(HABITS).index(name) % len(PLANS)]
    for plan in PLANS if request.config.getoption("--slow") else [turn]:
        for error, said in two.call("run_habit", name, plan):
            assert error < 1e-8, f"{plan}: {said}"
            assert HABITS[name].refused in said or not HABITS[name].refused, said


def test_there_are_many() -> None:
    assert len(HABITS) >= 60
    assert set(HABITS) >= QUICK
