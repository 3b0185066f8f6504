"""Results of a loop over rows that do not depend on each other, put together.

A model computes something of each row, or block of rows, of some tensors, and stacks
the results. Ranks compute the rows that they have, and nothing is read across rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from synth.runtime.rules.row_calls import MovedRows


class RowRead(NamedTuple):
    """What is read of a tensor for each row of the result.

    dim, size: the block of so many rows of a dimension that belongs to a row.
    """

    dim: int
    size: int


class MappedRows:
    """A function of rows, called for each row of the result.

    body: from the blocks of `reads`, then from tensors that are whole, to a part of the
    result. reads: of the first arguments. dim: along which parts are put together.
    new: whether that is a new dimension, so that a part has one row; else size rows.
    may_refuse: whether torch may refuse a part by its words.
    """

    __name__ = "mapped_rows"

    def __init__(
        self,
        body: Callable[..., torch.Tensor],
        reads: Sequence[RowRead],
        dim: int,
        new: bool,
        may_refuse: bool = False,
    ) -> None:
        self.body, self.reads, self.dim, self.new = body, tuple(reads), dim, new
        self.may_refuse = may_refuse

    def __call__(self, *given: torch.Tensor) -> torch.Tensor:
        """The parts of all rows that are given."""
        blocks, rest = given[: len(self.reads)], given[len(self.reads) :]
        first = self.reads[0]
        parts = [
            self.body(
                *(_block(b, r, row) for b, r in zip(blocks, self.reads, strict=True)),
                *rest,
            )
            for row in range(blocks[0].shape[first.dim] // first.size)
        ]
        return torch.stack(parts, self.dim) if self.new else torch.cat(parts, self.dim)


def _block(values: torch.Tensor, read: RowRead, row: int) -> torch.Tensor:
    return values.narrow(read.dim, row * read.size, read.size)


def picked_rows(values: torch.Tensor, moved: MovedRows) -> torch.Tensor:
    """What a call that selects rows makes of a tensor."""
    for dim, each in enumerate(moved.maps):
        if each.plain:
            continue
        rows: Any = each.rows
        if isinstance(rows, range) and rows.step > 0:
            index = [slice(None)] * dim + [slice(rows.start, rows.stop, rows.step)]
            values = values[tuple(index)]
        else:
            at = torch.tensor(list(rows), dtype=torch.int64, device=values.device)
            values = values.index_select(dim, at)
    return values.reshape(moved.shape)
