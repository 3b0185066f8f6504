"""Rows of the user's tensor and reduced rows, of many bounds at once, against lists of all rows."""

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from synth.layer.layer import Layer
from synth.layer.nest import Nest
from synth.layer.window import Window, out_size
from synth.network.edges.user_rows import rows_before, user_bounds, windows_with_gaps

few = st.integers(1, 5)


@given(st.integers(1, 40), few, few, few, st.integers(0, 4))
def test_bounds(size: int, kernel: int, stride: int, dilation: int, padding: int) -> None:
    assume(out_size(size, kernel, stride, padding, dilation) > 0)
    window = Window.reduced(size, kernel, stride, dilation, padding)
    assume(window.size > 0)
    rows = [window.source(i) for i in range(window.size)]
    bounds = np.arange(size + 1)
    assert rows_before(window, bounds).tolist() == [sum(row < bound for row in rows) for bound in bounds]
    reduced = np.arange(window.size + 1)
    assert user_bounds(window, size, reduced).tolist() == [0, *rows[1:], size]
    assert window.reads_all == (rows == list(range(len(rows))))


def test_a_window_of_a_thousand_million_rows() -> None:
    nest: Nest = Layer.conv2d((1, 1, 2**30, 3), 1, 3, stride=2, padding=1).nest
    (window,) = (w for w in windows_with_gaps(nest).values() if w.size > 3)
    assert rows_before(window, np.array([0, 5, 2**30])).tolist() == [0, 5, 2**30]
