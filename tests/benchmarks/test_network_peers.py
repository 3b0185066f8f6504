"""The networks parallelized by hand, beside which ours is measured, compute what one process does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rank_pool import RankPool, exact

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    with RankPool(
        Path(__file__).with_name("network_peer_ranks.py"), 2, tmp_path_factory.mktemp("ranks")
    ) as made:
        yield made


@pytest.mark.parametrize(("name", "names"), [("unet3d", ("value", "gradient")), ("decoder", ("value",))])
def test_rows_with_halos(ranks: RankPool, name: str, names: tuple[str, ...]) -> None:
    exact(ranks.call("rows", name), *names)


@pytest.mark.parametrize("inference", [False, True])
def test_one_process_with_all_cores(ranks: RankPool, inference: bool) -> None:
    exact(ranks.call("alone", inference), "loss")


def test_filters_with_gathered_channels(ranks: RankPool) -> None:
    exact(ranks.call("filters"), "value", "gradient")
