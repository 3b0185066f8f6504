"""The integer optimum of Eq. 3 and Eq. 10 against exhaustive search and against the relaxations."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from example_nests import conv, matmul
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_problems import image_nests

from synth.base.errors import InfeasibleError, UsageError
from synth.bounds.geometric_program import relax_accessed
from synth.bounds.paper_cost import (
    ORDER,
    accessed_optimum,
    cost_at,
    distributed_optimum,
    grids,
    memory_at,
)
from synth.bounds.universal import universal_bound
from synth.layer.axes import PerAxis
from synth.layer.nest import Nest
from synth.layer.window import Window


def exhaustive(nest: Nest, procs: int, memory: float, distributed: bool) -> Fraction | None:
    """Least cost over every grid and every tile, nothing pruned."""
    least: Fraction | None = None
    for grid in itertools.product(*(range(1, n + 1) for n in nest.extents)):
        if math.prod(grid) != procs:
            continue
        work = nest.extents.blocks(PerAxis(*grid))
        for tile in itertools.product(*([t for t in range(1, n + 1) if n % t == 0] for n in work)):
            for stationary in ("Out",) if distributed else ORDER:
                plan = (nest, stationary, PerAxis(*grid), PerAxis(*tile), distributed)
                if memory_at(*plan) <= memory:  # type: ignore[arg-type]
                    cost = cost_at(*plan)  # type: ignore[arg-type]
                    least = cost if least is None else min(least, cost)
    return least


TINY = [
    conv([2, 4, 2, 4, 1, 3, 1, 1, 1]),
    conv([2, 2, 3, 3, 2, 3, 3, 1, 2]),
    matmul(6, 4, 5),
    Nest(PerAxis(g=2, c=2, k=2, h=4), Window(1), Window.reduced(4, 3, 1, 1, 1), Window(1)),
]


@pytest.mark.parametrize("nest", TINY, ids=str)
@pytest.mark.parametrize("distributed", [False, True], ids=["eq3", "eq10"])
@pytest.mark.one_in(3)
def test_pruned_search_is_exact(nest: Nest, distributed: bool) -> None:
    for procs, memory in itertools.product((1, 4, 6), (20, 40, 10**6)):
        expected = exhaustive(nest, procs, memory, distributed)
        search = distributed_optimum if distributed else accessed_optimum
        if expected is None:
            with pytest.raises(InfeasibleError):
                search(nest, procs, memory)
            continue
        found = search(nest, procs, memory)
        assert found.cost == expected
        plan = (nest, found.stationary, found.grid, found.tile, distributed)
        assert (cost_at(*plan), memory_at(*plan)) == (found.cost, found.used_words)
        assert found.used_words <= memory


@settings(derandomize=True, deadline=None, max_examples=25)
@given(image_nests(), st.sampled_from([1, 2, 4, 6, 12, 16]), st.floats(1.5, 100))
def test_bound_relaxation_optimum_stand_in_order(nest: Nest, procs: int, scale: float) -> None:
    memory = scale * sum(a.footprint(nest.loop_extents(PerAxis())) for a in nest.accesses.values())
    try:
        found = accessed_optimum(nest, procs, memory)
    except InfeasibleError:
        assert not list(grids(nest, procs))
        return
    relaxed = min(relax_accessed(nest, procs, memory, t).cost for t in ORDER)
    bound = universal_bound(nest, procs, memory, accounting="accessed").words
    assert bound <= relaxed * (1 + 1e-5)
    assert relaxed <= float(found.cost) * (1 + 1e-5)


def test_grids_are_the_ordered_factorizations() -> None:
    nest = conv([64, 64, 64, 64, 64, 1, 1, 1, 1])
    found = list(grids(nest, 64))
    assert len(found) == len(set(found)) == 210
    assert all(grid.size == 64 for grid in found)
    assert all(p <= n for grid in found for p, n in zip(grid, nest.extents, strict=True))
    assert list(grids(matmul(2, 2, 2), 7)) == []


def test_uneven_blocks_are_charged_to_the_most_loaded() -> None:
    nest = matmul(7, 1, 1)
    assert nest.extents.blocks(PerAxis(b=2)) == PerAxis(b=4)
    assert accessed_optimum(nest, 2).cost == 4 + 4 + 1


def test_eq10_adds_the_owned_words() -> None:
    nest = conv([8, 16, 16, 7, 7, 3, 3, 1, 1])
    found = distributed_optimum(nest, 8)
    owned = Fraction(nest.words["In"] + nest.words["Ker"], 8)
    assert found.cost == accessed_optimum(nest, 8, stationary="Out").cost + owned
    assert cost_at(nest, "Out", found.grid, found.tile) == found.cost - owned


def test_errors_name_what_would_do() -> None:
    nest = matmul(4, 4, 4)
    with pytest.raises(InfeasibleError, match="allow at least 3"):
        accessed_optimum(nest, 4, 2)
    with pytest.raises(InfeasibleError, match="smaller prime factors"):
        accessed_optimum(nest, 5)
    with pytest.raises(UsageError):
        accessed_optimum(nest, 0)
    assert str(accessed_optimum(nest, 1, 3)).startswith("144 words, Out stationary, grid 1, tile 1, 3 words")
