"""The nest over symbols against SPAA'21's formulas."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import sympy as sp

from synth.bounds.paper_cost import ORDER, accessed_cost, distributed_cost, distributed_memory, tile_words
from synth.layer.nest import accessed_words, accesses

LOOPS = ("b", "c", "h", "w", "k")
ONES: dict[str, Any] = {"g": 1, "d": 1, "t": 1}


def symbols(prefix: str) -> dict[str, Any]:
    names = {loop: sp.Symbol(f"{prefix}_{loop}", positive=True) for loop in LOOPS}
    return {**names, **ONES, "r": sp.Symbol("N_r", positive=True), "s": sp.Symbol("N_s", positive=True)}


W, T, N = symbols("W"), symbols("T"), symbols("N")
P, SIGMA_H, SIGMA_W = sp.symbols("P sigma_h sigma_w", positive=True)
CONV = accesses({"d": 1, "h": SIGMA_H, "w": SIGMA_W}, dict.fromkeys("dhw", 1), dict.fromkeys("dhw", 0))
MATMUL = accesses(dict.fromkeys("dhw", 1), dict.fromkeys("dhw", 1), dict.fromkeys("dhw", 0))


def equal(left: Any, right: Any) -> bool:
    return bool(sp.simplify(sp.expand(left - right)) == 0)


def rows(sigma: Any, extent: Any, kernel: Any) -> Any:
    """The corrected footprint; the paper prints σ·T + N - 1."""
    return sigma * (extent - 1) + kernel


def eq3(block: dict[str, Any]) -> Any:
    """Eq. 3 of the paper with the footprint corrected; Eq. 1 is the same with N for W."""
    tile_in = rows(SIGMA_W, T["w"], N["s"]) * rows(SIGMA_H, T["h"], N["r"])
    b, k, c, h, w = (block[i] for i in "bkchw")
    out = b * k * w * h
    ker = k * c * N["r"] * N["s"] * w * h * b / (T["w"] * T["h"] * T["b"])
    return out + ker + b * c * tile_in * w * h * k / (T["w"] * T["h"] * T["k"])


def test_footprints() -> None:
    assert equal(CONV["Ker"].footprint(T), T["k"] * T["c"] * N["r"] * N["s"])
    assert equal(CONV["Out"].footprint(T), T["b"] * T["k"] * T["h"] * T["w"])
    spatial = rows(SIGMA_H, T["h"], N["r"]) * rows(SIGMA_W, T["w"], N["s"])
    assert equal(CONV["In"].footprint(T), T["b"] * T["c"] * spatial)
    printed = (SIGMA_W * T["w"] + N["s"] - 1) * (SIGMA_H * T["h"] + N["r"] - 1)
    stride_one = {SIGMA_H: 1, SIGMA_W: 1}
    assert equal(spatial.subs(stride_one), printed.subs(stride_one))  # the erratum shows only when striding
    assert not equal(spatial, printed)


def test_eq1_and_eq3() -> None:
    assert equal(accessed_cost(CONV, "Out", W, T), eq3(W))
    assert equal(accessed_cost(CONV, "Out", N, T), eq3(N))
    g = CONV["In"].footprint(T) + T["w"] * T["h"] * T["b"] * T["k"] + N["r"] * N["s"] * T["k"] * T["c"]
    assert equal(tile_words(CONV, T), g)


def test_eq10_and_eq11() -> None:
    in_words = rows(SIGMA_W, N["w"], N["s"]) * rows(SIGMA_H, N["h"], N["r"]) * N["b"] * N["c"]
    ker_words = N["r"] * N["s"] * N["k"] * N["c"]
    initial = W["b"] * W["k"] * W["w"] * W["h"] + in_words / P + ker_words / P
    broadcast = eq3(W) - W["b"] * W["k"] * W["w"] * W["h"]
    assert equal(distributed_cost(CONV, "Out", N, P, W, T), initial + broadcast)
    memory = CONV["In"].footprint(T) + N["r"] * N["s"] * T["k"] * T["c"] + initial
    assert equal(distributed_memory(CONV, "Out", N, P, W, T), memory)
    # the paper calls g_D - g constant; it holds the stationary slice less its tile
    gap = distributed_memory(CONV, "Out", N, P, W, T) - tile_words(CONV, T) - (in_words + ker_words) / P
    assert equal(gap, W["b"] * W["k"] * W["w"] * W["h"] - T["b"] * T["k"] * T["w"] * T["h"])


def costs(orders: list[tuple[str, ...]]) -> dict[Any, list[tuple[str, ...]]]:
    """Distinct cost expressions -> the loop orders that have them."""
    classes: dict[Any, list[tuple[str, ...]]] = {}
    for order in orders:
        total = sum(accessed_words(CONV, order, W, T).values())
        classes.setdefault(total, []).append(order)
    return classes


def test_band_orders_fall_into_three_classes() -> None:
    """With b, h, w a contiguous band only the innermost of c, k and the band matters."""
    orders = [
        o
        for o in itertools.permutations(LOOPS)
        if "".join(o).translate({ord(i): "x" for i in "bhw"}).count("xxx")
    ]
    assert len(orders) == 36
    classes = costs(orders)
    innermost = [{"x" if order[-1] in "bhw" else order[-1] for order in found} for found in classes.values()]
    assert sorted(map(sorted, innermost)) == [["c"], ["k"], ["x"]]
    for expression in (accessed_cost(CONV, t, W, T) for t in ORDER):
        assert sum(equal(expression, found) for found in classes) == 1


def test_all_120_orders_fall_into_nine_classes() -> None:
    """c innermost keeps Out, k innermost keeps In; else Ker stays for the innermost run of b, h, w.

    That run is any non-empty subset of the three, so there are 1 + 1 + 7 expressions.
    """
    classes = costs(list(itertools.permutations(LOOPS)))
    assert len(classes) == 9

    def run(order: tuple[str, ...]) -> frozenset[str]:
        if order[-1] in "ck":
            return frozenset(order[-1])
        return frozenset(itertools.takewhile(lambda loop: loop in "bhw", reversed(order)))

    runs = [{run(order) for order in orders} for orders in classes.values()]
    assert all(len(each) == 1 for each in runs)
    sizes = sorted(len(orders) for orders in classes.values())
    assert sizes == [8, 8, 8, 12, 12, 12, 12, 24, 24]  # pairs; singles and the triple; c and k


def test_matmul_is_classical() -> None:
    """Out stationary: mn/P + mnk/P·(1/Tm + 1/Tn) with m = b, n = k, inner dimension c."""
    flat = {"h": 1, "w": 1, "r": 1, "s": 1}
    block, tile = {**W, **flat}, {**T, **flat}
    m, n, k = W["b"], W["k"], W["c"]
    expected = {
        "Out": m * n + m * n * k * (1 / T["b"] + 1 / T["k"]),
        "Ker": n * k + m * n * k * (1 / T["k"] + 1 / T["c"]),
        "In": m * k + m * n * k * (1 / T["b"] + 1 / T["c"]),
    }
    for stationary, words in expected.items():
        assert equal(accessed_cost(MATMUL, stationary, block, tile), words)  # type: ignore[arg-type]


def test_symbols_and_numbers_agree() -> None:
    block = dict(b=8, c=6, h=4, w=4, k=12, r=3, s=3, **ONES)
    tile = dict(b=2, c=1, h=2, w=4, k=3, r=3, s=3, **ONES)
    numbers = {W[i]: block[i] for i in LOOPS} | {T[i]: tile[i] for i in LOOPS}
    numbers |= {N["r"]: 3, N["s"]: 3, SIGMA_H: 2, SIGMA_W: 1}
    nest = accesses({"d": 1, "h": 2, "w": 1}, dict.fromkeys("dhw", 1), dict.fromkeys("dhw", 0))
    for stationary in ORDER:
        symbolic = accessed_cost(CONV, stationary, W, T).subs(numbers)
        assert symbolic == accessed_cost(nest, stationary, block, tile)


@pytest.mark.parametrize("stationary", list(ORDER))
def test_orders_run_the_lacked_index_innermost(stationary: str) -> None:
    assert ORDER[stationary][-1] not in CONV[stationary].indices  # type: ignore[index]
