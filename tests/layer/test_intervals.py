"""Intervals and boxes against sets of positions, and cuts against torch."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from synth.layer.intervals import (
    Box,
    Interval,
    contains,
    cut,
    cuts,
    length,
    meet,
    outside,
    overlap,
    shape,
    volume,
    within,
)

INTERVALS = st.tuples(st.integers(0, 6), st.integers(0, 5)).map(lambda t: (t[0], t[0] + t[1]))
FRAME: Box = ((0, 12),) * 2
BOXES = st.tuples(INTERVALS, INTERVALS)


def mask(box: Box) -> np.ndarray:
    filled = np.zeros(shape(FRAME), int)
    filled[within(box, FRAME)] += 1
    return filled


@given(st.integers(0, 40), st.integers(1, 50), st.integers(-5, 5))
def test_cuts_as_torch_does(extent: int, parts: int, low: int) -> None:
    expected = [chunk.tolist() for chunk in torch.tensor_split(torch.arange(low, low + extent), parts)]
    assert [list(range(*part)) for part in cuts((low, low + extent), parts)] == expected


@given(st.integers(0, 2**80), st.integers(1, 2**40), st.data())
def test_neighbouring_cuts_of_huge_extents_touch(extent: int, parts: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, parts - 1))
    low, high = cut((0, extent), parts, index)
    assert high - low in (extent // parts, -(-extent // parts))
    assert low == 0 if index == 0 else low == cut((0, extent), parts, index - 1)[1]
    assert high == extent if index == parts - 1 else high <= extent


@given(INTERVALS, INTERVALS)
def test_meet_is_intersection(one: Interval, other: Interval) -> None:
    met = meet(one, other)
    assert set(range(*met)) == set(range(*one)) & set(range(*other))
    assert length(met) == len(range(*met))


@given(BOXES, BOXES)
def test_overlap_volume_and_contains(one: Box, other: Box) -> None:
    assert np.array_equal(mask(overlap(one, other)), mask(one) & mask(other))
    assert volume(one) == mask(one).sum()
    assert contains(one, other) == (mask(other) <= mask(one)).all()


@given(BOXES, BOXES)
def test_subtract_leaves_disjoint_boxes_without_the_hole(box: Box, hole: Box) -> None:
    pieces = list(outside(box, hole))
    left = sum((mask(piece) for piece in pieces), np.zeros(shape(FRAME), int))
    assert np.array_equal(left, mask(box) & ~mask(hole) & 1)
    assert all(volume(piece) for piece in pieces)
