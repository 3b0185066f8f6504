"""What real models do outside of the layers of torch.nn, on four ranks: as in one process."""

from __future__ import annotations

from typing import Any

import pytest
from rank_pool import RankPool, pool_of
from wild import wild

# what every rank computes from the whole; nothing else is
GATHERED = {
    "tokens": {"flatten"},
}
GRIDS: dict[str, Any] = {"channels": {"c": 2, "k": 2}, "spatial": "spatial", "data": "data"}
pytestmark = pytest.mark.ranks


ranks = pool_of(__file__, "wild_ranks.py", 4)


def assert_same(ranks: RankPool, name: str, *how: Any, function: str = "compare") -> list[str]:
    """The model computes and trains as in one process. What is gathered."""
    for rank in filter(None, ranks.call(function, name, *how, seconds=100)):
        wrong = {what: error for what, error in rank["errors"].items() if not error < 1e-8}
        assert not wrong, name
        assert rank["words"][0] == rank["words"][1], name
    return rank["gathered"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", list(wild()))
@pytest.mark.one_in(16)
def test_models_train_as_in_one_process(name: str, ranks: RankPool) -> None:
    assert_same(ranks, name, None)


def test_branches_are_left_out_alike_on_all_ranks(ranks: RankPool) -> None:
    """Whatever the generators of the ranks are; other samples in each pass, none in evaluation."""
    told = ranks.call("left_out", 5)
    for rank in told:
        assert rank["error"] < 1e-9
        assert rank["kept"] == told[0]["kept"]
    first, second = told[0]["kept"]
    assert first != second
    assert 0 < sum(first) + sum(second) < 16


def test_calls_of_one_mode_follow_the_module_that_makes_them(ranks: RankPool) -> None:
    for rank in ranks.call("modes_of_parts"):
        assert max(rank["errors"].values()) < 1e-9, rank
        assert rank["alike"]
        assert rank["anew"]


@pytest.mark.slow
@pytest.mark.parametrize("plan", GRIDS)
@pytest.mark.parametrize("name", list(wild()))
def test_models_train_with_every_strategy(name: str, plan: str, ranks: RankPool) -> None:
    assert_same(ranks, name, GRIDS[plan])


@pytest.mark.parametrize("name", list(wild()))
@pytest.mark.one_in(24)
def test_models_train_in_replicas_as_copies_with_averaged_gradients(name: str, ranks: RankPool) -> None:
    assert_same(ranks, name, function="compare_replicas")


@pytest.mark.parametrize("plan", [None, {"c": 3}], ids=["free", "channels"])
@pytest.mark.parametrize("name", list(wild()))
@pytest.mark.one_in(24)
def test_models_train_on_a_part_of_the_job(name: str, plan: Any, ranks: RankPool) -> None:
    assert_same(ranks, name, plan, (0, 2, 3))


@pytest.mark.parametrize("plan", [{"c": 3}, "filter", "data", {"h": 3}], ids=str)
@pytest.mark.one_in(2)
def test_a_normalization_is_used_in_several_passes_before_one_backward(plan: Any, ranks: RankPool) -> None:
    """Each time in other partitions: what it updates is no input of the backward pass, as in torch."""
    assert_same(ranks, "twice", plan, (0, 2, 3), 2)
