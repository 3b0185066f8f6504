"""Lower bounds of the words of ranges of grids within a limit, against the tilings of their grids."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from brute_force import all_grids
from hypothesis import event, given, settings
from hypothesis import strategies as st
from hypothesis_problems import small_nests

from synth.layer.axes import Axis, PerAxis
from synth.layer.nest import Nest
from synth.layer.passes import TASKS, Task
from synth.search.branch_and_bound import _Search
from synth.search.request import Request


def chosen(
    search: _Search, grid: PerAxis, turned: tuple[Axis, ...], limit: int | None
) -> tuple[int | None, int]:
    """The fewest words of a grid within a limit, None if no tiling fits; and the memory they use."""
    tiling, _ = search._choose_tiling(search._footprints(grid, turned), limit)
    return (None, 0) if tiling is None else (tiling.words, tiling.used_words)


@settings(max_examples=60)
@given(small_nests(5), st.integers(2, 12), st.sampled_from(TASKS), st.booleans(), st.floats(0, 1), st.data())
def test_no_tiling_that_fits_moves_fewer_words_than_its_range_may(
    nest: Nest, procs: int, task: Task, turns: bool, share: float, data: st.DataObject
) -> None:
    """For the grid alone, and for ranges around it."""
    free = Request(nest, procs, pass_=task, turnable=nest.turnable if turns else ())
    grid = data.draw(st.sampled_from([*all_grids(nest.extents, procs)]))
    turned = data.draw(st.sampled_from([*_Search(free)._turns(grid)] or [()]))
    search = _Search(replace(free, limit_words=0))
    ample, used = chosen(search, grid, turned, None)
    least = search._choose_tiling(search._footprints(grid, turned), 0)[1]
    limit = least + int(share * max(0, used - least))
    words, _ = chosen(search, grid, turned, limit)
    assert words is not None
    assert ample is not None
    event(f"receives again: {words > ample}")
    bounds = _Search(replace(free, limit_words=limit)).bounds.limited
    lower = PerAxis(*(data.draw(st.integers(1, n)) for n in grid))
    upper = PerAxis(*(data.draw(st.integers(n, most)) for n, most in zip(grid, nest.extents, strict=True)))
    for first, last in product((grid, lower), (grid, upper)):
        within = bounds.within(first, last)
        found = [within.fewest(turned, reused) for reused in bounds.reuses]
        assert min(floor for floor in found if floor is not None) <= words
