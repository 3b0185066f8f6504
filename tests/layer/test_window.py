"""Reduced windows against enumeration."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_problems import windows

from synth.layer.window import Window


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.integers(1, 20), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(0, 3))
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
