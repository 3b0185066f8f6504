"""Rows of a bank take few bytes, and have the bounds with which they were computed."""

from __future__ import annotations

import numpy as np
import pytest

from synth.layer.axes import PerAxis
from synth.layer.layer import Layer
from synth.network.grids.owned_boxes import OwnedBoxes, PlacedGrid, row_numbers
from synth.network.grids.row_bank import RowBank


@pytest.mark.parametrize("rows", [64, 2**15 - 1, 2**15, 70_000])
def test_bounds_of_kept_rows_are_those_of_ownership(rows: int) -> None:
    """2^15 is the first bound that does not fit in 16 bits."""
    nest, procs = Layer.conv2d((4, 6, rows, 5), 8, 1).nest, 12
    placed = [PlacedGrid(PerAxis(h=12)), PlacedGrid(PerAxis(b=2, h=6)), PlacedGrid(PerAxis(k=4, h=3))]
    bank = RowBank(np.arange(procs, dtype=np.int32))
    boxes = bank.boxes(row_numbers(bank, nest, "Out", placed))
    ownership = OwnedBoxes(nest, placed, procs).ownership
    low, high = boxes.spans
    for at, dim in ((0, "b"), (3, "h"), (4, "w")):
        first, last = ownership.shard("Out", dim)
        assert (low[at] == first).all()
        assert (high[at] == last).all()
    assert int((high[3] - low[3]).max()) * 12 >= rows
    assert all(bound.dtype == np.int32 for bound in (*boxes.low, *boxes.high))  # products must not wrap


def test_equal_rows_are_kept_once_and_others_apart() -> None:
    nest = Layer.conv2d((8, 6, 64, 64), 8, 1).nest
    bank = RowBank(np.arange(8, dtype=np.int32))
    grids = [PerAxis(b=8), PerAxis(h=8), PerAxis(w=8), PerAxis(b=8)]
    numbers = row_numbers(bank, nest, "Out", [PlacedGrid(grid) for grid in grids])
    assert (numbers[0] == numbers[3]).all()
    assert numbers[0, 0] != numbers[1, 0]
    assert numbers[1, 3] != numbers[2, 3]
    assert numbers[1, 4] != numbers[2, 4]
