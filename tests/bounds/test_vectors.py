"""Stored numbers, from independent computations, against closed forms, bounds, relaxation and search."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from example_nests import conv, matmul

from synth.bounds.closed_form import (
    Eq4,
    best,
    solve,
    table1_corrected,
    table1_printed,
    table2_corrected,
    table2_printed,
    tile_memory,
)
from synth.bounds.geometric_program import relax_accessed
from synth.bounds.holder_brascamp_lieb import hbl_constant, kappa2, residues
from synth.bounds.paper_cost import PerAxis, accessed_optimum, cost_at, distributed_optimum, memory_at
from synth.bounds.universal import matmul_memory_independent, sequential_bound, universal_bound, words_bound

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data" / "vectors.json").read_text())
CLOSE = 1e-6
problem = pytest.mark.parametrize("problem", VECTORS["problems"], ids=lambda p: p["name"])


def eq4(problem: dict[str, Any]) -> Eq4:
    """A stored problem as Eq. 4 has it."""
    b, k, c, h, w, r, s, stride_w, stride_h = problem["extents"]
    return Eq4(k, c, b * h * w, r * s, stride_w * stride_h, problem["procs"], problem["memory"])


def near(value: float) -> Any:
    return pytest.approx(value, rel=CLOSE)


@problem
def test_tables_as_printed_and_as_corrected(problem: dict[str, Any]) -> None:
    given = eq4(problem)
    for table, key in ((table1_printed, "table1_printed"), (table1_corrected, "table1_corrected")):
        case, words = table(given)
        assert (case, words) == (problem[key][0], near(problem[key][1]))
    assert table2_printed(given) == near(problem["table2_printed"])
    assert table2_corrected(given) == near(problem["table2_corrected"])


@problem
def test_eq4_with_all_bounds(problem: dict[str, Any]) -> None:
    form = solve(eq4(problem), "Out")
    stored = problem["eq4"]
    assert (form.cost, form.t_k, form.t_x) == (near(stored["cost"]), near(stored["T_k"]), near(stored["T_x"]))
    assert best(eq4(problem)).cost == near(problem["eq4_best"])


@problem
def test_universal_bound(problem: dict[str, Any]) -> None:
    nest = conv(problem["extents"])
    # the stored numbers with √n for C count In without halo
    halo_free = nest.strides * nest.extents.c * nest.extents.x
    root = math.prod(sum(math.sqrt(len(taps)) for _, taps in residues(w)) for w in (nest.h, nest.w))
    for key, kappa, size_in in (("bound", kappa2(nest), nest.words["In"]), ("bound_sqrt", root, halo_free)):
        sizes = (nest.words["Out"], size_in, nest.words["Ker"])
        mass = nest.work * (kappa / nest.taps) ** (2 / 3)
        cap = -(-nest.work // problem["procs"])
        words, segments, _ = words_bound(sizes, mass, cap, problem["procs"], problem["memory"])
        assert (words, segments) == (near(problem[key]["words"]), problem[key]["segments"])
    if nest.strides == 1:  # then no stride mixes residue classes, and the layer's own bound is the same
        own = universal_bound(nest, problem["procs"], problem["memory"], accounting="accessed")
        assert own.words == near(problem["bound"]["words"])


@pytest.mark.parametrize("row", VECTORS["tile_memory"])
def test_tile_memory(row: dict[str, Any]) -> None:
    assert tile_memory(row["memory"], row["K"]) == near(row["tile_memory"])


@pytest.mark.parametrize("row", VECTORS["matmul"])
def test_matmul_regimes(row: dict[str, Any]) -> None:
    m, n, k = row["mnk"]
    assert matmul_memory_independent(m, n, k, row["procs"]) == near(row["received"])
    assert universal_bound(matmul(m, n, k), row["procs"]).words == near(row["received"])
    assert universal_bound(matmul(m, n, k), row["procs"], accounting="accessed").words == near(
        row["accessed"]
    )


@pytest.mark.parametrize("row", VECTORS["sequential"])
def test_sequential(row: dict[str, Any]) -> None:
    nest = conv(VECTORS["layers"]["conv4x"])
    ratio = math.sqrt(nest.strides / nest.taps)
    assert sequential_bound(nest.work, ratio, row["memory"], row["precision_in_ker_out"]) == near(
        row["words"]
    )


@pytest.mark.parametrize("row", VECTORS["hbl"])
def test_hbl_constants(row: dict[str, Any]) -> None:
    if min(row["outputs"], row["taps"]) <= 4:
        assert hbl_constant(row["outputs"], row["taps"]) == near(row["constant"])
    else:  # not certified: the stored value is a lower estimate, the ceiling is used
        assert hbl_constant(row["outputs"], row["taps"]) == near(row["ceiling"])
        assert row["constant"] < row["ceiling"]


@pytest.mark.parametrize("row", VECTORS["kappa"])
def test_kappa(row: dict[str, Any]) -> None:
    _, _, _, _, _, r, s, stride_w, stride_h = row["extents"]
    assert math.sqrt(r * s * stride_w * stride_h) == near(row["K"])
    nest = conv(row["extents"])
    root = math.prod(sum(math.sqrt(len(taps)) for _, taps in residues(w)) for w in (nest.h, nest.w))
    assert root == near(row["kappa_sqrt"])
    assert kappa2(nest) == near(row["kappa2"])


@pytest.mark.parametrize("row", VECTORS["relaxation"]["optima"], ids=lambda r: r["stationary"])
def test_relaxation(row: dict[str, Any]) -> None:
    given = VECTORS["relaxation"]
    nest = conv(VECTORS["layers"][given["layer"]])
    relaxed = relax_accessed(nest, given["procs"], given["memory"], row["stationary"])
    assert relaxed.cost == near(row["cost"])
    if "Tb" in row:
        stored = [row[f"T{axis}"] for axis in "bkchw"]
        assert [relaxed.T[axis] for axis in ("b", "k", "c", "h", "w")] == pytest.approx(stored, rel=1e-3)
        bound = universal_bound(nest, given["procs"], given["memory"], accounting="accessed")
        assert bound.words == near(row["lb2"])
        form = table1_printed(eq4({"extents": VECTORS["layers"]["conv4x"], **given}))
        assert form[1] == near(row["table1_at_M"])


def test_integer_optimum_of_eq3() -> None:
    given = VECTORS["integer"]["eq3"]
    nest = conv(VECTORS["layers"]["conv4x"])
    found = accessed_optimum(nest, given["procs"], given["memory"])
    assert (found.cost, found.stationary) == (given["cost"], given["stationary"])
    grid, tile = PerAxis(**given["grid"]), PerAxis(**given["tile"])  # attained at several grids
    assert cost_at(nest, "Out", grid, tile) == given["cost"]
    assert memory_at(nest, "Out", grid, tile) <= given["memory"]


def test_integer_optimum_of_eq10() -> None:
    given = VECTORS["integer"]["eq10"]
    nest = conv(VECTORS["layers"]["conv4x"])
    found = distributed_optimum(nest, given["procs"])
    assert (found.cost, found.grid) == (given["cost"], PerAxis(**given["grid"]))
    words, procs = nest.words, given["procs"]
    received = found.cost - (2 * words["In"] + 2 * words["Ker"] + words["Out"]) / procs
    assert received == given["received"]
    assert universal_bound(nest, procs).words == near(given["bound_received"])
