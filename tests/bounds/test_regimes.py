"""Regimes: those of Al Daas et al. for matrix products, and the exact place of every change."""

from __future__ import annotations

import itertools

import pytest
from example_nests import matmul

from synth.bounds.regimes import changes_along_memory, changes_along_procs, regime_of, regime_of_grid
from synth.bounds.universal import universal_bound
from synth.layer.axes import PerAxis
from synth.layer.layer import load_layer


def test_three_cases_of_a_matrix_product() -> None:
    m, n, k = 4096, 256, 1024  # sorted: 4096 >= 1024 >= 256
    nest = matmul(m, n, k)
    seen = {p: regime_of(universal_bound(nest, p)) for p in (1, 2, 4, 5, 64, 65, 1024)}
    assert seen == {1: "local", 2: "1D", 4: "1D", 5: "2D", 64: "2D", 65: "3D", 1024: "3D"}
    found = changes_along_procs(nest, [1, 8, 1024], None)
    assert [(c.at, c.before, c.after) for c in found] == [
        (2, "local", "1D"),
        (5, "1D", "2D"),
        (65, "2D", "3D"),
    ]


def test_changes_along_memory_are_exact() -> None:
    nest = load_layer("examples/conv.yaml").nest
    (change,) = changes_along_memory(nest, 64, [2**n for n in range(14, 24)])
    words = change.at // nest.word_bytes
    for limit, regime in ((words - 1, change.before), (words, change.after)):
        assert regime_of(universal_bound(nest, 64, limit)) == regime
    assert (change.before, change.after) == ("2.5D", "3D")


@pytest.mark.parametrize(
    ("grid", "binds", "regime"),
    [
        (PerAxis(), False, "local"),
        (PerAxis(b=4, h=2), False, "1D"),
        (PerAxis(b=4, k=2), True, "2D"),
        (PerAxis(b=4, k=2, c=2), False, "3D"),
        (PerAxis(b=4, k=2, c=2), True, "2.5D"),
    ],
)
def test_regime_of_a_grid(grid: PerAxis, binds: bool, regime: str) -> None:
    assert regime_of_grid(grid, binds) == regime


def test_regimes_only_rise_with_processes() -> None:
    nest = load_layer("examples/resnet50/conv2_x_3x3.yaml").nest
    order = ["local", "1D", "2D", "3D"]
    regimes = [order.index(regime_of(universal_bound(nest, p))) for p in range(1, 400, 7)]
    assert all(a <= b for a, b in itertools.pairwise(regimes))
