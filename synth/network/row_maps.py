"""Nodes that move rows: padding, slices, shifts. Kind `reindex` of a network.

Which input row every output row reads, and who owns it, are rules of the ranks, so their module has them.
"""

from __future__ import annotations

from dataclasses import dataclass

from synth.runtime.grid.row_maps import CONSTANT, RowMap, padded_rows

__all__ = ["CONSTANT", "Reindexing", "RowMap", "padded_rows"]


@dataclass(frozen=True)
class Reindexing:
    """A node that moves rows: its name, its map of every dimension of the input, and its shape.

    dims: of the result, each the dimension of the input that it is; () where they are the same.
    """

    name: str
    maps: tuple[RowMap, ...]
    shape: tuple[int, ...]
    dims: tuple[int, ...] = ()
