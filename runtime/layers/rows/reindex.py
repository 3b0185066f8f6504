"""Steps that move or select rows: padding, slices, shifts, flips, repetitions.

Along each dimension an output row reads one input row, or a constant. The owner of an
input row owns the output rows that have their home there, so that few rows move.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from synth.runtime.comm.exchanges import Exchange, picked
from synth.runtime.comm.layout import Layout
from synth.runtime.comm.precision import sum_dtype
from synth.runtime.comm.redistribute import Count
from synth.runtime.comm.row_sets import RowSets, fetch_row_sets
from synth.runtime.grid.boxes import Box, shape
from synth.runtime.grid.row_maps import (
    CONSTANT,
    RowMap,
    owned_rows,
    read_rows,
    rows_read,
)
from synth.runtime.layers.steps.step import Step


class Reindex(Step):
    """A tensor of which every row is a row of the input, or a constant.

    maps: of every dimension of the input. value: of the rows that read nothing.
    dims: of the result, each the dimension of the input that it is; None for a new one
        of extent 1. Dimensions of which one row remains may be left out.
    """

    def __init__(
        self,
        source: Layout,
        maps: Sequence[RowMap],
        count: Count,
        value: float = 0.0,
        dims: Sequence[int | None] | None = None,
    ) -> None:
        super().__init__()
        self.count, self.value = count, value
        kept = [tuple(map(owned_rows, maps, box)) for box in source.boxes]
        wanted = tuple(tuple(map(rows_read, maps, box)) for box in kept)
        self.sets = RowSets(source, tuple(map(_none_if_empty, wanted)))
        self.moves = any(
            shape(box) != tuple(map(len, rows)) or not _starts(box, rows)
            for box, rows in zip(source.boxes, self.sets.wanted, strict=True)
        )
        whole = [len(each.rows) for each in maps]
        me = source.ranks.me
        self.mine = kept[me]
        self.repeats = False
        self.locals = [
            self._local(each, interval, rows)
            for each, interval, rows in zip(maps, self.mine, wanted[me], strict=True)
        ]
        self.layout = source.with_boxes(whole, kept)
        if dims is not None:
            self.layout = with_dims(self.layout, dims)

    def _local(
        self, row_map: RowMap, interval: tuple[int, int], rows: Sequence[int]
    ) -> tuple[int, list[int] | None, int]:
        """Constant rows before, the fetched rows in order, constant rows after.

        The order is None where the fetched rows are in order.
        """
        read = row_map.rows[slice(*interval)]
        first, last = read_rows(read)
        place = {row: index for index, row in enumerate(rows)}
        order = [place[row] for row in read[first:last] if row != CONSTANT]
        self.repeats = self.repeats or len(order) > len(rows)
        plain = order == list(range(len(rows)))
        return first, None if plain else order, len(read) - last

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """The shard of the result."""
        if self.moves:
            shard = fetch_row_sets(shard, self.sets, self.count)
        dtype = shard.dtype
        if self.repeats and shard.requires_grad and torch.is_grad_enabled():
            shard = shard.to(sum_dtype(dtype))  # its gradients are sums
        if not all(shard.shape):  # nothing is read here
            made = shard.new_full(shape(self.mine), self.value) + shard.sum() * 0
            return made.to(dtype).reshape(shape(self.layout.mine))
        zeros: list[int] = []
        for dim, (before, order, after) in enumerate(self.locals):
            if order is not None:
                at = torch.tensor(order, dtype=torch.int64, device=shard.device)
                shard = shard.index_select(dim, at)
            zeros = [before, after, *zeros]
        if any(zeros):
            shard = functional.pad(shard, zeros, value=self.value)
        return shard.to(dtype).reshape(shape(self.layout.mine))

    def exchanges(self) -> list[Exchange]:
        """The rows that move."""
        return picked(self.sets) if self.moves else []


def _none_if_empty(rows: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """No rows at all where a dimension has none, so that no words are asked for."""
    return rows if all(rows) else ((),) * len(rows)


def _starts(box: Box, rows: Sequence[Sequence[int]]) -> bool:
    return all(not r or r[0] == low for (low, _), r in zip(box, rows, strict=True))


def with_dims(layout: Layout, dims: Sequence[int | None]) -> Layout:
    """A layout with dimensions of extent 1 left out or added, as `Reindex` has them.

    A box without words stays one.
    """
    boxes = []
    for box in layout.boxes:
        made = [(0, 1) if dim is None else box[dim] for dim in dims]
        if not all(shape(box)):
            made = [(low, low) for low, _ in made]
        boxes.append(tuple(made))
    whole = [1 if dim is None else layout.whole[dim] for dim in dims]
    return layout.with_boxes(whole, boxes)
