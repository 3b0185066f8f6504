"""What a network does between its planned layers, on shares: pooling, sums, reshaping.

Each step is made for the layouts of its inputs and tells that of its output.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from runtime.blocks import (
    Box,
    Window,
    cut,
    reach,
    shape,
    source_rows,
    volume,
    zeros_around,
)
from runtime.buckets import Shared
from runtime.layout import (
    Count,
    Layout,
    SumBack,
    apart,
    collect,
    dealt,
    even,
    everywhere,
    move,
)
from runtime.mesh import coordinates
from runtime.module import DistributedLayer


class Step(nn.Module):
    """A part of a network: shares in, a share of `layout` out."""

    layout: Layout


class Local(Step):
    """Something done to every word by itself; other operands come to the first."""

    def __init__(
        self, call: Callable[..., Any], layouts: Sequence[Layout], count: Count
    ) -> None:
        super().__init__()
        self.call, self.layouts, self.count = call, layouts, count
        self.layout = layouts[0]

    def forward(self, *shares: torch.Tensor) -> torch.Tensor:
        """The share of the result."""
        pairs = zip(shares, self.layouts, strict=True)
        here = [move(share, lies, self.layout, self.count) for share, lies in pairs]
        result: torch.Tensor = self.call(*here)
        return result


class Inside(Step):
    """A module that acts on shares where they lie."""

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        super().__init__()
        self.module, self.layout = module, layout

    def forward(self, share: torch.Tensor) -> torch.Tensor:
        """The share of the result."""
        result: torch.Tensor = self.module(share)
        return result


class Planned(Step):
    """A planned layer, with the moves into its ownership.

    groups: how many the dense channels are seen as; 1 for all but grouped convolutions.
    """

    def __init__(self, module: DistributedLayer, source: Layout, count: Count) -> None:
        super().__init__()
        self.module, self.count, self.source = module, count, source
        program = module.program
        self.windows = tuple(getattr(program, "WINDOWS", {}).values())
        self.grouped = len(program.KER_SHAPE) == module.kernel_dims + 3
        ranks = range(dist.get_world_size())
        ats = [coordinates(rank, program.GRID) for rank in ranks]
        self.wanted = Layout(
            tuple(program.IN_SHAPE), tuple(program.owned_in(at) for at in ats)
        )
        self.flat = self._flat() if self.grouped else self.wanted
        self.aligned = source if self.flat else split(source, program.IN_SHAPE[1])
        whole = program.OUT_SHAPE
        self.inner = Layout(tuple(whole), tuple(program.owned_out(at) for at in ats))
        self.layout = self.inner
        if self.grouped:
            self.joint = joined(self.inner)
            self.layout = Layout(
                (whole[0], whole[1] * whole[2], *whole[3:]),
                tuple(_join(box, whole[2]) for box in self.joint.boxes),
            )

    def forward(self, share: torch.Tensor) -> torch.Tensor:
        """This rank's share of Out, from the share of In as it lay before."""
        if self.flat:
            share, lies = self.rows_read(share, self.source)
            share = move(share, lies, self.flat, self.count)
            share = share.reshape(shape(self.wanted.mine))
        else:
            share = move(share, self.source, self.aligned, self.count)
            lies = _split_boxes(self.aligned, self.module.program.IN_SHAPE[1])
            share, lies = self.rows_read(share.reshape(shape(lies.mine)), lies)
            share = move(share, lies, self.wanted, self.count)
        out: torch.Tensor = self.module(share)
        if self.grouped:
            out = move(out, self.inner, self.joint, self.count)
            out = out.reshape(shape(self.layout.mine))
        return out

    def _flat(self) -> Layout | None:
        """Where In is wanted, if (group, channel) are runs of channels everywhere."""
        whole, boxes = self.wanted.whole, self.wanted.boxes
        if not all(b[1][1] - b[1][0] <= 1 or b[2] == (0, whole[2]) for b in boxes):
            return None
        flat = (whole[0], whole[1] * whole[2], *whole[3:])
        return Layout(flat, tuple(_join(box, whole[2]) for box in boxes))

    def rows_read(
        self, share: torch.Tensor, lies: Layout
    ) -> tuple[torch.Tensor, Layout]:
        """Leave out the rows that no kernel reads: In does not count them."""
        boxes = [list(box) for box in lies.boxes]
        plain = len(lies.whole) - len(self.windows)
        for dim, window in enumerate(self.windows, plain):
            rows = source_rows((0, window.size), window)
            if rows == list(range(lies.whole[dim])):
                continue
            low, high = lies.mine[dim]
            mine = [row - low for row in rows if low <= row < high]
            index = torch.tensor(mine, dtype=torch.int64, device=share.device)
            share = share.index_select(dim, index)
            for box in boxes:
                low, high = (sum(row < end for row in rows) for end in box[dim])
                box[dim] = (low, high)
        return share, Layout(lies.whole, tuple(map(tuple, boxes)))


def _split_boxes(lies: Layout, groups: int) -> Layout:
    """Channels as (group, channel of the group), where boxes are so aligned."""
    size = lies.whole[1] // groups

    def box(one: Box) -> Box:
        low, high = one[1]
        if low // size == (high - 1) // size and high > low:
            first = low // size
            inside = (low - first * size, high - first * size)
            return (one[0], (first, first + 1), inside, *one[2:])
        return (one[0], (low // size, high // size), (0, size), *one[2:])

    whole = (lies.whole[0], groups, size, *lies.whole[2:])
    return Layout(whole, tuple(map(box, lies.boxes)))


def split(source: Layout, groups: int) -> Layout:
    """The same layout if channels are boxes of (group, channel), else cut samples."""
    size = source.whole[1] // groups

    def fits(box: Box) -> bool:
        low, high = box[1]
        whole = low % size == 0 and high % size == 0
        return whole or low // size == (high - 1) // size

    if all(map(fits, source.boxes)):
        return source
    rest = [(0, extent) for extent in source.whole[1:]]
    ranks = dist.get_world_size()
    samples = [cut((0, source.whole[0]), ranks, rank) for rank in range(ranks)]
    return Layout(source.whole, tuple((low_high, *rest) for low_high in samples))


def joined(inner: Layout) -> Layout:
    """The same layout if (group, channel) are runs of channels, else an even one."""
    size = inner.whole[2]
    if all(b[1][1] - b[1][0] <= 1 or b[2] == (0, size) for b in inner.boxes):
        return inner
    return even(inner.whole)


def _join(box: Box, size: int) -> Box:
    (low, high), (first, last) = box[1], box[2]
    run = (low * size + first, max(low, high - 1) * size + last)
    return (box[0], run if high > low else (low * size, low * size), *box[3:])


class Pool(Step):
    """Maximum or average over windows, with the rows that neighbours own."""

    def __init__(
        self,
        source: Layout,
        windows: Sequence[Window],
        out: Sequence[int],
        count: Count,
        average: bool,
        padded: bool = True,
        after: Sequence[Box] | None = None,
    ) -> None:
        super().__init__()
        self.source, self.windows, self.count = source, tuple(windows), count
        self.average, self.padded = average, padded
        boxes = list(after or (self._near(box, out) for box in source.boxes))
        wanted = [
            (*box[:2], *(reach(r, w) for r, w in zip(box[2:], windows, strict=True)))
            for box in boxes
        ]
        self.layout = Layout((*source.whole[:2], *out), tuple(boxes))
        self.wanted = Layout(source.whole, tuple(wanted))

    def _near(self, box: Box, out: Sequence[int]) -> Box:
        """The part of the output that lies where a box of the input does."""
        rows = [
            (-(-low * n // window.size), -(-high * n // window.size))
            for (low, high), n, window in zip(box[2:], out, self.windows, strict=True)
        ]
        return (*box[:2], *rows)

    def forward(self, share: torch.Tensor) -> torch.Tensor:
        """The share of the pooled."""
        share = move(share, self.source, self.wanted, self.count)
        rows = self.layout.mine[2:]
        if volume(self.layout.mine) == 0:
            return share.new_zeros(shape(self.layout.mine)) + share.sum() * 0
        around: list[int] = []
        for interval, window in zip(rows, self.windows, strict=True):
            around = [*zeros_around(interval, window), *around]
        sizes = [w.kernel for w in self.windows], [w.stride for w in self.windows]
        dims = len(self.windows) - 1
        if not self.average:
            most = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)
            full = functional.pad(share, around, value=-math.inf)
            dilation = [w.dilation for w in self.windows]
            return most[dims](full, *sizes, 0, dilation)
        mean: Any = (
            functional.avg_pool1d,
            functional.avg_pool2d,
            functional.avg_pool3d,
        )[dims]
        result: torch.Tensor = mean(functional.pad(share, around), *sizes)
        if not self.padded:
            ones = functional.pad(torch.ones_like(share), around)
            result = result / mean(ones, *sizes)
        return result


class GlobalPool(Step):
    """The mean over all positions of a channel: partial sums to one owner."""

    def __init__(self, source: Layout, keep: bool, count: Count) -> None:
        super().__init__()
        self.source, self.keep, self.count = source, keep, count
        flat = [box[:2] for box in source.boxes]
        self.lies = source if apart(flat) else even(source.whole)
        self.held = Layout(source.whole[:2], tuple(box[:2] for box in self.lies.boxes))
        self.flat = dealt(self.held)
        ones = len(source.whole) - 2 if keep else 0
        self.layout = Layout(
            (*source.whole[:2], *[1] * ones),
            tuple((*box, *[(0, 1)] * ones) for box in self.flat.boxes),
        )

    def forward(self, share: torch.Tensor) -> torch.Tensor:
        """The means of the own samples and channels."""
        share = move(share, self.source, self.lies, self.count)
        sums = share.flatten(2).sum(2) / math.prod(self.source.whole[2:])
        means = collect(sums, self.held, self.flat, self.count)
        return means.reshape(shape(self.layout.mine))


class Flatten(Step):
    """(b, c, *spatial) as (b, c·spatial), once no rank holds a part of a position's."""

    def __init__(self, source: Layout, count: Count) -> None:
        super().__init__()
        self.source, self.count = source, count
        frame = tuple((0, extent) for extent in source.whole[2:])
        straight = all(box[2:] == frame for box in source.boxes)
        self.lies = source if straight else even(source.whole)
        size = math.prod(source.whole[2:])
        self.layout = Layout(
            (source.whole[0], source.whole[1] * size),
            tuple(
                (b[0], (b[1][0] * size, b[1][1] * size)) if len(b) > 1 else b
                for b in self.lies.boxes
            ),
        )

    def forward(self, share: torch.Tensor) -> torch.Tensor:
        """The share of the flat."""
        share = move(share, self.source, self.lies, self.count)
        return share.reshape(shape(self.layout.mine))


class Gathered(Step):
    """Something that every rank does to the whole, keeping a part of the result.

    For what cannot be cut. Gradients of its parameters are summed over the ranks.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        layouts: Sequence[Layout],
        out: Sequence[int],
        count: Count,
        module: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.call, self.layouts, self.count = call, layouts, count
        self.module = copy.deepcopy(module)  # the user's stays as it is
        self.sums_gradients = True
        self.layout = even(out)

    def hand_over(self) -> list[Shared]:
        """The parameters whose gradients the caller sums from now on; see `Buckets`."""
        self.sums_gradients = False
        held = () if self.module is None else self.module.parameters()
        everyone = tuple(range(dist.get_world_size()))
        return [Shared(each, everyone, each.numel()) for each in held]

    def forward(self, *shares: torch.Tensor) -> torch.Tensor:
        """The own part of what the whole gives."""
        pairs = zip(shares, self.layouts, strict=True)
        whole = [move(s, lies, everywhere(lies.whole), self.count) for s, lies in pairs]
        if self.module is None:
            result = self.call(*whole)
        elif not self.sums_gradients:
            result = self.module(*whole)
        else:
            held = dict(self.module.named_parameters())
            summed = {
                name: SumBack.apply(values, None)  # type: ignore[no-untyped-call]
                for name, values in held.items()
            }
            result = torch.func.functional_call(self.module, summed, tuple(whole))
        low_high = tuple(slice(*interval) for interval in self.layout.mine)
        part: torch.Tensor = result[low_high].contiguous()
        return part
