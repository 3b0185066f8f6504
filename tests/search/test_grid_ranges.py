"""Ranges of grids against each of their grids: rows counted one by one, words by the planner's formula."""

from __future__ import annotations

import pytest
from brute_force import all_grids
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis_problems import small_nests, windows

from synth.layer.axes import AXES, TENSORS, Axis, PerAxis
from synth.layer.intervals import cuts, volume
from synth.layer.nest import Nest
from synth.layer.window import Window
from synth.schedule.distribution import Distribution
from synth.schedule.pass_plan import PassPlan
from synth.schedule.volume import received
from synth.search import grid_ranges
from synth.search.grid_ranges import Key, Range, Ranges, rows_reached, shared_rows
from synth.search.grids import Space

PROCS = st.integers(1, 24)
UNPADDED = st.builds(
    lambda more, kernel, stride, dilation: Window.reduced(
        dilation * (kernel - 1) + more, kernel, stride, dilation, 0
    ),
    *(st.integers(1, most) for most in (20, 4, 3, 3)),
)


def read_again(window: Window, parts: int) -> int:
    """Rows that blocks read together, each row once less than there are blocks that read it."""
    readers = [0] * window.size
    for block in cuts((0, window.out), parts):
        for row in range(*window.reach(*block)):
            readers[row] += 1
    return sum(max(0, count - 1) for count in readers)


@given(windows(), st.integers(1, 30))
def test_shared_rows_are_a_lower_bound(window: Window, parts: int) -> None:
    parts = min(parts, window.out)
    assert 0 <= shared_rows(window, parts) <= read_again(window, parts)


@given(windows())
def test_shared_rows_are_exact_where_every_cut_is_made(window: Window) -> None:
    assert shared_rows(window, window.out) == read_again(window, window.out)


@given(UNPADDED, st.integers(1, 30))
def test_shared_rows_are_exact_without_padding(window: Window, parts: int) -> None:
    parts = min(parts, window.out)
    assert shared_rows(window, parts) == read_again(window, parts)


@example(Window.reduced(5, 2, 1, 1, 3), True, 3)  # output rows that read nothing but padding
@given(windows(), st.booleans(), st.integers(1, 30))
def test_no_blocks_reach_fewer_rows_in_all(window: Window, turn: bool, parts: int) -> None:
    window = window.turned if turn else window
    reached = [window.reach(*block) for block in cuts((0, window.out), min(parts, window.out))]
    assert rows_reached(window, len(reached)) <= sum(last - first for first, last in reached)


@given(windows(), st.integers(0, 6), st.integers(1, 30))
def test_shared_rows_are_a_lower_bound_for_any_edges(window: Window, edges: int, parts: int) -> None:
    parts = min(parts, window.out)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid_ranges, "EDGES", edges)
        patch.setattr(grid_ranges, "_clipped", grid_ranges._clipped.__wrapped__)
        assert 0 <= shared_rows(window, parts) <= read_again(window, parts)


def admitted(nest: Nest, procs: int, cap: int, exact: bool) -> list[PerAxis]:
    """Every grid within the processes and the work cap."""
    grids = all_grids(nest.extents, procs, exact)
    return [grid for grid in grids if Distribution(nest, grid).most_work.size <= cap]


def inside(ranges: Ranges, within: Range) -> tuple[list[int], list[int]]:
    """The fewest and the most parts per axis."""
    return list(ranges.grid(within.first)), list(ranges.grid(within.last))


def members(ranges: Ranges, within: Range, grids: list[PerAxis]) -> list[PerAxis]:
    """Those of some grids that a range holds."""
    least, most = inside(ranges, within)
    return [g for g in grids if all(a <= n <= b for a, n, b in zip(least, g, most, strict=True))]


def by_hand(nest: Nest, procs: int, grid: PerAxis) -> Key:
    """Work, idle processes, then few parts along c, w, h, d, k, g and b."""
    order = (grid.c, grid.w, grid.h, grid.d, grid.k, grid.g, grid.b)
    return Distribution(nest, grid).most_work.size, procs - grid.size, order, 0


@given(small_nests(5), PROCS, st.booleans(), st.integers(1, 60), st.data())
def test_halves_partition_the_grids_and_their_bounds_hold(
    nest: Nest, procs: int, exact: bool, cap: int, data: st.DataObject
) -> None:
    ranges = Ranges(Space(nest, procs, {}, exact), cap)
    grids = admitted(nest, procs, cap, exact)
    current = ranges.whole()
    if current is None:
        assert not grids
        return
    held = members(ranges, current, grids)
    assert held == grids
    while not current.single:
        halves = list(ranges.halves(current))
        parts = [members(ranges, half, grids) for half in halves]
        assert sorted(grid for part in parts for grid in part) == sorted(held)
        if not halves:
            return
        chosen = data.draw(st.integers(0, len(halves) - 1))
        current, held = halves[chosen], parts[chosen]
        bound, key = ranges.bound(current), ranges.key(current)
        for grid in held:
            words = received(Distribution(nest, grid), PassPlan()).total
            assert bound <= words.mean() + 1
            assert bound <= words.max()
            assert key <= by_hand(nest, procs, grid)
    (left,) = [ranges.grid(current.first)]
    assert ranges.key(current) == by_hand(nest, procs, left)
    assert left in grids


def on_one_grid(high: Window, wide: Window, parts: tuple[int, ...]) -> tuple[int, int]:
    """The bound of a range of one grid; and, box by box, words needed beyond all words, on average."""
    extents = PerAxis(b=2, g=2, h=high.out, w=wide.out, c=3, k=4)
    grid = PerAxis(*map(min, parts, extents))
    nest = Nest(extents, Window(1), high, wide)
    d = Distribution(nest, grid)
    needed = sum(volume(d.needed(tensor, d.at(rank))) for rank in d.ranks for tensor in TENSORS)
    ranges = Ranges(Space(nest, grid.size, {}), extents.size)
    at = tuple(counts.index(n) for counts, n in zip(ranges.counts, grid, strict=True))
    return ranges.bound(Range(at, at)), max(0, -(-(needed - nest.total_words) // grid.size))


PARTS = st.tuples(*[st.integers(1, 4)] * len(AXES))


@given(UNPADDED, UNPADDED, PARTS)
def test_the_bound_of_one_grid_is_exact_without_padding(
    high: Window, wide: Window, parts: tuple[int, ...]
) -> None:
    bound, average = on_one_grid(high, wide, parts)
    assert bound == average


@given(windows(8), windows(8), PARTS)
def test_the_bound_of_one_grid_is_a_bound(high: Window, wide: Window, parts: tuple[int, ...]) -> None:
    bound, average = on_one_grid(high, wide, parts)
    assert bound <= average


@given(small_nests(7), PROCS, st.booleans(), st.integers(1, 60), st.sampled_from(AXES), st.data())
def test_counts_along_one_axis_are_narrowed_to_those_of_admitted_grids(
    nest: Nest, procs: int, exact: bool, cap: int, axis: Axis, data: st.DataObject
) -> None:
    ranges = Ranges(Space(nest, procs, {}, exact), cap)
    first = [data.draw(st.integers(0, len(counts) - 1)) for counts in ranges.counts]
    last, i = list(first), AXES.index(axis)
    first[i] = data.draw(st.integers(0, first[i]))
    fits = []
    for index in range(first[i], last[i] + 1):
        grid = ranges.grid((*first[:i], index, *first[i + 1 :]))
        size, work = grid.size, Distribution(nest, grid).most_work.size
        if work <= cap and (size == procs if exact else size <= procs):
            fits.append(index)
    narrowed = ranges.narrowed(list(first), list(last))
    found = (narrowed.first[i], narrowed.last[i]) if narrowed else None
    assert found == ((fits[0], fits[-1]) if fits else None)


@given(small_nests(7), PROCS, st.booleans(), st.integers(1, 60))
def test_the_last_axis_is_narrowed_by_what_is_left_of_the_others(
    nest: Nest, procs: int, exact: bool, cap: int
) -> None:
    """Enough parts beside the most along the other axes, and room for them beside the fewest."""
    ranges = Ranges(Space(nest, procs, {}, exact), cap)
    whole = ranges.whole()
    if whole is None:
        return
    least, most = ranges.grid(whole.first), ranges.grid(whole.last)
    fits = [
        n
        for n in ranges.counts[AXES.index("k")]
        if Distribution(nest, most._replace(k=n)).most_work.size <= cap
        and least._replace(k=n).size <= procs
        and (most._replace(k=n).size >= procs or not exact)
    ]
    assert (least.k, most.k) == (fits[0], fits[-1])
