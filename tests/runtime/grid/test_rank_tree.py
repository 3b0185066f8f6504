"""The tree of ranks: its shape, what it combines, and who is named where a rank does not come."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch.distributed as dist

from synth.runtime.grid.rank_tree import AbsentRankError, Said, StoreTree, children_of, parent_of


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 1000, 4096])
def test_every_rank_but_0_is_a_child_of_its_parent(size: int) -> None:
    found = [child for me in range(size) for child in children_of(me, size)]
    assert sorted(found) == list(range(1, size))
    for me in range(size):
        assert all(parent_of(child) == me < child for child in children_of(me, size))
        assert len(children_of(me, size)) <= 3 * max(1, (size - 1).bit_length() / 2 + 0.5)


def _in_threads(size: int, absent: set[int], limit: float) -> tuple[list[Any], Any]:
    store, found = dist.HashStore(), list[Any]([None] * size)

    def be(rank: int) -> None:
        tree = StoreTree(store, "sum", rank, size, limit)
        try:
            found[rank] = tree.combined(rank, lambda own, child: own + child)
        except AbsentRankError as error:
            found[rank] = f"{error.place} is absent"

    threads = [threading.Thread(target=be, args=(rank,)) for rank in range(size) if rank not in absent]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found, store


@pytest.mark.parametrize("size", [1, 2, 5, 16, 37])
def test_all_ranks_get_the_combined_value_and_no_key_remains(size: int) -> None:
    found, store = _in_threads(size, set(), 20)
    assert found == [size * (size - 1) // 2] * size
    assert store.num_keys() == 0


@pytest.mark.parametrize("absent", [1, 4, 6, 16, 21])
@pytest.mark.one_in(5)
def test_a_rank_that_does_not_come_is_named_on_all_others(absent: int) -> None:
    """A leaf, an inner rank, and one whose parent waits longer than its own."""
    found, _ = _in_threads(22, {absent}, 1.0)
    assert {each for rank, each in enumerate(found) if rank != absent} == {f"{absent} is absent"}


@pytest.mark.parametrize("others", [set(), {3}, {16}, {5, 17}, {0}, set(range(1, 22))])
def test_the_lowest_rank_that_says_something_else_is_named(others: set[int]) -> None:
    store, size = dist.HashStore(), 22
    trees = [StoreTree(store, "said", rank, size, 5) for rank in range(size)]
    found = [None] * size
    for rank in reversed(range(size)):
        said = Said("b" if rank in others else "a", rank)
        found[rank] = trees[rank].up(said, lambda own, child: Said(*own).with_child(Said(*child)))
    told = [Said(*tree.down(each)) for tree, each in zip(trees, found, strict=True)]
    root = "b" if 0 in others else "a"
    apart = {rank for rank in range(size) if ("b" if rank in others else "a") != root}
    for each in told:
        assert each.rank == 0
        assert each.other in apart if apart else each.other == -1
        assert each.other_text != each.text
