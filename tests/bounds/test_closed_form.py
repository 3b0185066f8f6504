"""Eq. 4: against brute force, against the geometric program, and its errors."""

from __future__ import annotations

import itertools
import math

import pytest
from effort import tried
from example_nests import conv, matmul
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis_problems import nests_without_halo

from synth.base.errors import InfeasibleError, UsageError
from synth.bounds.closed_form import (
    Eq4,
    best,
    iterated_tile_memory,
    paper_bound,
    solve,
    table1_corrected,
    table1_printed,
    tile_memory,
    tile_memory_with_halo,
)
from synth.bounds.geometric_program import relax_accessed
from synth.layer.axes import PerAxis
from synth.layer.nest import Nest

real = st.floats(1, 50)


def brute_force(problem: Eq4, stationary: str, steps: int = 60) -> float:
    """Least cost of Eq. 4 on a logarithmic grid of tiles, straight from its statement."""
    N = {"k": problem.Nk, "x": problem.Nx, "c": problem.Nc}
    weight = {"Out": 1.0, "Ker": problem.RS, "In": problem.S}  # words of a tensor per pair of indices
    has = {"Out": "kx", "Ker": "kc", "In": "xc"}
    lacked = {"Out": "c", "Ker": "x", "In": "k"}[stationary]
    one, two = has[stationary]
    least = math.inf
    for i, j in itertools.product(range(steps + 1), repeat=2):
        T = {one: N[one] ** (i / steps), two: N[two] ** (j / steps), lacked: 1.0}
        tile = weight[stationary] * T[one] * T[two]
        if tile > problem.M_L or T[one] * T[two] > problem.A:
            continue
        block = max(T[one] * T[two], problem.A / N[lacked]) * weight[stationary]
        streamed = sum(
            weight[t] * problem.A / T[({"k", "x", "c"} - set(has[t])).pop()] for t in has if t != stationary
        )
        least = min(least, block + streamed)
    return least


@settings(derandomize=True, deadline=None, max_examples=tried(6, 40))
@given(
    real,
    real,
    real,
    st.sampled_from([1, 3, 9]),
    st.sampled_from([1, 2, 4]),
    st.floats(1, 30),
    st.floats(12, 400),
)
def test_no_tile_on_a_grid_is_cheaper(Nk, Nc, Nx, RS, S, P, M):  # type: ignore[no-untyped-def]
    problem = Eq4(Nk, Nc, Nx, RS, S, min(P, Nk * Nc * Nx), M)
    for stationary in ("Out", "Ker", "In"):
        found = solve(problem, stationary).cost
        assert found <= brute_force(problem, stationary) * (1 + 1e-9)


def test_brute_force_comes_close() -> None:
    problem = Eq4(20, 30, 40, 9, 1, 6, 200)
    for stationary in ("Out", "Ker", "In"):
        assert brute_force(problem, stationary, 300) == pytest.approx(
            solve(problem, stationary).cost, rel=2e-2
        )


@settings(derandomize=True, deadline=None, max_examples=25)
@given(nests_without_halo(), st.integers(1, 3000), st.floats(1.2, 1e4))
@example(matmul(1024, 1024, 1024), 64, 1000.0)
def test_equals_the_geometric_program_without_halo(nest: Nest, procs: int, scale: float) -> None:
    """With Eq. 3's memory constraint slack the two programs are one."""
    for stationary in ("Out", "Ker", "In"):
        form = solve(Eq4.of(nest, procs), stationary)
        assert relax_accessed(nest, procs, None, stationary).cost == pytest.approx(form.cost, rel=1e-4)
    memory = scale * (nest.taps + nest.strides + 1)
    for stationary in ("Out", "Ker", "In"):  # with it, Eq. 4 at M_L = M is a lower bound
        form = solve(Eq4.of(nest, procs, memory), stationary)
        assert form.cost <= relax_accessed(nest, procs, memory, stationary).cost * (1 + 1e-4)


def test_cases_and_binding_bounds_are_named() -> None:
    forms = {
        "1a": solve(Eq4(1024, 1024, 1024, 1, 1, 64, 4096), "Out"),
        "1b": solve(Eq4(256, 64, 100352, 1, 1, 4, 1e8), "Out"),
        "2a": solve(Eq4(1024, 1024, 1024, 1, 1, 64), "Out"),
        "2b": solve(Eq4(1024, 1024, 1024, 1, 1, 64, 32768), "Out"),
    }
    assert {case: form.case for case, form in forms.items()} == {case: case for case in forms}
    assert [form.algorithm for form in forms.values()] == ["2D", "2D", "3D", "2.5D"]
    assert [form.binding for form in forms.values()] == [
        ("T <= M_L", "W_c <= N_c"),
        ("T_k <= N_k", "W_c <= N_c"),
        (),
        ("T <= M_L",),
    ]
    assert str(forms["2b"]).startswith("case 2b (2.5D), Out stationary: 218131.8 words")


def test_printed_table_1_falls_below_the_optimum() -> None:
    problem = Eq4(64, 3, 32 * 112 * 112, 49, 4, 4, 1e8)  # few channels, large image: case 1b
    assert table1_printed(problem)[0] == "2a"
    assert table1_corrected(problem)[0] == "1b"
    assert table1_printed(problem)[1] < 0.5 * table1_corrected(problem)[1] <= solve(problem, "Out").cost


def test_groups_are_split_first() -> None:
    one = conv([8, 16, 16, 7, 7, 3, 3, 1, 1])
    four = Nest(one.extents.with_("g", 4), one.d, one.h, one.w)
    assert paper_bound(four, 4 * 8, 5000) == pytest.approx(paper_bound(one, 8, 5000))
    assert paper_bound(four, 2, 5000) == pytest.approx(2 * paper_bound(one, 1, 5000))


@given(st.floats(10, 1e9), st.floats(1, 50), st.floats(1, 4))
@settings(derandomize=True, deadline=None)
def test_tile_memory_solves_its_equation(memory: float, K: float, phi: float) -> None:
    for words, reach in (
        (tile_memory(memory, K), 3 * K),
        (tile_memory_with_halo(memory, K, phi), (1 + phi) * K),
    ):
        assert words + reach * math.sqrt(max(0, words)) == pytest.approx(memory, rel=1e-6)
    assert tile_memory_with_halo(memory, K, 2) == pytest.approx(tile_memory(memory, K), rel=1e-5)


def test_iterated_tile_memory_is_less_pessimistic() -> None:
    nest = conv([32, 256, 256, 14, 14, 3, 3, 1, 1])
    form = iterated_tile_memory(nest, 16, 65536)
    assert form.cost < solve(Eq4.of(nest, 16, tile_memory(65536, 3)), "Out").cost
    assert form.cost > solve(Eq4.of(nest, 16, 65536), "Out").cost


def test_errors_and_idle_processes() -> None:
    nest = conv([2, 2, 2, 4, 4, 3, 3, 1, 1])
    with pytest.raises(InfeasibleError, match="at least 9 words"):
        solve(Eq4.of(nest, 2, 5), "Ker")
    with pytest.raises(InfeasibleError, match="allow at least 1"):
        best(Eq4.of(nest, 2, 0.5))
    with pytest.raises(UsageError, match="at least 1 process"):
        Eq4.of(nest, 0)
    assert Eq4.of(nest, 10**6).A == 1.0
    assert best(Eq4.of(Nest(PerAxis(), nest.d, nest.d, nest.d), 7)).cost == 3.0
