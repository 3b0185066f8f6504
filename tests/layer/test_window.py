"""Reduced windows against enumeration."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_problems import windows

from synth.layer.window import Window
from synth.network.edges.user_rows import rows_before
from synth.runtime.grid import boxes


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.integers(1, 24), st.integers(1, 4), st.integers(1, 7), st.integers(1, 4), st.integers(0, 3))
def test_reduced_window_reads_the_same_rows(
    size: int, kernel: int, stride: int, dilation: int, padding: int
) -> None:
    if size + 2 * padding < dilation * (kernel - 1) + 1:
        return
    window = Window.reduced(size, kernel, stride, dilation, padding)
    for position in range(window.out):
        wanted = {
            row for tap in range(kernel) if 0 <= (row := stride * position + dilation * tap - padding) < size
        }
        local = (window.stride * position + window.dilation * tap - window.padding for tap in range(kernel))
        assert {window.source(row) for row in local if 0 <= row < window.size} == wanted
        assert window.taps(position, position + 1) == len(wanted)
    every = {
        row
        for position in range(window.out)
        for tap in range(kernel)
        if 0 <= (row := stride * position + dilation * tap - padding) < size
    }
    assert window.read_rows == len(every)
    rows = np.arange(window.size)
    assert window.source(rows).tolist() == [window.source(row) for row in range(window.size)]
    bounds = np.arange(size + 1)
    sources = [window.source(row) for row in range(window.size)]
    before = [sum(source < bound for source in sources) for bound in bounds.tolist()]
    assert rows_before(window, bounds).tolist() == before
    ours = boxes.Window(
        window.size,
        window.kernel,
        window.stride,
        window.dilation,
        window.padding,
        window.first,
        window.step,
        window.period,
        window.kept,
    )
    assert boxes.source_rows((0, window.size), ours) == sources


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "kept", "apart"),
    [(2, 3, 2, (0, 2), 1), (2, 5, 3, (0, 3), 1), (2, 3, 4, (0, 1), 3), (3, 5, 3, (0, 1, 3), 2)],
)
def test_rows_in_gaps_of_a_stride_are_removed_where_taps_stay_at_equal_distances(
    kernel: int, stride: int, dilation: int, kept: tuple[int, ...], apart: int
) -> None:
    window = Window.reduced(100, kernel, stride, dilation, 0)
    assert (window.period, window.kept, window.dilation) == (stride, kept, apart)
    assert window.size <= 100 * kernel // stride + kernel


def test_rows_in_gaps_stay_where_taps_would_be_at_unequal_distances() -> None:
    window = Window.reduced(100, 4, 7, 3, 0)  # taps at 0, 3, 6, 9: rows 0, 2, 3, 6 of 7, so 0, 2, 3, 5
    assert (window.period, window.kept, window.stride) == (1, (0,), 7)
    assert window.read_rows < window.size


@settings(derandomize=True, deadline=None, max_examples=200)
@given(windows(), st.data())
def test_overlap_is_the_least_over_cuts(window: Window, data: st.DataObject) -> None:
    if window.out == 1:
        assert window.overlap == 0
        return
    cut = data.draw(st.integers(1, window.out - 1))
    before, after = window.reach(0, cut), window.reach(cut, window.out)
    if before != (0, 0) and after != (0, 0):
        assert window.overlap <= max(0, before[1] - after[0])
