"""Planned layers and pooling in a network, with the redistribution of their inputs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch

from synth.runtime.comm.adjoint import with_adjoint
from synth.runtime.comm.exchanges import Exchange, moved
from synth.runtime.comm.layout import Layout, even
from synth.runtime.comm.redistribute import Count, redistribute
from synth.runtime.grid.boxes import Box, Window, cut, shape, source_rows
from synth.runtime.kernels.autocast import entered, lowered
from synth.runtime.layers.distributed_layer import DistributedLayer
from synth.runtime.layers.steps.held import Held
from synth.runtime.layers.steps.step import Step
from synth.runtime.rules.movement import in_order
from synth.runtime.tensor.partition import Partition


class PlannedBoxes(NamedTuple):
    """What every rank owns before and after a pooling, as a network plan says."""

    before: tuple[Box, ...]
    after: tuple[Box, ...]


class PlannedLayer(Step):
    """A planned layer, with the redistributions before and after it.

    shapes: parameter -> its shape in the user's model. A linear layer on more than
        samples and features is planned as a convolution with a kernel of one. Then the
        channels of `source` are the last dimension.

    `placed` redistributes the input to `aligned`, reshapes the channels of a grouped
    layer to (group, channel), drops the rows that no window reads, and redistributes
    the result to the layer's own layout. Where the boxes of that layout are runs of
    channels (`merged_input`), it reshapes the channels last.
    """

    def __init__(
        self,
        module: DistributedLayer,
        source: Layout,
        count: Count,
        shapes: Mapping[str, Sequence[int]],
    ) -> None:
        super().__init__()
        self.module, self.count, self.shapes = module, count, dict(shapes)
        dims = len(source.whole)
        flat = module.kernel_dims > 0 and len(shapes["weight"]) == 2
        self.channels_last = flat and not isinstance(self, PlannedLinearOnMap)
        self.to_first = (0, dims - 1, *range(1, dims - 1))
        self.source = in_order(source, self.to_first) if self.channels_last else source
        program = module.program
        transposed = program.transposed_rows is not None  # it reads every row
        self.windows = () if transposed else tuple(program.windows.values())
        self.grouped = module.grouped
        self.wanted = module.input
        self.merged_input = merged_runs(self.wanted) if self.grouped else None
        no_regrouping = self.merged_input is not None or not self.grouped
        groups = self.wanted.whole[1]
        self.aligned = (
            self.source if no_regrouping else group_aligned(self.source, groups)
        )
        self.inner = module.output
        self.layout = self.inner
        if self.grouped:
            self.joint = channel_runs(self.inner)
            self.layout = _merged(self.joint)
        if self.channels_last:
            self.layout = in_order(self.layout, _inverse(self.to_first))
        moves = self.grouped or self.channels_last or any(self._rows_read(self.source))
        self.straight = not moves and self.source.boxes == self.wanted.boxes

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """This rank's shard of Out, from its shard of In in the layout `source`."""
        return self._made(self.placed(shard))

    def taking(self, given: list[torch.Tensor]) -> torch.Tensor:
        """The same without gradients, with less memory.

        given: the shard alone. It is taken out, and copied to where its halo will be.
        If nobody reads it later, its memory is free while the layer computes.
        """
        with entered(self.autocast):
            shard = self.module.in_room(self.placed(given.pop()))
            try:
                return self._made(shard)
            finally:
                self.module.context.rooms.leave(shard)

    @property
    def is_plain_call(self) -> bool:
        """Whether a call is `forward` alone: no hooks, and no compiler that traces."""
        hooks = self._forward_hooks or self._forward_pre_hooks
        return not (hooks or torch.compiler.is_compiling())

    def placed(self, shard: torch.Tensor) -> torch.Tensor:
        """The words of In that the layer itself takes, from a shard of `source`."""
        shard = lowered(shard)  # before it moves
        if self.straight:
            return shard
        shard = shard.permute(self.to_first) if self.channels_last else shard
        shard = redistribute(shard, self.source, self.aligned, self.count)
        layout = self.aligned
        if self.grouped and self.merged_input is None:
            layout = _with_groups(layout, self.wanted.whole[1])
            shard = shard.reshape(shape(layout.mine))
        shard, layout = self.without_unread_rows(shard, layout)
        own = self.merged_input or self.wanted
        shard = redistribute(shard, layout, own, self.count)
        return shard.reshape(shape(self.wanted.mine))

    def _made(self, shard: torch.Tensor) -> torch.Tensor:
        """This rank's shard of Out, in `layout`."""
        out: torch.Tensor = self.module(shard)
        if self.straight:
            return out
        if self.grouped:
            out = redistribute(out, self.inner, self.joint, self.count)
            out = out.reshape(shape(self.layout.mine))
        return out.permute(_inverse(self.to_first)) if self.channels_last else out

    def prefetch(self, weight: torch.Tensor) -> None:
        """Start to gather Ker for the next `forward`; see `DistributedLayer`."""
        with entered(self.autocast):
            self.module.prefetch(weight)

    def held_tensors(self) -> dict[str, Held]:
        """Weight and bias, with the shapes that they have in the user's layer.

        The bias is replicated over the ranks that own the same channels, and a weight
        over those that own the same box: each of them has a part of its gradient.
        """
        layer, ranks = self.module, self.source.ranks
        outs, dims = layer.output, layer.kernel_dims
        kernels = Layout(tuple(layer.program.ker_shape), layer.ker_boxes, ranks)
        weight = Partition(kernels, self.shapes["weight"])
        found = {"weight": Held(layer, "weight", weight, layer.weight_ranks())}
        if layer.has_bias:
            whole = outs.whole[1 : len(outs.whole) - dims]
            boxes = tuple(map(layer.channels_of, outs.boxes))
            bias = Partition(Layout(whole, boxes, ranks), self.shapes["bias"])
            found["bias"] = Held(layer, "bias", bias, layer.bias_ranks)
        return found

    def reads_back(self, name: str, trained: bool) -> bool:
        """Ker, to make dIn. As torch, a convolution looks at it even without dIn."""
        return name == "weight" and (trained or self.is_convolution)

    def reads_inputs(self, trained: bool) -> bool:
        """In, to make dKer; a convolution looks at it even without dKer."""
        return trained or self.is_convolution

    @property
    def is_convolution(self) -> bool:
        """Whether the user's layer is a convolution, and no linear layer."""
        return len(self.shapes["weight"]) > 2

    def without_unread_rows(
        self, shard: torch.Tensor, layout: Layout
    ) -> tuple[torch.Tensor, Layout]:
        """Drop the rows that no window reads: the layer's In does not count them.

        Those of all dimensions are dropped in one copy.
        """
        if not any(self._rows_read(layout)):
            return shard, layout

        def taken(values: torch.Tensor) -> torch.Tensor:
            return values[self._indices(layout, values.device)].contiguous()

        def spread(gradient: torch.Tensor) -> torch.Tensor:
            whole = gradient.new_zeros(shape(layout.mine))
            whole[self._indices(layout, gradient.device)] = gradient
            return whole

        return with_adjoint(shard, taken, spread), self.read_layout(layout)

    def _indices(self, layout: Layout, device: torch.device) -> tuple[Any, ...]:
        """What takes the rows that windows read out of a shard."""
        read = dict(self._rows_read(layout))
        plain = len(layout.whole) - len(self.windows)
        found: list[list[int]] = []
        for dim, (low, high) in enumerate(layout.mine[plain:], plain):
            rows = read.get(dim, range(low, high))
            found.append([row - low for row in rows if low <= row < high])
        slices = [_as_slice(rows) for rows in found]
        outer = (slice(None),) * plain
        if None not in slices:
            return *outer, *slices
        sizes = torch.eye(len(found), dtype=torch.int64) * -2 + 1  # -1 on the diagonal
        indices = [
            torch.tensor(rows, dtype=torch.int64, device=device) for rows in found
        ]
        pairs = zip(indices, sizes.tolist(), strict=True)
        return *outer, *(rows.reshape(each) for rows, each in pairs)

    def read_layout(self, layout: Layout) -> Layout:
        """The boxes of a layout, in numbers of the rows that windows read."""
        boxes = [list(box) for box in layout.boxes]
        for dim, rows in self._rows_read(layout):
            for box in boxes:
                low, high = (bisect_left(rows, end) for end in box[dim])
                box[dim] = (low, high)
        return layout.with_boxes(layout.whole, map(tuple, boxes))

    def _rows_read(self, layout: Layout) -> Iterator[tuple[int, list[int]]]:
        """(dimension, the rows that windows read), where these are not all."""
        plain = len(layout.whole) - len(self.windows)
        for dim, window in enumerate(self.windows, plain):
            rows = _rows_of(window, layout.whole[dim])
            if rows is not None:
                yield dim, rows

    def exchanges(self) -> list[Exchange]:
        """The input, what the plan of the layer says, and channels of groups."""
        found = moved(self.source, self.aligned)
        layout = self.aligned
        if self.grouped and self.merged_input is None:
            layout = _with_groups(layout, self.wanted.whole[1])
        found += moved(self.read_layout(layout), self.merged_input or self.wanted)
        found += self.module.exchanges()
        if self.grouped:
            found += moved(self.inner, self.joint, 0, "weight", "bias")
        return found


def _as_slice(rows: list[int]) -> slice | None:
    """The slice that takes some rows; None where their steps differ."""
    if len(rows) < 2:
        return slice(rows[0], rows[0] + 1) if rows else slice(0, 0)
    step = rows[1] - rows[0]
    even = rows == list(range(rows[0], rows[-1] + 1, step))
    return slice(rows[0], rows[-1] + 1, step) if even else None


@cache  # every step asks for them, and a list of thousands of rows takes milliseconds
def _rows_of(window: Window, extent: int) -> list[int] | None:
    """The rows of an extent that a window reads; None for all."""
    rows = source_rows((0, window.size), window)
    return None if rows == list(range(extent)) else rows


class PlannedLinearOnMap(PlannedLayer):
    """A linear layer of a feature map, planned as a convolution that covers the map.

    Its output is (samples, features), and its weight is flat in the user's model.
    """

    def __init__(
        self,
        layer: DistributedLayer,
        source: Layout,
        count: Count,
        shapes: Mapping[str, Sequence[int]],
    ) -> None:
        super().__init__(layer, source, count, shapes)
        self.layout = self.inner.with_boxes(
            self.inner.whole[:2], (box[:2] for box in self.inner.boxes)
        )

    def _made(self, shard: torch.Tensor) -> torch.Tensor:
        return super()._made(shard).reshape(shape(self.layout.mine))


# -- channels and groups ---------------------------------------------------------------


def group_aligned(source: Layout, groups: int) -> Layout:
    """`source` if its channels are boxes of (group, channel), else a cut of samples."""
    size = source.whole[1] // groups

    def fits(box: Box) -> bool:
        low, high = box[1]
        whole = low % size == 0 and high % size == 0
        return whole or low // size == (high - 1) // size

    if all(map(fits, source.boxes)):
        return source
    rest = [(0, extent) for extent in source.whole[1:]]
    ranks = source.ranks.size
    samples = [cut((0, source.whole[0]), ranks, rank) for rank in range(ranks)]
    return source.with_boxes(source.whole, ((each, *rest) for each in samples))


def channel_runs(inner: Layout) -> Layout:
    """`inner` if its (group, channel) boxes are runs of channels, else an even one."""
    return inner if _are_channel_runs(inner) else even(inner.whole, inner.ranks)


def merged_runs(layout: Layout) -> Layout | None:
    """One dimension of channels for (group, channel); None if boxes are no runs."""
    return _merged(layout) if _are_channel_runs(layout) else None


def _are_channel_runs(layout: Layout) -> bool:
    """Whether every (group, channel) box is a run of consecutive channels."""
    whole_group = (0, layout.whole[2])
    return all(b[1][1] - b[1][0] <= 1 or b[2] == whole_group for b in layout.boxes)


def _inverse(order: Sequence[int]) -> list[int]:
    """The permutation that undoes another."""
    return [order.index(dim) for dim in range(len(order))]


def _with_groups(layout: Layout, groups: int) -> Layout:
    """Channels as (group, channel of the group), for aligned boxes."""
    size = layout.whole[1] // groups

    def box(one: Box) -> Box:
        low, high = one[1]
        if low // size == (high - 1) // size and high > low:
            first = low // size
            inside = (low - first * size, high - first * size)
            return (one[0], (first, first + 1), inside, *one[2:])
        return (one[0], (low // size, high // size), (0, size), *one[2:])

    whole = (layout.whole[0], groups, size, *layout.whole[2:])
    return layout.with_boxes(whole, map(box, layout.boxes))


def _merged(layout: Layout) -> Layout:
    """One dimension of channels for (group, channel); its boxes are channel runs."""
    whole, size = layout.whole, layout.whole[2]
    merged = (whole[0], whole[1] * size, *whole[3:])
    return layout.with_boxes(merged, (_merged_box(box, size) for box in layout.boxes))


def _merged_box(box: Box, size: int) -> Box:
    """A box of (group, channel of `size`) as a box of channels."""
    (low, high), (first, last) = box[1], box[2]
    run = (low * size + first, max(low, high - 1) * size + last)
    return (box[0], run if high > low else (low * size, low * size), *box[3:])
