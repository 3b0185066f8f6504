"""Models of sequences, sounds, spheres and fields of the survey: as in one process, on 2 to 4 ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rank_pool import RankPools

from benchmarks.models_survey.entry import entries_of
from benchmarks.models_survey.table import FORWARD, STEPS

MODELS = [(entry.library, entry.name) for each in ("sequence", "field") for entry in entries_of(each)]
FEWER = [(2 + number % 2, *model) for number, model in enumerate(MODELS)]
pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def pools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPools]:
    with RankPools(Path(__file__).with_name("survey_ranks.py"), tmp_path_factory.mktemp("ranks")) as found:
        yield found


def assert_as_one_process(pools: RankPools, size: int, library: str, name: str) -> None:
    """Outputs, the state after two steps of SGD, and words of the rank where they differ most."""
    first, *_ = pools(size).call("compared", library, name)
    assert "refused" not in first
    assert first["forward"] <= FORWARD
    assert first["steps"] <= max(STEPS, 4 * first.get("rounding", 0.0))
    assert first["planned"] == first["received"]


@pytest.mark.parametrize(("library", "name"), MODELS, ids=[name for _, name in MODELS])
@pytest.mark.one_in(42)
def test_models_are_those_of_one_process(library: str, name: str, pools: RankPools) -> None:
    assert_as_one_process(pools, 4, library, name)


@pytest.mark.parametrize(("size", "library", "name"), FEWER, ids=[f"{name}, {n}" for n, _, name in FEWER])
@pytest.mark.one_in(42)
def test_models_on_fewer_ranks(size: int, library: str, name: str, pools: RankPools) -> None:
    assert_as_one_process(pools, size, library, name)
