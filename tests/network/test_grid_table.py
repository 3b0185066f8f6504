"""Selections among many grids as arrays are those of loops over one grid at a time."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from synth.layer.axes import AXES, PerAxis
from synth.layer.layer import Layer
from synth.network.grids import grid_family
from synth.network.grids.grid_family import family
from synth.network.grids.grid_table import GridTable, grids_of
from synth.search.grids import Space, all_grids

NEST = Layer.conv2d((6, 8, 12, 12), 20, 3, padding=1).nest
BOUNDS = np.random.default_rng(0)


def table() -> tuple[GridTable, dict[PerAxis, float]]:
    """A table whose bounds are few numbers, and grid -> bound in the order that it must have."""
    rows = family(NEST, 24, 0.3)
    bounds = BOUNDS.integers(0, 9, len(rows)).astype(float)
    pairs = zip(grids_of(rows), bounds.tolist(), strict=True)
    return GridTable(rows, bounds), dict(sorted(pairs, key=lambda each: (each[1], each[0])))


def test_places_are_by_bound_and_then_by_counts() -> None:
    made, wanted = table()
    assert grids_of(made.rows) == list(wanted)
    assert [made.bound(grid) for grid in wanted] == list(wanted.values())
    assert [made.grid(made.places[grid]) for grid in wanted] == list(wanted)
    assert made.sizes.tolist() == [grid.size for grid in wanted]


def test_selections_are_those_of_loops() -> None:
    made, wanted = table()
    for axes in ("b", "hw", "bck", "".join(AXES)):
        within = [
            grid for grid in wanted if all(n == 1 or axis in axes for axis, n in zip(AXES, grid, strict=True))
        ]
        assert made.grids(made.within(axes)) == within
        for x in {PerAxis(b=grid.b, d=grid.d, h=grid.h, w=grid.w) for grid in wanted}:
            alike = [grid for grid in within if (grid.b, grid.d, grid.h, grid.w) == (x.b, x.d, x.h, x.w)]
            assert made.grids(made.with_x(x, axes)) == alike


def test_a_grid_outside_the_family_is_known_and_in_no_selection_of_axes() -> None:
    made, wanted = table()
    new, known = PerAxis(b=5), next(iter(wanted))
    assert new not in made.places
    made.append({new: 7.0, known: 7.0})
    assert (made.bound(new), made.bound(known)) == (7.0, wanted[known])
    assert made.grids(made.within("".join(AXES))) == [*wanted, new]
    assert new not in made.grids(made.within("b"))


def test_places_of_grids_are_those_that_a_dictionary_of_all_has() -> None:
    made, wanted = table()
    of_all = {grid: place for place, grid in enumerate(wanted)}
    for grid in [*map(PerAxis._make, BOUNDS.integers(1, 7, (500, len(AXES))).tolist()), *wanted]:
        assert made.places.get(grid, -1) == of_all.get(grid, -1)
        assert (grid in made.places) == (grid in of_all)
    with pytest.raises(KeyError):
        made.places[PerAxis(b=5)]


@pytest.mark.parametrize("exact", [False, True])
def test_a_family_for_time_is_every_grid_of_all_half_a_quarter_of_the_processes(exact: bool) -> None:
    sizes = [24] if exact else [24, 12, 6, 3, 1]
    wanted = {grid for size in sizes for grid in all_grids(Space(NEST, size, {}, True), size)}
    found = grids_of(family(NEST, 24, 0.1, exact=exact, timed=True))
    assert found == sorted(wanted)
    assert {math.prod(grid) for grid in found} == set(sizes)


def test_counts_of_an_axis_are_looked_at_together_or_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    together = family(NEST, 24, 0.3)
    for few in (1, 40):
        monkeypatch.setattr(grid_family, "AT_ONCE", few)
        assert np.array_equal(family(NEST, 24, 0.3), together)


@pytest.mark.parametrize("exact", [False, True])
def test_cuts_that_layers_share_are_listed_once(monkeypatch: pytest.MonkeyPatch, exact: bool) -> None:
    monkeypatch.setattr(grid_family, "MAX_BEGUN", 0)  # shares nothing
    layers = [replace(NEST, extents=NEST.extents._replace(c=c, k=k)) for c, k in ((5, 7), (24, 40), (31, 1))]
    alone = [family(each, 24, 0.3, exact=exact) for each in layers]
    monkeypatch.undo()
    grid_family._cuts.cache_clear()
    for each, wanted in zip(layers, alone, strict=True):
        assert np.array_equal(family(each, 24, 0.3, exact=exact), wanted)
    assert grid_family._cuts.cache_info().misses == 1
