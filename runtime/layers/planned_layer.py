"""A planned layer in a network, with the moves into its ownership."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

from synth.runtime.comm.redistribute import Count, Layout, even, move
from synth.runtime.grid.boxes import Box, cut, shape, source_rows
from synth.runtime.layers.distributed_layer import DistributedLayer
from synth.runtime.layers.step import Step, turned


class Planned(Step):
    """A planned layer, with the moves into its ownership.

    shapes: parameter -> its shape in the user's model. A linear layer on more than
    samples and features is planned as a convolution with a kernel of one, so `source`
    then has its channels last.
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
        self.last = module.kernel_dims > 0 and len(shapes["weight"]) == 2
        self.first = (0, dims - 1, *range(1, dims - 1))  # the order with channels first
        self.source = turned(source, self.first) if self.last else source
        source = self.source
        program = module.program
        self.windows = tuple(getattr(program, "WINDOWS", {}).values())
        self.grouped = len(program.KER_SHAPE) == module.kernel_dims + 3
        if hasattr(program, "TRANSPOSED"):
            self.windows = ()  # every row of the input is read
        given, whole = module.given, module.result.whole
        self.wanted = Layout(given.whole, given.boxes)
        self.flat = self._flat() if self.grouped else None
        straight = self.flat is not None or not self.grouped
        self.aligned = source if straight else split(source, given.whole[1])
        self.inner = Layout(whole, module.result.boxes)
        self.layout = self.inner
        if self.grouped:
            self.joint = joined(self.inner)
            self.layout = Layout(
                (whole[0], whole[1] * whole[2], *whole[3:]),
                tuple(_join(box, whole[2]) for box in self.joint.boxes),
            )
        if self.last:
            self.layout = turned(self.layout, _back(self.first))

    def forward(self, share: torch.Tensor) -> torch.Tensor:
        """This rank's share of Out, from the share of In as it lay before."""
        share = share.permute(self.first) if self.last else share
        share = move(share, self.source, self.aligned, self.count)
        lies = self.aligned
        if self.grouped and self.flat is None:
            groups = self.module.given.whole[1]
            lies = _split_boxes(lies, groups)
            share = share.reshape(shape(lies.mine))
        share, lies = self.rows_read(share, lies)
        share = move(share, lies, self.flat or self.wanted, self.count)
        out: torch.Tensor = self.module(share.reshape(shape(self.wanted.mine)))
        if self.grouped:
            out = move(out, self.inner, self.joint, self.count)
            out = out.reshape(shape(self.layout.mine))
        return out.permute(_back(self.first)) if self.last else out

    def prefetch(self) -> None:
        """Start to gather Ker before the next `forward`; see `DistributedLayer`."""
        if not self._forward_pre_hooks:
            self.module.prefetch()

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """Weight and bias whole, as the user's layer saves them."""
        state = self.module.full_state_dict()
        return {n: values.reshape(self.shapes[n]) for n, values in state.items()}

    def load_full_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take the own shares of what the user's layer saved."""
        ones = [1] * self.module.kernel_dims if self.last else []
        self.module.load_full_state_dict(
            {
                n: values.reshape(*values.shape, *ones) if n == "weight" else values
                for n, values in state.items()
            }
        )

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


def _back(order: Sequence[int]) -> list[int]:
    """The order that undoes an order."""
    return [order.index(dim) for dim in range(len(order))]


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
