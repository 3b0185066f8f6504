"""What a user changes after `parallelize` is effective in the next pass, or refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from live_ranks import CHANGES, PLANS
from rank_pool import RankPool

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    """Two ranks that stay."""
    with RankPool(Path(__file__).with_name("live_ranks.py"), 2, tmp_path_factory.mktemp("live")) as ranks:
        yield ranks


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_effective(two: RankPool, name: str) -> None:
    plan = [*PLANS][[*CHANGES].index(name) % len(PLANS)]
    assert max(two.call("changed", name, plan)) < 1e-8, plan


@pytest.mark.parametrize("plan", PLANS)
def test_statistics_of_an_averaged_model_are_those_of_one_process(two: RankPool, plan: str) -> None:
    assert max(two.call("averaged", plan)) < 1e-8


def test_copies_have_settings_of_their_own(two: RankPool) -> None:
    assert max(max(errors) for errors in two.call("momentum_of_a_copy", "rows")) < 1e-8


def test_no_probability_is_refused(two: RankPool) -> None:
    for said in two.call("no_probability"):
        assert said == "dropout has p = 1.5, which is no probability; give 0 to 1"
