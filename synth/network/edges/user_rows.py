"""Rows of the user's tensor and reduced rows, for bounds of many boxes at once; see `Window.source`."""

from __future__ import annotations

import numpy as np

from synth.layer.axes import SPATIAL
from synth.layer.nest import Nest
from synth.layer.window import Window
from synth.network.grids.box_rows import FLAT, Array


def windows_with_gaps(nest: Nest) -> dict[int, Window]:
    """Position in `FLAT` -> the window of a nest along it, where it may skip rows of the user's tensor."""
    windows = {FLAT.index(dim): nest.windows[dim] for dim in SPATIAL if nest.windows[dim].size}
    return {at: window for at, window in windows.items() if window.stride > 1 or not window.reads_all}


def rows_before(window: Window, bounds: Array) -> Array:
    """The number of reduced rows before each bound. bounds: rows of the user's tensor."""
    steps = -((window.first - bounds) // window.step)
    if window.period != len(window.kept):
        whole, rest = steps // window.period, steps % window.period
        steps = whole * len(window.kept) + np.searchsorted(window.kept, rest) - window.padding
    counts: Array = np.clip(steps, 0, window.size)
    return counts


def user_bounds(window: Window, size: int, bounds: Array) -> Array:
    """Bounds of boxes in reduced rows as rows of the user's tensor, which has `size` of them.

    Rows that no window reads join the row before.
    """
    found: Array = np.where(bounds == 0, 0, window.source(bounds))
    return np.where(bounds == window.size, size, found)
