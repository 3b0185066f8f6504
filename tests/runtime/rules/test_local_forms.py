"""Boxes that fit a reshape or a function along dimensions, and how others are cut anew."""

from __future__ import annotations

import math
from itertools import pairwise, product

import torch
from hypothesis import given
from hypothesis import strategies as st

from synth.runtime.comm.layout import Layout, disjoint
from synth.runtime.grid.boxes import Box, cut, shape, volume
from synth.runtime.grid.ranks import Ranks
from synth.runtime.rules.local_forms import LocalForm, fitting, reshape_form, whole_along


def numbered(sizes: tuple[int, ...], box: Box) -> torch.Tensor:
    """The places of the words of a box in a tensor."""
    places = torch.arange(math.prod(sizes)).reshape(sizes)
    return places[tuple(slice(*each) for each in box)]


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes of as many words: factors in one order, grouped in two ways."""
    factors = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))

    def grouped() -> tuple[int, ...]:
        ends = sorted(draw(st.lists(st.integers(0, len(factors)), max_size=4)))
        bounds = [0, *ends, len(factors)]
        return tuple(math.prod(factors[a:b]) for a, b in pairwise(bounds))

    return grouped(), grouped()


def layouts(draw: st.DrawFn, sizes: tuple[int, ...]) -> Layout:
    """Boxes of a grid of at most six ranks."""
    parts = [1] * len(sizes)
    for _ in range(draw(st.integers(0, 2))):
        parts[draw(st.integers(0, len(sizes) - 1))] *= draw(st.sampled_from((2, 3)))
    if math.prod(parts) > 6:
        parts = [1] * len(sizes)
    boxes = [
        tuple(cut((0, n), p, i) for n, p, i in zip(sizes, parts, at, strict=True))
        for at in product(*map(range, parts))
    ]
    return Layout(sizes, tuple(boxes), Ranks(tuple(range(len(boxes))), 0))


def assert_cut_anew(source: Layout, form: LocalForm) -> list[Box]:
    """The layout that a call wants has every word once, and its boxes fit. Returns those of the result."""
    wanted = fitting(source, form)
    assert disjoint(wanted.boxes)
    assert sum(map(volume, wanted.boxes)) == math.prod(source.whole)
    made = [form.regroup(box) for box in wanted.boxes if all(shape(box))]
    fits = [each for each in made if each is not None]
    assert len(fits) == len(made)
    assert sum(map(volume, fits)) == math.prod(form.out)
    return fits


@given(reshapes(), st.data())
def test_boxes_of_a_reshape_have_the_same_words(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], data: st.DataObject
) -> None:
    before, after = shapes
    form, source = reshape_form(before, after), data.draw(st.composite(layouts)(before))
    for box in (*source.boxes, *fitting(source, form).boxes):
        made = form.regroup(box) if all(shape(box)) else None
        if made is not None:
            assert torch.equal(numbered(before, box).flatten(), numbered(after, made).flatten())
    assert_cut_anew(source, form)


def test_what_fits_is_not_cut_anew() -> None:
    """A map's positions may be joined where samples are cut, and split at whole windows."""
    ranks = Ranks((0, 1), 0)
    samples = Layout((4, 6, 8), (((0, 2), (0, 6), (0, 8)), ((2, 4), (0, 6), (0, 8))), ranks)
    assert fitting(samples, reshape_form((4, 6, 8), (4, 48))) is samples
    rows = Layout((1, 8, 6), (((0, 1), (0, 4), (0, 6)), ((0, 1), (4, 8), (0, 6))), ranks)
    assert fitting(rows, reshape_form((1, 8, 6), (1, 2, 4, 6))) is rows
    assert fitting(rows, reshape_form((1, 8, 6), (1, 48))) is rows
    assert fitting(rows, whole_along((1, 8, 6), [2], (1, 8), [0, 1])) is rows
    odd = rows.with_boxes((1, 8, 6), (((0, 1), (0, 3), (0, 6)), ((0, 1), (3, 8), (0, 6))))
    assert fitting(odd, reshape_form((1, 8, 6), (1, 2, 4, 6))).boxes == rows.boxes
    assert fitting(rows, whole_along((1, 8, 6), [1], (1, 8, 6), [0, 1, 2])).boxes == (
        ((0, 1), (0, 8), (0, 3)),
        ((0, 1), (0, 8), (3, 6)),
    )


def test_boxes_that_have_a_shape_are_reshaped() -> None:
    def reshaped(box: Box, before: tuple[int, ...], after: tuple[int, ...]) -> Box | None:
        return reshape_form(before, after).regroup(box)

    assert reshaped(((2, 4), (0, 3)), (4, 3), (12,)) == ((6, 12),)
    assert reshaped(((6, 12),), (12,), (4, 3)) == ((2, 4), (0, 3))
    assert reshaped(((0, 2), (0, 3), (1, 2)), (2, 3, 4), (2, 12)) is None
    assert reshaped(((1, 2), (0, 12)), (2, 12), (2, 3, 4)) == ((1, 2), (0, 3), (0, 4))
