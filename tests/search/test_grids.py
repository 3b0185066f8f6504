"""The space of grids against all grids."""

from __future__ import annotations

import math

import numpy as np
import pytest
from brute_force import all_grids
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_problems import nests, small_nests

from synth.layer.axes import AXES, X_AXES, PerAxis
from synth.layer.nest import Nest
from synth.layer.window import Window
from synth.schedule.distribution import Distribution
from synth.search import grids as space
from synth.search.grids import Space, useful_counts

PROCS = st.integers(1, 24)


@given(st.integers(1, 400), st.integers(1, 400))
def test_useful_counts_reach_every_block_size_with_the_fewest_processes(extent: int, procs: int) -> None:
    counts = useful_counts(extent, procs)
    most = min(extent, procs)
    fewest: dict[int, int] = {}
    for parts in range(1, most + 1):
        fewest.setdefault(-(-extent // parts), parts)
    assert set(fewest.values()) <= set(counts)
    divisors = {n for n in range(1, most + 1) if procs % n == 0}
    assert divisors <= set(counts)
    if extent > space.SHORT:  # few others
        assert set(counts) <= {*fewest.values(), *divisors, math.isqrt(extent) + 1}
    assert counts == sorted(set(counts))
    assert counts[0] == 1
    assert counts[-1] <= most


def test_every_count_of_a_short_axis() -> None:
    assert useful_counts(16, 100) == list(range(1, 17))
    assert useful_counts(17, 17) == [1, 2, 3, 4, 5, 6, 9, 17]


def test_smooth_numbers() -> None:
    assert sorted(space._smooth(14)) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14]


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
    """Each grid has one with the same blocks on at most as many processes; with `exact`, itself."""
    made_of = Space(nest, procs, {}, exact)
    made = {
        channels._replace(**dict(zip(X_AXES, grid, strict=True)))
        for channels in made_of.channel_grids()
        for count, _, grid in made_of.x_grids
        if count * channels.size <= procs
    }
    assert all(grid.size <= procs for grid in made_of.channel_grids())
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


@given(nests(), PROCS, st.booleans())
def test_the_pruning_work_is_attained_by_a_grid(nest: Nest, procs: int, exact: bool) -> None:
    works = {Distribution(nest, grid).most_work.size for grid in all_grids(nest.extents, procs, exact)}
    assert Space(nest, procs, {}, exact)._some_work() in {*works, *([None] if exact else [])}


@pytest.mark.parametrize(
    ("extents", "procs", "fixed", "exact", "work"),
    [
        ((8, 8, 8), 8, {}, True, 64),
        ((2, 2, 6), 10, {}, True, 4),  # of 2 x 2 x 2 processes one would do with 3
        ((8, 8, 8), 8, {"k": 8}, False, 64),  # b first leaves no processes for k
        ((3, 3, 3), 4, {}, False, 9),  # on three processes
        ((2, 2, 2), 100, {}, False, 1),
    ],
)
def test_the_pruning_work_is_near_the_least(
    extents: tuple[int, ...], procs: int, fixed: dict[str, int], exact: bool, work: int
) -> None:
    b, c, k = extents
    made_of = Space(Nest(PerAxis(b=b, c=c, k=k), *[Window(1)] * 3), procs, fixed, exact)
    assert made_of._some_work() == made_of.least_work == work


def test_dominated_states_are_dropped() -> None:
    """More processes for as much work."""
    states = np.array([3, 1, 2, 4, 1]), np.array([4, 5, 5, 6, 7])
    for exact, kept in ((False, ([1, 3], [5, 4])), (True, ([1, 2, 3, 4], [5, 5, 4, 6]))):
        assert tuple(each.tolist() for each in space._undominated(*states, exact)) == kept
