"""Products of matrices, attention and einsum: ranks divide them and equal one process."""

from __future__ import annotations

import pytest
from product_ranks import DIVIDED, FUNCTIONS
from rank_pool import RankPool, pool_of

from synth.runtime.comm.layout import Layout
from synth.runtime.grid.boxes import volume
from synth.runtime.grid.ranks import Ranks
from synth.runtime.rules.products import best_layout, wanted

RANKS = Ranks((0, 1, 2, 3), 0)


ranks = pool_of(__file__, "product_ranks.py", 4)


@pytest.mark.ranks
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.one_in(12)
def test_as_in_one_process(name: str, ranks: RankPool) -> None:
    for samples, plan in ((3, "spatial"), (1, "filter")):
        for found in ranks.call("compared", name, samples, plan):
            assert found["error"] < 1e-10
            assert found["divided"] == DIVIDED.get(name, 1)
            assert not found["gathered"]
            assert found["words"][0] == found["words"][1]


def rows(whole: tuple[int, ...], dim: int) -> Layout:
    """A layout that is cut along one dimension."""
    boxes = []
    for rank in range(4):
        box = [(0, extent) for extent in whole]
        box[dim] = (whole[dim] * rank // 4, whole[dim] * (rank + 1) // 4)
        boxes.append(tuple(box))
    return Layout(whole, tuple(boxes), RANKS)


def test_an_operand_stays_where_it_may() -> None:
    source = rows((2, 8, 6), 1)
    assert best_layout((2, 8, 6), [(source, (0, 1, 2))], (0, 1)).boxes == source.boxes


@pytest.mark.parametrize("extent", [16, 17, 257])
def test_uneven_rows_stay_although_channels_are_even(extent: int) -> None:
    """A matrix (rows, rows) by states (rows, 8): gathering the matrix would spare the busiest rank a row."""
    matrix, states = rows((extent, extent), 0), rows((extent, 8), 0)
    dims = (0, None), (None, 1)
    found = best_layout((extent, 8), list(zip((matrix, states), dims, strict=True)), (0, 1))
    assert found.boxes == rows((extent, 8), 0).boxes


@pytest.mark.parametrize("extent", [5, 6])
def test_rows_that_would_leave_ranks_without_work_do_not_stay(extent: int) -> None:
    matrix, states = rows((extent, extent), 0), rows((extent, 8), 0)
    dims = (0, None), (None, 1)
    found = best_layout((extent, 8), list(zip((matrix, states), dims, strict=True)), (0, 1))
    assert max(map(volume, found.boxes)) <= 1.25 * extent * 2


def test_one_sample_is_divided_along_rows_of_the_query() -> None:
    query, key = rows((1, 1, 64, 8), 3), rows((1, 1, 32, 8), 2)
    dims = (0, 1, 2, None), (0, 1, None, None)
    found = best_layout((1, 1, 64, 8), list(zip((query, key), dims, strict=True)), (0, 1, 2))
    assert [box[2] for box in found.boxes] == [(0, 16), (16, 32), (32, 48), (48, 64)]
    assert [volume(box) for box in wanted(found, key.whole, dims[1]).boxes] == [256] * 4


def test_more_ranks_than_words() -> None:
    found = best_layout((3,), [(rows((3, 8), 1), (0, None))], (0,))
    assert sorted(volume(box) for box in found.boxes) == [0, 1, 1, 1]
    assert sum(volume(box) for box in wanted(found, (3, 8), (0, None)).boxes) == 24
