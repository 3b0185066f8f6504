"""The space of grids against all grids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import all_grids, nests, small_nests

from synth import space
from synth.axes import AXES, X_AXES, PerAxis
from synth.distribution import Distribution
from synth.nest import Nest
from synth.space import Space, useful_counts

PROCS = st.integers(1, 24)


@given(st.integers(1, 400), st.integers(1, 400))
def test_useful_counts_reach_every_block_size_with_the_fewest_processes(extent: int, procs: int) -> None:
    counts = useful_counts(extent, procs)
    most = min(extent, procs)
    fewest: dict[int, int] = {}
    for parts in range(1, most + 1):
        fewest.setdefault(-(-extent // parts), parts)
    assert set(fewest.values()) <= set(counts)
    assert {n for n in range(1, most + 1) if procs % n == 0} <= set(counts)
    assert counts == sorted(set(counts))
    assert counts[0] == 1
    assert counts[-1] <= most


def test_huge_axes_keep_a_manageable_number_of_counts() -> None:
    counts = useful_counts(2**40, 2**30)
    assert len(counts) < 20_000
    assert {1, 2, 3, 2**20, 2**30, 3 * 2**20} <= set(counts)


@given(st.integers(17, 3000), st.integers(1, 3000))
def test_beyond_some_counts_only_smooth_ones_are_tried(extent: int, procs: int) -> None:
    """All useful counts where the count or its block is small; in between products of 2, 3, 5 and 7."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(space, "FULL", 4)
        counts = set(useful_counts(extent, procs))
    most = min(extent, procs)
    small = {n for n in range(1, most + 1) if n <= 4 or -(-extent // n) <= 4}
    useful = {n for n in small if n == 1 or -(-extent // n) < -(-extent // (n - 1))}
    smooth = {
        2**a * 3**b * 5**c * 7**d for a in range(12) for b in range(8) for c in range(5) for d in range(5)
    }
    divisors = {n for n in range(1, most + 1) if procs % n == 0}
    assert useful <= counts <= small | smooth | divisors
    assert divisors <= counts
    if most > 64 and extent > 64:
        assert {n for n in smooth if n <= most} <= counts
    assert max(counts) <= most


@given(small_nests(), PROCS, st.booleans())
def test_all_grids_of_a_space_of_short_axes(nest: Nest, procs: int, exact: bool) -> None:
    found = space.all_grids(Space(nest, procs, {}, exact), procs)
    assert sorted(found) == sorted(all_grids(nest.extents, procs, exact))


@given(nests(), PROCS, st.booleans())
def test_least_work_over_all_grids(nest: Nest, procs: int, exact: bool) -> None:
    works = [Distribution(nest, grid).most_work.size for grid in all_grids(nest.extents, procs, exact)]
    assert Space(nest, procs, {}, exact).least_work == min(works, default=None)


@given(small_nests(), PROCS, st.booleans())
def test_channels_and_x_together_hold_a_grid_for_every_block(nest: Nest, procs: int, exact: bool) -> None:
    """Every block size of every grid is there on no more processes; with `exact`, every grid is."""
    made_of = Space(nest, procs, {}, exact)
    made = {
        channels._replace(**dict(zip(X_AXES, grid, strict=True)))
        for channels in made_of.channel_grids()
        for count, _, grid in made_of.x_grids
        if count * channels.size <= procs
    }
    if exact:
        assert {grid for grid in made if grid.size == procs} == set(all_grids(nest.extents, procs, True))
        return
    fewest: dict[PerAxis, int] = {}
    for grid in made:
        work = Distribution(nest, grid).most_work
        fewest[work] = min(grid.size, fewest.get(work, grid.size))
    for grid in all_grids(nest.extents, procs):
        assert fewest[Distribution(nest, grid).most_work] <= grid.size


@given(nests(), PROCS, st.sampled_from(AXES))
def test_least_work_with_a_fixed_axis(nest: Nest, procs: int, axis: str) -> None:
    parts = min(2, getattr(nest.extents, axis))
    works = [
        Distribution(nest, grid).most_work.size
        for grid in all_grids(nest.extents, procs)
        if getattr(grid, axis) == parts
    ]
    assert Space(nest, procs, {axis: parts}).least_work == min(works, default=None)
