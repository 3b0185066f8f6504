"""The errata: every counterexample does go wrong as printed, and not as corrected."""

from __future__ import annotations

import re

from synth.analysis.errata import CONV2, THIN, errata, halo_memory, missing_case, orders, table2_row1, text


def test_nine_errata_that_differ() -> None:
    found = errata()
    assert len(found) == 9
    for each in found:
        assert each.printed != each.right
        assert str(each) in text()


def test_missing_case_is_far_below_the_optimum() -> None:
    for layer, procs, most in ((CONV2, 4, 0.21), (THIN, 1, 0.024)):
        ratio = re.search(r"([\d.]+) of the optimum", missing_case(layer, procs).printed)
        assert ratio is not None
        assert float(ratio[1]) <= most


def test_printed_memory_overflows_and_the_corrected_does_not() -> None:
    needed = [
        int(re.findall(r"needs (\d+) words", side)[0])
        for side in (halo_memory().printed, halo_memory().right)
    ]
    assert needed[0] > 600 >= needed[1]


def test_orders_and_table2() -> None:
    assert orders().right.startswith("9 distinct costs")
    assert table2_row1().right.startswith("888 379")
