"""The recipes of the documentation run on four ranks and are as in one process."""

from __future__ import annotations

import importlib.util

import pytest
from rank_pool import RankPool, pool_of

pytestmark = pytest.mark.ranks


ranks = pool_of(__file__, "recipes_ranks.py", 4)


@pytest.mark.parametrize("name", ["backbone_and_head", "replicas", "titan", "by_lightning"])
@pytest.mark.one_in(4)
def test_a_recipe_is_as_in_one_process(name: str, ranks: RankPool) -> None:
    if name == "by_lightning" and importlib.util.find_spec("lightning") is None:
        pytest.skip("lightning is not installed")
    for error in ranks.call("error", name, seconds=100):
        assert error < 1e-9


@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed")
@pytest.mark.slow
def test_the_trainer_of_transformers_is_refused_by_name(ranks: RankPool) -> None:
    for said in ranks.call("trainer", seconds=100):
        assert "accelerate" in said
