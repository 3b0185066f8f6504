"""The geometric programs: their solutions evaluated independently, their order with the bounds."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys

import pytest
from effort import tried
from example_nests import conv, matmul
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_problems import image_nests, windows

from synth.base.errors import InfeasibleError, UsageError
from synth.bounds.closed_form import paper_bound
from synth.bounds.geometric_program import average_rows, relax_accessed, relax_received
from synth.bounds.paper_cost import accessed_cost, tile_words
from synth.bounds.universal import universal_bound
from synth.layer.axes import AXES, PerAxis
from synth.layer.layer import Layer
from synth.layer.nest import Nest
from synth.layer.window import Window
from synth.search.branch_and_bound import search, search_or_none
from synth.search.request import Request

SOLVER = 1e-5  # relative accuracy that is asked of the solver
TENSORS = ("Out", "Ker", "In")


@settings(derandomize=True, deadline=None, max_examples=tried(12, 25))
@given(image_nests(groups=3), st.integers(1, 300), st.floats(1.1, 300))
def test_accessed_solution_is_feasible_and_costs_what_it_says(nest: Nest, procs: int, scale: float) -> None:
    least = tile_words(nest.accesses, nest.loop_extents(PerAxis()))
    bound = universal_bound(nest, procs, scale * least, accounting="accessed")
    found = []
    for stationary in TENSORS:
        relaxed = relax_accessed(nest, procs, scale * least, stationary)  # type: ignore[arg-type]
        W, T = ({**nest.loop_extents(), **sizes} for sizes in (relaxed.W, relaxed.T))
        assert all(
            1 - SOLVER <= T[a] <= W[a] * (1 + SOLVER) <= nest.loop_extents()[a] * (1 + 2 * SOLVER)
            for a in AXES
        )
        work = max(1, nest.extents.size / procs)
        assert math.prod(relaxed.W.values()) == pytest.approx(work, rel=1e-4)
        if all(w.dilation * (w.kernel - 1) + 1 >= w.stride for w in nest.windows.values()):
            cost = accessed_cost(nest.accesses, stationary, W, T)  # type: ignore[arg-type]
            assert cost == pytest.approx(relaxed.cost, rel=1e-4)
            assert tile_words(nest.accesses, T) <= scale * least * (1 + 1e-4)
            assert paper_bound(nest, procs, scale * least) <= relaxed.cost * (1 + SOLVER)
        found.append(relaxed.cost)
    assert bound.words <= min(found) * (1 + SOLVER)


@settings(derandomize=True, deadline=None, max_examples=tried(12, 60))
@given(image_nests(groups=3), st.integers(1, 300), st.floats(0.5, 4))
def test_bound_is_below_received_relaxation(nest: Nest, procs: int, scale: float) -> None:
    slack = SOLVER * nest.total_words
    free = relax_received(nest, procs)
    assert universal_bound(nest, procs).words <= free.cost + slack
    memory = scale * (nest.total_words / procs + 1)
    try:
        tight = relax_received(nest, procs, memory)
    except InfeasibleError:
        return
    assert free.cost <= tight.cost + slack
    assert universal_bound(nest, procs, memory).words <= tight.cost + slack


@settings(derandomize=True, deadline=None, max_examples=300)
@given(windows(), st.data())
def test_average_rows_is_below_every_cut(window: Window, data: st.DataObject) -> None:
    parts = data.draw(st.integers(1, window.out))
    cuts = (
        sorted(data.draw(st.sets(st.integers(1, window.out - 1), min_size=parts - 1, max_size=parts - 1)))
        if parts > 1
        else []
    )
    edges = [0, *cuts, window.out]
    rows = sum(b - a for a, b in (window.reach(i, j) for i, j in itertools.pairwise(edges)))
    assert average_rows(window, window.out, window.out / parts) <= rows / parts + 1e-9


def test_more_memory_never_moves_more() -> None:
    nest = conv([32, 64, 64, 28, 28, 3, 3, 1, 1])
    received = [relax_received(nest, 64, m).cost for m in (60_000, 80_000, 120_000, 10**6)]
    accessed = [relax_accessed(nest, 64, m, "Out").cost for m in (1_000, 10_000, 10**5)]
    for costs in (received, accessed):
        assert all(after <= before * (1 + SOLVER) for before, after in itertools.pairwise(costs))


def test_matmul_is_the_3d_algorithm() -> None:
    relaxed = relax_received(matmul(1024, 1024, 1024), 64)
    assert relaxed.cost == pytest.approx(3 * 256**2 - 3 * 1024**2 / 64, rel=1e-5)
    assert [relaxed.W[a] for a in ("b", "c", "k")] == pytest.approx([256] * 3, rel=1e-3)


def test_flat_faces_come_back_canonical() -> None:
    relaxed = relax_accessed(conv([16, 64, 64, 12, 12, 1, 1, 1, 1]), 8, 4000, "Out")
    assert relaxed.T["c"] == 1.0
    assert relaxed.T["w"] == 12.0  # filled before h and b
    assert relaxed.T["h"] < 12.0
    assert relaxed.T["b"] == 1.0


def test_errors_say_what_would_do() -> None:
    nest = conv([2, 4, 4, 6, 6, 3, 3, 1, 1])
    with pytest.raises(InfeasibleError, match=r"needs 19 words .* allow at least 19"):
        relax_accessed(nest, 4, 18, "Out")
    with pytest.raises(InfeasibleError, match="are allowed; allow") as caught:
        relax_received(nest, 4, 10)
    least = int(str(caught.value).split("; allow ")[1].split()[0])
    assert relax_received(nest, 4, least * 1.001).cost >= 0
    for call in (lambda: relax_received(nest, 0), lambda: relax_accessed(nest, 0, None, "Out")):
        with pytest.raises(UsageError):
            call()


def test_a_nest_of_one_point() -> None:
    point = Nest(PerAxis(), Window(1), Window(1), Window(1))
    assert relax_accessed(point, 4, 10, "In").cost == 3.0
    assert relax_received(point, 1).cost == 0.0
    with pytest.raises(InfeasibleError):
        relax_received(point, 1, 2)


def test_the_fast_path_imports_no_solver() -> None:
    code = (
        "import sys, synth.bounds.universal, synth.bounds.closed_form, synth.bounds.paper_cost;"
        "import synth.bounds.geometric_program;"
        "print([m for m in ('cvxpy', 'numpy', 'sympy', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("procs", "words"), [(4, 1_890), (16, 2_112), (64, 1_654)])
def test_relaxation_is_below_plans_cut_by_input_rows(procs: int, words: int) -> None:
    """A head with few filters: plans by output rows move 18 times as many words."""
    nest = Layer.conv2d((1, 64, 512, 512), 2, 3, padding=1).nest
    found = search(Request(nest, procs, turnable=nest.turnable))
    assert found.tiling.words == words
    assert found.turned == ("h", "w")
    relaxed = relax_received(nest, found.grid.size).cost
    assert universal_bound(nest, procs).words <= relaxed <= words


@settings(derandomize=True, deadline=None, max_examples=40)
@given(image_nests(groups=3), st.integers(2, 64))
def test_relaxation_is_below_every_plan(nest: Nest, procs: int) -> None:
    found = search_or_none(Request(nest, procs, turnable=nest.turnable))
    if found is not None:
        relaxed = relax_received(nest, found.grid.size).cost
        assert relaxed <= found.tiling.words + SOLVER * nest.total_words
