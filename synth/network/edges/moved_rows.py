"""Boxes and words of what lies between two planned layers: padding, slices, shifts, pooling, shuffles.

The owner of an input row owns the output rows whose home it is, so boxes of the result follow from those of
the input. A rank receives the rows that its box of the result reads and that it does not own.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from synth.layer.interval_arrays import Spans
from synth.network.graph import Moved, Path
from synth.network.grids.box_rows import FLAT, Array
from synth.network.reductions import Reduction, owned_boxes, reduction_words
from synth.network.row_maps import CONSTANT, Reindexing, RowMap
from synth.network.shuffles import Shuffle, boxes_of_shuffle, shuffle_words


def boxes_after(boxes: Spans, path: Path, procs: int) -> Spans:
    """The boxes of a value after what lies between, as `OwnedBoxes.flat` gives those before it."""
    for each in path:
        match each:
            case Reduction():
                boxes = owned_boxes(boxes, each, procs)
            case Shuffle():
                boxes = boxes_of_shuffle(boxes, each)
            case Reindexing():
                boxes = _reindexed(boxes, each)
    return boxes


def moved_rows_words(boxes: Spans, last: Moved, procs: int) -> tuple[Array, Array]:
    """Words that the most-receiving rank receives for the last part of a path, there and back; per option."""
    if isinstance(last, Reduction):
        return reduction_words(boxes, last, procs)
    if isinstance(last, Shuffle):
        return shuffle_words(boxes, last)
    after = _kept(boxes, last)
    want, have, back = (np.ones(boxes[0].shape[1:], dtype=np.int64) for _ in range(3))
    own = have.copy()
    for at in range(len(FLAT)):
        pair, row_map = (boxes[0][at], boxes[1][at]), _map_at(last, at)
        size = pair[1] - pair[0]
        own = own * size
        if row_map is None or row_map.plain:
            want, have, back = want * size, have * size, back * size
            continue
        out = after[0][at], after[1][at]
        want = want * _by_kind(lambda low, high, m=row_map: len(_read(m, low, high)), *out)
        have = have * _by_kind(lambda *b, m=row_map: _common(m, *b), *out, *pair)
        back = back * _returned(row_map, out, pair)
    have, back = np.where(want == 0, 0, have), np.where(own == 0, 0, back)
    return (want - have).max(axis=1), (back - have).max(axis=1)


def _reindexed(boxes: Spans, each: Reindexing) -> Spans:
    low, high = (bound.copy() for bound in _kept(boxes, each))
    if not each.dims:
        return low, high
    empty = (high <= low).any(axis=0)
    before, after = _places(len(each.maps)), _places(len(each.dims))
    lows, highs = np.zeros_like(low), np.ones_like(high)
    for place, dim in zip(after, each.dims, strict=True):
        if dim >= 0:
            lows[place], highs[place] = low[before[dim]], high[before[dim]]
    highs[0] = np.where(empty, lows[0], highs[0])
    return lows, highs


def _kept(boxes: Spans, each: Reindexing) -> Spans:
    """The output rows that the owner of a box owns, with all dimensions of the input."""
    low, high = (bound.copy() for bound in boxes)
    for at in range(len(FLAT)):
        row_map = _map_at(each, at)
        if row_map is None or row_map.plain:
            continue
        home = np.array(row_map.home)
        falls = len(home) > 1 and home[0] > home[-1]
        rising = home[::-1] if falls else home
        first, last = (np.searchsorted(rising, bound[at]) for bound in boxes)
        low[at], high[at] = (len(home) - last, len(home) - first) if falls else (first, last)
    return low, high


def _places(dims: int) -> list[int]:
    """Position in `FLAT` of every dimension of a value."""
    return [0, 1, *range(len(FLAT) + 2 - dims, len(FLAT))]


def _map_at(each: Reindexing, at: int) -> RowMap | None:
    places = _places(len(each.maps))
    return each.maps[places.index(at)] if at in places else None


def _read(row_map: RowMap, low: int, high: int) -> set[int]:
    return set(row_map.rows[low:high]) - {CONSTANT}


def _common(row_map: RowMap, low: int, high: int, first: int, last: int) -> int:
    return sum(first <= row < last for row in _read(row_map, low, high))


def _returned(row_map: RowMap, out: Spans, own: Spans) -> Array:
    """Owned rows, each once for every block of the result that reads it; blocks are those of one option."""
    counts = np.zeros(own[0].shape, dtype=np.int64)
    for option in range(len(own[0])):
        blocks = {(int(a), int(b)) for a, b in zip(out[0][option], out[1][option], strict=True) if b > a}
        readers = np.zeros(row_map.size + 1, dtype=np.int64)
        for block in blocks:
            readers[[row + 1 for row in _read(row_map, *block)]] += 1
        below = np.cumsum(readers)
        counts[option] = below[own[1][option]] - below[own[0][option]]
    return counts


def _by_kind(count: Callable[..., int], *bounds: Array) -> Array:
    """A number for every (option, rank), computed once for equal bounds."""
    stacked = np.stack(np.broadcast_arrays(*bounds)).reshape(len(bounds), -1)
    kinds, which = np.unique(stacked, axis=1, return_inverse=True)
    numbers = np.array([count(*map(int, kind)) for kind in kinds.T], dtype=np.int64)
    result: Array = numbers[which.reshape(-1)].reshape(np.broadcast_shapes(*(b.shape for b in bounds)))
    return result
