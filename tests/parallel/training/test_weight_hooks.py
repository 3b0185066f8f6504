"""Old weight norms, whose hooks compute a weight: it is read as its parameters now say, with its gradient."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rank_pool import RankPool

pytestmark = pytest.mark.ranks
NORMS = "weight_norm", "spectral_norm"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    module = Path(__file__).with_name("weight_hook_ranks.py")
    with RankPool(module, 2, tmp_path_factory.mktemp("pair")) as pool:
        yield pool


@pytest.mark.parametrize("plan", ["data", "channel"])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.one_in(2)
def test_a_weight_is_read_as_its_parameters_are(norm: str, plan: str, pair: RankPool) -> None:
    """In losses, too, which reach the parameters through it."""
    for found in pair.call("read", norm, plan):
        assert max(found.values()) < 1e-9, found


@pytest.mark.parametrize("norm", NORMS)
def test_copies_and_removed_hooks_are_followed(norm: str, pair: RankPool) -> None:
    for found in pair.call("changed", norm):
        assert found.pop("listed")
        assert found.pop("class")
        assert max(found.values()) < 1e-9, found
