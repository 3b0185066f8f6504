"""Nodes that move rows: padding, slices, shifts. Kind `reindex` of a network.

Which input row every output row reads, and who owns it, are rules of the ranks, so their module has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from synth.runtime.grid.row_maps import CONSTANT, RowMap, padded_rows

__all__ = ["CONSTANT", "Reindexing", "RowMap", "joined_rows", "joined_shape", "padded_rows"]


@dataclass(frozen=True)
class Reindexing:
    """A node that moves rows: its name, its map of every dimension of the input, and its shape.

    dims: of the result, each the dimension of the input that it is; () where they are the same.
    """

    name: str
    maps: tuple[RowMap, ...]
    shape: tuple[int, ...]
    dims: tuple[int, ...] = ()


def joined_rows(sizes: Sequence[int]) -> tuple[RowMap, ...]:
    """The rows of every part of a concatenation, between rows that read nothing of it."""
    total, made, start = sum(sizes), list[RowMap](), 0
    for size in sizes:
        rows = [*[CONSTANT] * start, *range(size), *[CONSTANT] * (total - start - size)]
        made.append(RowMap(size, rows))
        start += size
    return tuple(made)


def joined_shape(shapes: Sequence[tuple[int, ...]], dim: int) -> tuple[int, ...] | None:
    """The shape of a concatenation along a dimension; None where the others differ."""
    if len({(*each[:dim], *each[dim + 1 :]) for each in shapes}) > 1 or dim >= len(shapes[0]):
        return None
    return (*shapes[0][:dim], sum(each[dim] for each in shapes), *shapes[0][dim + 1 :])
