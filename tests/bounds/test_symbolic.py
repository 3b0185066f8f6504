"""The symbolic bound: its values are the numeric bound, its pieces cover every P."""

from __future__ import annotations

import itertools
import json
import math
import random
from typing import Any

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_problems import layers

from synth.bounds.symbolic import SymbolicBound, latex, text
from synth.bounds.universal import UniversalBound, universal_bound
from synth.layer.layer import Layer, load_layer


def near(bound: UniversalBound, limit_words: int | None = None) -> Any:
    """The words of a bound up to rounding: `universal_bound` takes 1e-12 of the accessed words off."""
    accessed = bound.words + bound.resident + (bound.segments - 1) * (limit_words or 0)
    return pytest.approx(bound.words, rel=1e-9, abs=2e-12 * accessed + 1e-9)


@settings(max_examples=40)
@given(layers(), st.integers(1, 300), st.none() | st.integers(1, 10**5))
def test_values_are_the_numeric_bound(layer: Layer, procs: int, limit_words: int | None) -> None:
    if layer.nest.real_work == 0:
        return
    bound = SymbolicBound(layer.nest)
    numeric = universal_bound(layer.nest, procs, limit_words)
    assert bound.value(procs, limit_words) == near(numeric, limit_words)
    if numeric.most_work < 100 * numeric.segments:
        return  # `closed` does not round the work of a segment up
    closed = {**bound.values, "P": procs, "M": limit_words or 10**12}
    weaker = bound.closed.subs({bound.symbol(name): value for name, value in closed.items()})
    assert float(weaker) <= numeric.words + 0.01 * (numeric.words + numeric.resident) + 1.0


def test_closed_form_is_below_the_maximum_over_real_cuts() -> None:
    """docs/bounds.md: 3·n^(1/3)·w^(2/3) - (n-1)·M >= 2·w/√M for the integer n next to w/M^(3/2)."""
    rng = random.Random(5)
    for _ in range(2000):
        y = math.exp(rng.uniform(-6, 8))
        n = max(1, round(y))
        assert 3 * n ** (1 / 3) * y ** (2 / 3) - (n - 1) >= 2 * y * (1 - 1e-12)


@pytest.mark.parametrize("name", ["conv", "grouped", "matmul", "resnet50/conv1_7x7"])
def test_pieces_cover_all_processes_and_agree_with_the_bound(name: str) -> None:
    bound = SymbolicBound(load_layer(f"examples/{name}.yaml").nest)
    pieces = bound.pieces
    assert pieces[0].first == 1
    assert pieces[-1].last is None
    for before, after in itertools.pairwise(pieces):
        assert before.last is not None
        assert after.first == before.last + 1
    numbers = {bound.symbol(key): value for key, value in bound.values.items()}
    for piece in pieces:
        for procs in {piece.first, piece.last or 5 * piece.first, (piece.first + (piece.last or 9)) // 2}:
            if procs < piece.first:
                continue
            value = float(piece.bound.subs({**numbers, bound.symbol("P"): procs}))
            assert max(0.0, value) == near(universal_bound(bound.nest, procs))


def test_a_matrix_product_has_the_three_regimes_of_the_literature() -> None:
    pieces = SymbolicBound(Layer.matmul(4000, 200, 10).nest).pieces
    assert [piece.regime for piece in pieces] == ["local", "1D", "2D", "3D"]
    assert [piece.first for piece in pieces] == [1, 2, 21, 8009]  # ⌈F/P⌉ = 1000 up to P = 8008


def test_json_can_be_read_by_sympy() -> None:
    layer = load_layer("examples/conv.yaml")
    bound = SymbolicBound(layer.nest)
    data = json.loads(json.dumps(bound.to_json(layer)))
    names = {name: bound.symbol(name) for name in (*"PMn", *bound.values)}
    assert sympy.sympify(data["sympy"]["bound"], locals=names) == bound.bound
    assert data["assumptions"][-1].startswith("at most ceiling(F/P) multiply-adds")
    assert "one owner of every word" in text(layer, bound)
    shown = latex(layer, bound)
    assert shown.count("{") == shown.count("}")
    assert r"\begin{cases}" in shown
