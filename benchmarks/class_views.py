"""Words that move between layers whose tensors are cut along different residue classes.

A view of a tensor has q classes along each spatial axis: row i is row i // q of class i mod q, and classes
count as samples (`Nest.by_classes`). Of a view, every rank owns a box. So a layer in a view is an ordinary
layer, and two layers in one view are joined as any two layers. Between two views, the words that a rank
keeps are the user's words that lie in both of its boxes.

`common_words` counts them in cells. Along an axis with Q = lcm of both counts, user's rows are y·Q + c. Boxes
of both views begin and end at few values of y and of c. All rows between two such values are in the same
boxes. So one of them stands for all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synth.layer.axes import SPATIAL
from synth.layer.interval_arrays import Spans
from synth.layer.nest import Nest
from synth.layer.residue_classes import Classes

Array = NDArray[Any]
View = tuple[int, int, int]  # classes along d, h and w
PLAIN: View = (1, 1, 1)
CHANNEL, FIRST_SPATIAL = 1, 2  # positions in `owned_boxes.FLAT`


def viewed(nest: Nest, view: View) -> Nest | None:
    """A nest in a view; None where it has none without filler, or other rows of In than of Out.

    A kernel of one along an axis is a dilation of any size.
    """
    classes, windows = list[tuple[Any, int]](), dict(nest.windows)
    for axis, count in zip(SPATIAL, view, strict=True):
        window = windows[axis]
        if count == 1:
            continue
        if window.kernel == 1:
            window = windows[axis] = replace(window, dilation=count)
        rest = (window.dilation % count, window.padding % count, window.out % count)
        if any(rest) or window.stride > 1 or window.step > 1 or window.size != window.out:
            return None
        classes.append((axis, count))
    d, h, w = (windows[axis] for axis in SPATIAL)
    found: Classes = tuple(classes)
    return replace(nest, d=d, h=h, w=w).by_classes(found)


def moved_between(
    source: Spans, target: Spans, views: tuple[View, View], extents: Sequence[int], back: bool
) -> Array:
    """Words that the most-receiving rank receives, by (source option, target option).

    source, target: (lows, highs) of boxes as `OwnedBoxes.flat` gives them, each in its view.
    extents: samples and user's rows (n, d, h, w). back: whether to add the words of the gradient.
    """
    places, weights = _cells(source, target, views, extents)
    have, want = (_inside(*each, places) for each in zip((source, target), views, strict=True))
    kept = np.empty((have.shape[0], want.shape[0], have.shape[1]), dtype=np.int64)
    for rank in range(have.shape[1]):
        kept[:, :, rank] = (have[:, rank] * weights) @ want[:, rank].T.astype(np.int64)
    kept *= _common_channels(source, target)
    owned, wanted = (_words(*each, weights) for each in ((source, have), (target, want)))
    there: Array = (wanted[None] - kept).max(axis=-1)
    return there + (owned[:, None] - kept).max(axis=-1) if back else there


def _common_channels(source: Spans, target: Spans) -> Array:
    (low, high), (first, last) = ((each[0][CHANNEL], each[1][CHANNEL]) for each in (source, target))
    common = np.minimum(high[:, None], last[None]) - np.maximum(low[:, None], first[None])
    return np.maximum(common, 0)


def _words(boxes: Spans, inside: Array, weights: Array) -> Array:
    channels = np.maximum(boxes[1][CHANNEL] - boxes[0][CHANNEL], 0)
    words: Array = (inside @ weights) * channels
    return words


# -- cells ------------------------------------------------------------------------------------------------


def _cells(
    source: Spans, target: Spans, views: tuple[View, View], extents: Sequence[int]
) -> tuple[tuple[Array, ...], Array]:
    """(samples and user's rows (n, d, h, w) of one place per cell, places of each cell)."""
    cuts = [_sample_cuts(boxes, view) for boxes, view in zip((source, target), views, strict=True)]
    samples = np.array(sorted({0, extents[0], *(n for each in cuts for n in each[0] if n < extents[0])}))
    axes = [(samples[:-1], np.diff(samples))]
    for axis in range(3):
        sides = [
            (view[axis], np.unique(np.stack(boxes)[:, FIRST_SPATIAL + axis]), each[1 + axis])
            for view, boxes, each in zip(views, (source, target), cuts, strict=True)
        ]
        axes.append(_cells_along(sides, extents[1 + axis]))
    grids = np.meshgrid(*(rows for rows, _ in axes), indexing="ij")
    weights = np.ones(1, dtype=np.int64)
    for _, each in axes:
        weights = np.multiply.outer(weights, each)
    return tuple(each.ravel() for each in grids), weights.ravel()


def _sample_cuts(boxes: Spans, view: View) -> tuple[set[int], set[int], set[int], set[int]]:
    """The samples, and the classes along d, h and w, at which some box may begin or end.

    Samples of a view are the digits (sample, class of d, of h, of w). A cut inside of a digit ends this digit
    before it and after it.
    """
    place, found = np.unique(np.stack(boxes)[:, 0]), list[set[int]]()
    for axis, count in reversed(list(enumerate(view))):
        last = set[int]((place % count).tolist())
        found.append(last if axis == 2 else last | {each + 1 for each in last})
        place = place // count
    samples = set[int](place.tolist())
    return samples | {each + 1 for each in samples}, found[2], found[1], found[0]


def _cells_along(sides: Sequence[tuple[int, Array, set[int]]], size: int) -> tuple[Array, Array]:
    """(a row of each cell, rows of each cell) along one axis.

    sides: of both views (number of classes, rows of a class where boxes begin or end, such classes).
    """
    common = math.lcm(*(count for count, _, _ in sides))
    if size % common:
        raise ValueError(f"{size} rows are not the same number in all of {common} classes")
    steps, classes = {0, size // common}, {0, common}
    for count, rows, digits in sides:
        for row in rows.tolist():
            step, rest = divmod(row, common // count)
            steps.add(step)
            if rest:
                steps.add(step + 1)
                classes.add(rest * count)
        classes |= {each * count + digit for each in range(common // count) for digit in digits}
    low = np.array(sorted(each for each in steps if each <= size // common))
    first = np.array(sorted(each for each in classes if each <= common))
    places = np.add.outer(low[:-1] * common, first[:-1])
    return places.ravel(), np.multiply.outer(np.diff(low), np.diff(first)).ravel()


def _inside(boxes: Spans, view: View, places: tuple[Array, ...]) -> Array:
    """(option, rank, place): whether a rank's box in a view has a place of the user's tensor."""
    sample, *rows = places
    for row, count in zip(rows, view, strict=True):
        sample = sample * count + row % count
    inner = [row // count for row, count in zip(rows, view, strict=True)]
    found = np.ones((*boxes[0].shape[1:], len(sample)), dtype=bool)
    for at, where in ((0, sample), *enumerate(inner, FIRST_SPATIAL)):
        low, high = (each[at][..., None] for each in boxes)
        found &= (low <= where) & (where < high)
    return found
