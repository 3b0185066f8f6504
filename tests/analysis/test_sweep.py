"""Sweeps: the chain at every point, plans that a single search finds, the errata in view."""

from __future__ import annotations

import pytest

from synth.analysis.sweep import Sweep, SweepOptions, why_nothing_fits
from synth.layer.layer import load_layer
from synth.search.branch_and_bound import search
from synth.search.request import Request

CONV = load_layer("examples/conv.yaml").nest


def test_bound_relaxation_and_plan_stand_in_order_at_every_point() -> None:
    points = Sweep(CONV, SweepOptions(eq3=True)).points([1, 4, 61, 64], [None])
    for point in points:
        r, a = point.received, point.accessed
        assert r.plan is not None
        assert r.relaxation is not None
        slack = 1e-5 * CONV.total_words / point.procs
        assert r.bound <= r.relaxation + slack <= r.plan.words + 2 * slack
        assert a.relaxation is not None
        assert a.bound <= a.relaxation * (1 + 1e-6)
        if a.integer is not None:
            assert a.relaxation <= a.integer * (1 + 1e-6)


def test_a_plan_is_reused_only_where_it_is_the_optimum() -> None:
    sizes = [2**n for n in range(17, 23)]
    for point in Sweep(CONV, SweepOptions(relaxations=False)).points([64], sizes):
        assert point.limit_bytes is not None
        if point.received.plan is None:
            continue
        alone = search(Request(CONV, 64, point.limit_bytes // 4))
        assert point.received.plan.words == alone.tiling.words


def test_words_rise_as_memory_falls() -> None:
    points = Sweep(CONV, SweepOptions(relaxations=False)).points([64], [2**n for n in range(17, 23)])
    words = [p.received.plan.words for p in points if p.received.plan]
    assert words == sorted(words)
    assert next(p.received.plan.regime for p in points if p.received.plan) == "3D"


def test_matrix_product_column() -> None:
    product = Sweep(load_layer("examples/matmul.yaml").nest, SweepOptions(False, False)).point(64, None)
    assert product.received.matmul == pytest.approx(product.received.bound)
    assert Sweep(CONV, SweepOptions(False, False)).point(64, None).received.matmul is None


def test_printed_table_lacks_case_1b() -> None:
    accessed = Sweep(CONV, SweepOptions(False, False)).point(1, None).accessed
    assert accessed.table1_printed[0] == "2a"
    assert accessed.table1_corrected[0] == "1b"
    assert accessed.table1_printed[1] < accessed.table1_corrected[1]


def test_refusals_name_the_memory_that_is_enough() -> None:
    fault = why_nothing_fits(CONV, 64, 1024, SweepOptions())
    assert fault is not None
    least = int(str(fault).rsplit("memory=", 1)[1].rstrip(")"))
    assert why_nothing_fits(CONV, 64, least, SweepOptions()) is None
