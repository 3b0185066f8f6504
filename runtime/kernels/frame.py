"""How a block's rows are passed to torch, which pads both ends alike."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from synth.runtime.comm.ghost_rows import clear_around, padded
from synth.runtime.grid.boxes import (
    REMEMBERED,
    Interval,
    Window,
    input_rows,
    zeros_around,
)


class Frame(NamedTuple):
    """How a block's rows are passed to torch: explicit zeros, torch's own arguments."""

    zeros: list[int]  # as `F.pad` takes them, the last dimension first; often none
    padding: list[int]
    stride: list[int]
    dilation: list[int]


def frame_of(block: dict[str, Interval], windows: dict[str, Window]) -> Frame:
    """How torch is called for a block.

    torch's padding is the same at both ends. Along axes where a block sees different
    numbers of zeros at its two ends, the zeros are explicit.
    """
    return _frame(tuple(block[axis] for axis in windows), tuple(windows.values()))


@lru_cache(REMEMBERED)
def _frame(rows: tuple[Interval, ...], windows: tuple[Window, ...]) -> Frame:
    around = list(map(zeros_around, rows, windows))
    stride = [window.stride for window in windows]
    dilation = [window.dilation for window in windows]
    zeros, padding = [], list[int]()
    for (before, after), step in zip(around, stride, strict=True):
        even = before >= 0 and 0 <= before - after < step
        padding.append(before if even else 0)
        zeros.append((0, 0) if even else (before, after))
    explicit = [n for pair in reversed(zeros) for n in pair]
    return Frame(explicit if any(explicit) else [], padding, stride, dilation)


def explicit_zeros(block: dict[str, Interval], windows: dict[str, Window]) -> list[int]:
    """The zeros of a block that torch's padding cannot add, as `F.pad` takes them.

    A block that gets them once, when its rows are fetched, needs no copy in any pass.
    None for a block that reads no rows.
    """
    zeros = frame_of(block, windows).zeros
    reads = [input_rows(block[axis], window) for axis, window in windows.items()]
    if min(zeros, default=0) < 0 or any(low == high for low, high in reads):
        return []  # negative: rows are cut off
    return zeros


def surrounded(
    values: torch.Tensor,
    block: dict[str, Interval],
    windows: dict[str, Window],
    zeros: list[int],
) -> torch.Tensor:
    """A block's rows with zeros around them.

    It is a copy unless there are no zeros or `values` has them already. The copy is no
    buffer of the pool: that would hold it while all other layers run.
    """
    if not zeros:
        return values
    if min(zeros) < 0:  # rows that nothing reads are cut off
        return F.pad(values, zeros)
    reads = [input_rows(block[axis], window) for axis, window in windows.items()]
    rows = [high - low for low, high in reads]
    if list(values.shape[-len(rows) :]) == padded(rows, zeros):
        return values
    wide = values.new_empty(padded(values.shape, zeros))
    clear_around(wide, zeros).copy_(values)
    return wide


def inside(values: torch.Tensor, zeros: list[int]) -> torch.Tensor:
    """The inverse of `surrounded`: a view, except where rows had been cut off."""
    if any(n < 0 for n in zeros):
        return F.pad(values, [-n for n in zeros])
    for place, (low, high) in enumerate(zip(zeros[::2], zeros[1::2], strict=True)):
        if low or high:
            dim = values.dim() - 1 - place
            values = values.narrow(dim, low, values.shape[dim] - low - high)
    return values
