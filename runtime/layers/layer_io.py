"""What a layer is given and what it gives, as boxes of the ranks.

A convolution is given In and gives Out. A transposed one is planned as the pass
backward-data of a convolution: it is given that one's Out and gives its In, where the
rows that no kernel meets are zero. Ranks beyond the grid own nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from synth.runtime.grid.boxes import Box, Interval, Window, source_rows
from synth.runtime.grid.process_grid import At, coordinates, grid_size


class Side(NamedTuple):
    """One end of a layer."""

    name: str  # "In" or "Out", as the user sees the layer
    whole: tuple[int, ...]
    boxes: tuple[Box, ...]  # by rank

    @property
    def mine(self) -> Box:
        """The box of this rank."""
        return self.boxes[dist.get_rank()]

    def box(self, at: At) -> Box:
        """The box of a rank, where that alone is its coordinate."""
        return self.boxes[at["rank"]]


def by_rank(owned: Callable[[At], Box], grid: dict[str, int]) -> tuple[Box, ...]:
    """The boxes of all ranks; those without a place on the grid own nothing."""
    used, ranks = grid_size(grid), dist.get_world_size()
    boxes = [owned(coordinates(rank, grid)) for rank in range(used)]
    nothing = tuple((0, 0) for _ in boxes[0])
    return tuple(boxes) + (nothing,) * (ranks - used)


def sides(program: Any) -> tuple[Side, Side]:
    """What an emitted layer is given, and what it gives."""
    ins, outs = (
        by_rank(owned, program.GRID) for owned in (program.owned_in, program.owned_out)
    )
    rows: tuple[int, ...] | None = getattr(program, "TRANSPOSED", None)
    if rows is None:
        given = Side("In", tuple(program.IN_SHAPE), ins)
        return given, Side("Out", tuple(program.OUT_SHAPE), outs)
    plain = len(program.IN_SHAPE) - len(rows)
    windows = tuple(program.WINDOWS.values())
    wide = tuple((*box[:plain], *_wide(box[plain:], windows, rows)) for box in ins)
    whole = (*program.IN_SHAPE[:plain], *rows)
    return Side("In", tuple(program.OUT_SHAPE), outs), Side("Out", whole, wide)


def _wide(box: Box, windows: Sequence[Window], rows: Sequence[int]) -> Box:
    """Intervals of rows that kernels meet as intervals of all rows."""

    def end(row: int, window: Window, extent: int) -> int:
        if row in (0, window.size):
            return extent if row else 0
        return source_rows((row, row + 1), window)[0]

    trios = zip(box, windows, rows, strict=True)
    return tuple((end(low, w, n), end(high, w, n)) for (low, high), w, n in trios)


def spread(
    share: torch.Tensor, met: Box, box: Box, windows: Sequence[Window]
) -> torch.Tensor:
    """The rows that kernels meet among all rows of a box, the others zero."""
    plain = len(box) - len(windows)
    for dim, window in enumerate(windows, plain):
        rows: Interval = met[dim]
        low, high = box[dim]
        if high - low == rows[1] - rows[0]:
            continue
        sizes = (*share.shape[:dim], high - low, *share.shape[dim + 1 :])
        index = torch.tensor(source_rows(rows, window), dtype=torch.int64) - low
        index = index.to(share.device)
        share = share.new_zeros(sizes).index_copy(dim, index, share)
    return share
