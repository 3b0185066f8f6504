"""What forward leaves in attributes is not computed by ranks, so reading it there is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rank_pool import RankPool

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    module = Path(__file__).with_name("left_values_ranks.py")
    with RankPool(module, 2, tmp_path_factory.mktemp("ranks")) as pool:
        yield pool


def test_what_forward_leaves_is_refused_where_it_is_read(ranks: RankPool) -> None:
    """Each attribute had the value of before the first pass, in losses, too."""
    for found in ranks.call("left"):
        assert found["before"] == (0.0, 0.0, None, 0)
        for name, said in found["found"].items():
            assert said.startswith(f"forward leaves {name.split()[0]} in an attribute"), (name, said)
            assert "let forward return it too" in said
        assert found["kept"] == (7.0, 2.0, (8, 6), (8, 4))
        assert found["same"]  # nothing is planned anew for what forward overwrites
        assert found["error"] < 1e-12
