"""The rows of all boxes of a network, each kept once.

The bounds of boxes along a dimension follow from a few numbers: the extent, the cut of the grid and that of
the shards. Layers of one network share most of them. So rows are computed once for all layers and both their
tensors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from synth.layer.axes import DIMS, LACKS, Axis, Tensor
from synth.layer.interval_arrays import Spans, cut
from synth.layer.nest import Nest
from synth.network.grids.box_rows import FLAT, Array, BoxRows, first_of_kinds
from synth.schedule.shard_cuts import ShardCut, radix

Cut = tuple[int, int]  # parts, and ranks or members between two of them
WHOLE: Cut = (1, 1)
CHANNEL = FLAT.index("channel")


class RowKey(NamedTuple):
    """All that the bounds of a row follow from.

    sizes, cuts, shards: of the dimensions that the row spans: of channels, groups and channels of a group.
    group: the cut along which the members of a group differ, if shards are cut. working: ranks that work.
    """

    sizes: tuple[int, ...]
    cuts: tuple[Cut, ...]
    shards: tuple[Cut, ...]
    group: Cut
    working: int


class RowBank:
    """Rows of boxes by dimension of `FLAT`; `ranks` are those of a row."""

    def __init__(self, ranks: Array) -> None:
        self.ranks = ranks
        self._number: list[dict[RowKey, int]] = [{} for _ in FLAT]
        self._by_bounds: list[dict[bytes, int]] = [{} for _ in FLAT]
        self._rows: list[list[tuple[Array, Array]]] = [[] for _ in FLAT]

    def numbers(
        self, nest: Nest, tensor: Tensor, some: Iterable[tuple[Mapping[Axis, Cut], int, ShardCut]]
    ) -> Array:
        """The rows of the boxes that some grids own of a tensor, by (grid, dimension).

        some: of every grid, the cuts of its axes with more than one process, its size, and the cut of slices
        among the members of a group.
        """
        keys = _keys(nest, tensor, some)
        found = [self._added(at, along) for at, along in enumerate(zip(*keys, strict=True))]
        return np.stack(found, axis=1)

    def _added(self, at: int, keys: Sequence[RowKey]) -> Array:
        """The numbers of rows along dimension `at`, among them new ones."""
        number, by_bounds, rows = self._number[at], self._by_bounds[at], self._rows[at]
        new = [key for key in dict.fromkeys(keys) if key not in number]
        if new:
            lows, highs = _bounds(new, self.ranks)
            for key, low, high in zip(new, lows, highs, strict=True):
                kept = _kept(low, high)
                number[key] = by_bounds.setdefault(_digest(*kept), len(rows))
                if number[key] == len(rows):
                    rows.append(kept)
        return np.array([number[key] for key in keys], np.intp)

    def boxes(self, numbers: Array) -> BoxRows:
        """The boxes whose rows have some numbers, by (grid, dimension)."""
        lows, highs, own = [], [], []
        for rows, column in zip(self._rows, numbers.T.tolist(), strict=True):
            first, row = first_of_kinds(column)
            low, high = _stacked(rows, [column[each] for each in first])
            lows.append(low)
            highs.append(high)
            own.append(row)
        return BoxRows(tuple(lows), tuple(highs), tuple(own))


def _digest(low: Array, high: Array) -> bytes:
    """A key of the bounds of a row; the bounds themselves would take as much memory again."""
    return hashlib.blake2b(low.tobytes() + high.tobytes(), digest_size=16).digest()


def _kept(low: Array, high: Array) -> tuple[Array, Array]:
    """A row in as few bytes as its bounds take."""
    small = low.dtype == np.int32 and int(high.max(initial=0)) < 2**15 and int(low.max(initial=0)) < 2**15
    integer: Any = np.int16 if small else low.dtype
    return low.astype(integer), high.astype(integer)


def _stacked(rows: Sequence[Spans], some: Sequence[int]) -> Spans:
    """The bounds of some rows, by (row, rank), in integers for products."""
    low, high = (np.stack([rows[each][end] for each in some]) for end in (0, 1))
    return (low.astype(np.int32), high.astype(np.int32)) if low.dtype == np.int16 else (low, high)


def _keys(
    nest: Nest, tensor: Tensor, some: Iterable[tuple[Mapping[Axis, Cut], int, ShardCut]]
) -> list[list[RowKey]]:
    """What the rows of some grids follow from, by (grid, dimension); see `RowBank.numbers`."""
    size_of = dict(zip(DIMS[tensor], nest.shapes[tensor], strict=True))
    inner = "c" if tensor == "In" else "k"
    (group_axis,) = LACKS[tensor]
    dims_of: list[tuple[Any, ...]] = [("g", inner) if flat == "channel" else (flat,) for flat in FLAT]
    sizes_of = [tuple(size_of[dim] for dim in dims) for dims in dims_of]
    found = []
    new = tuple.__new__  # thousands of keys: `RowKey(...)` takes twice the time
    for cuts, working, shard_cut in some:
        shards, part = radix(shard_cut), cuts.get
        member, share = part(group_axis, WHOLE), shards.get
        row = list[RowKey]()
        shard: tuple[Cut, ...]
        own: tuple[Cut, ...]
        for at, (dims, sizes) in enumerate(zip(dims_of, sizes_of, strict=True)):
            if at == CHANNEL:
                one, other = dims
                shard, own = (share(one, WHOLE), share(other, WHOLE)), (part(one, WHOLE), part(other, WHOLE))
                cut_shard = one in shards or other in shards
            else:
                (one,) = dims
                shard, own, cut_shard = (share(one, WHOLE),), (part(one, WHOLE),), one in shards
            row.append(new(RowKey, (sizes, own, shard, member if cut_shard else WHOLE, 0 if at else working)))
        found.append(row)
    return found


def _bounds(keys: Sequence[RowKey], ranks: Array) -> Spans:
    """The bounds of rows, by (key, rank)."""
    integer: Any = np.int32 if max(max(key.sizes) for key in keys) < 2**31 else np.int64
    parts, step = _columns([key.group for key in keys])
    member = ranks // step % parts
    spans = []
    for i in range(len(keys[0].sizes)):
        high = np.array([[key.sizes[i]] for key in keys], integer)
        span = np.zeros_like(high), high
        for cuts, index in (
            ([key.cuts[i] for key in keys], ranks),
            ([key.shards[i] for key in keys], member),
        ):
            parts, step = _columns(cuts)
            if parts.max() > 1:
                span = cut(span, parts, index // step % parts)
        spans.append(span)
    low, high = spans[0]
    if len(spans) == 2:
        (first, last), (low, high) = spans
        width = np.array([[key.sizes[1]] for key in keys], np.int64)
        none, one = first == last, last - first == 1
        low = first * width + low
        high = np.where(none, low, np.where(one, first * width + high, last * width))
    low, high = (np.broadcast_to(each, (len(keys), len(ranks))) for each in (low, high))
    if keys[0].working:  # the boxes of idle ranks are empty along b
        high = np.where(ranks >= np.array([[key.working] for key in keys]), low, high)
    narrow = int(high.max(initial=0)) < 2**31
    return (low.astype(np.int32), high.astype(np.int32)) if narrow else (low, high)


def _columns(cuts: Sequence[Cut]) -> tuple[Array, Array]:
    found = np.array(cuts, np.int32)
    return found[:, :1], found[:, 1:]
