"""The errata: every counterexample does go wrong as printed, and not as corrected."""

from __future__ import annotations

import itertools
import re

from synth.analysis.errata import (
    CONV4,
    errata,
    halo_memory,
    missing_case,
    never_short,
    own_words,
    partial_sums,
    table2_row1,
    text,
)
from synth.layer.nest import accessed_words


def test_errata_that_differ() -> None:
    found, shown = errata(), text()
    assert len(found) == 13
    for each in found:
        assert each.printed != each.right
        assert str(each) in shown


def test_missing_case_is_far_below_the_optimum() -> None:
    ratios = [float(ratio) for ratio in re.findall(r"([\d.]+) of the optimum", missing_case().printed)]
    assert len(ratios) == 2
    assert ratios[0] <= 0.21
    assert ratios[1] <= 0.024


def words_of(text: str) -> list[int]:
    """The numbers of a text that are written with thousands separators."""
    return [int(number.replace(" ", "")) for number in re.findall(r"\d{1,3}(?: \d{3})+", text)]


def test_printed_memory_is_too_small_for_every_tile() -> None:
    found = re.search(r"less than (\d+) words", halo_memory().right)
    assert found is not None
    assert int(found[1]) > 490
    assert "M = 490 words" in halo_memory().example


def test_the_whole_slice_of_out_leaves_more_than_its_share() -> None:
    left, share = words_of(never_short().right)
    assert left > share == 256 * 32 * 14 * 14 // 16


def test_partial_sums_are_read_and_written() -> None:
    (printed,), (right,) = words_of(partial_sums().printed), words_of(partial_sums().right)
    first = 32 * 14 * 14 * 16
    assert (printed, right) == (8 * first, (2 * 8 - 1) * first)


def test_received_words_are_those_of_the_other_processes() -> None:
    (charged,), received = words_of(own_words().printed), words_of(own_words().right)
    inputs, taps = 8 * 256 * 16 * 16, 64 * 256 * 9
    assert charged == inputs + taps
    assert received[0] == inputs * 3 // 4 + taps * 3 // 4


def loop_orders() -> int:
    """The number of distinct costs of the 120 orders of the loops b, c, h, w, k of one tile."""
    block = {"b": 32, "c": 27, "h": 20, "w": 28, "k": 22, "r": 3, "s": 3, "g": 1, "d": 1, "t": 1}
    tile = {"b": 4, "c": 3, "h": 4, "w": 7, "k": 11, "r": 3, "s": 3, "g": 1, "d": 1, "t": 1}
    found = {
        sum(accessed_words(CONV4.nest.accesses, order, block, tile).values())
        for order in itertools.permutations(("b", "c", "h", "w", "k"))
    }
    return len(found)


def test_loop_orders_and_table2() -> None:
    assert loop_orders() == 9
    assert table2_row1().right.startswith("888 379")
