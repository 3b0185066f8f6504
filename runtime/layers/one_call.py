"""A planned layer that its rank computes by one call of torch's own operator.

Its block needs no words of others but a halo, and adds to no words of others, so that
no pass gathers or reduces anything. The halo is exchanged before the call, and its
gradient after that. torch's autograd makes all gradients in one call, and its operator
adds the bias. There is less to launch than in the passes of the emitted module, each of
which is a Python function of its own: what a GPU waits for where layers are small.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from synth.runtime.comm.adjoint import with_adjoint
from synth.runtime.comm.halo_exchange import Neighbours, fetch_rows, return_rows
from synth.runtime.comm.layout import Layout
from synth.runtime.grid.boxes import (
    Box,
    Interval,
    Window,
    input_rows,
    overlap,
    shape,
    volume,
)
from synth.runtime.kernels.context import Context
from synth.runtime.kernels.conv import flat, groups_and_ker
from synth.runtime.kernels.frame import Frame, frame_of, inside
from synth.runtime.kernels.matrix_product import linear
from synth.runtime.kernels.routines import (
    gradient_is_convolution,
    is_small_volume,
    recorded_convolution,
)
from synth.runtime.layers.layer_program import LayerProgram


class Halo(NamedTuple):
    """The rows that a rank fetches from its neighbours, and sends to them.

    owned, carried: the shards of In, and these with their halos. peers: the ranks with
    which this one shares words. zeros: to put around the carried rows, as `F.pad` takes
    them: those of a padding at one end only.
    """

    owned: Layout
    carried: Layout
    peers: tuple[int, ...]
    zeros: tuple[int, ...]

    def widened(self, shard: torch.Tensor, context: Context) -> torch.Tensor:
        """The words of the carried box, with zeros around; gradients return."""
        owned, carried = self.owned.box, self.carried.box

        def fetched(own: torch.Tensor) -> torch.Tensor:
            neighbours = self._neighbours(context, "forward", "halo")
            rooms = context.rooms
            return fetch_rows(own, owned, carried, neighbours, self.zeros, rooms)

        def returned(gradient: torch.Tensor) -> torch.Tensor:
            neighbours = self._neighbours(context, "backward-data", "return")
            sums = inside(gradient, list(self.zeros))
            return return_rows(sums, carried, owned, neighbours)

        return with_adjoint(shard, fetched, returned)

    def _neighbours(self, context: Context, pass_: str, phase: str) -> Neighbours:
        """The peers; what they send is counted in a phase of a pass."""
        ranks, count = self.owned.ranks, context.for_pass(pass_).counter(phase, 0, "In")
        peers = [{"rank": peer} for peer in self.peers]
        grid = {"rank": ranks.size}
        return Neighbours({"rank": ranks.me}, peers, grid, count, ranks.group)


class OneCall(NamedTuple):
    """How torch is called.

    dims: spatial dimensions; 0 for a matrix product. grouped: whether groups are a
    dimension of their own. more_rows: those at the end of a transposed convolution's
    output that no window ends in. makes_all_rows: whether its windows reach all rows of
    the user's tensor. halo: what is fetched before the call; None where a rank owns all
    that it reads.
    """

    dims: int
    grouped: bool
    transposed: bool = False
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    more_rows: tuple[int, ...] = ()
    makes_all_rows: bool = True
    halo: Halo | None = None

    def suits(self, shard: torch.Tensor, weight: torch.Tensor) -> bool:
        """Whether there are words, and torch's call is not far slower than ours.

        A transposed layer makes dIn of a layer in its forward pass, by torch's choice.
        """
        if not (shard.numel() and weight.numel()):
            return False
        if self.halo is not None:
            return all(shape(self.halo.carried.mine))
        return not (self.transposed and self._is_ours(shard, weight))

    def _is_ours(self, shard: torch.Tensor, weight: torch.Tensor) -> bool:
        """Whether our kernels make the rows of a transposed layer in another way."""
        groups, ker = groups_and_ker(weight, self.dims)
        values = flat(shard, self.dims)
        spans = zip(self.dilation, ker.shape[2:], self.padding, strict=True)
        beyond = [step * (taps - 1) - 2 * zeros for step, taps, zeros in spans]
        rows = [n + more for n, more in zip(values.shape[2:], beyond, strict=True)]
        turned = gradient_is_convolution(rows, ker, values, self.frame, groups)
        return turned or is_small_volume(values.shape, groups, values)

    @property
    def frame(self) -> Frame:
        """How torch is called; zeros are laid around before."""
        return Frame([], *map(list, (self.padding, self.stride, self.dilation)))

    def __call__(
        self,
        shard: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        context: Context,
    ) -> torch.Tensor:
        """The shard of the output, from those of input, weight and bias."""
        if self.halo is not None:
            shard = self.halo.widened(shard, context)
        if bias is not None:
            bias = bias.to(shard.dtype).flatten()
        if not self.dims:
            return linear(shard, weight, bias)
        groups = 1
        if self.grouped:
            groups, weight = weight.shape[0], weight.flatten(0, 1)
            shard = shard.flatten(1, 2)
        if self.transposed:
            out = torch.convolution(
                *(shard, weight, bias, self.stride, self.padding, self.dilation),
                *(True, self.more_rows, groups),
            )
        else:
            out = recorded_convolution(shard, weight, bias, self.frame, groups)
        if not self.grouped:
            return out
        return out.reshape(len(out), groups, -1, *out.shape[2:])


def one_call(program: LayerProgram, source: Layout, made: Layout) -> OneCall | None:
    """The call of a layer whose block is not tiled; None where it takes more than one.

    source, made: who owns what of the layer's input and output. The calling rank has a
    place on the grid. All such ranks get a call, or none does.
    """
    windows = program.windows
    dims = len(windows)
    grouped = len(program.ker_shape) == dims + 3
    transposed = program.transposed_rows is not None
    if program.group_axes or program.classes:
        return None
    if not dims:
        plain = len(program.in_shape) == len(program.ker_shape) == 2
        return OneCall(0, False) if plain and not transposed else None
    cut_rows = any(program.grid.get(axis, 1) > 1 for axis in windows)
    turned = any(window.turned for window in windows.values())
    outs = source if transposed else made
    working = [_rows_by_axis(box, windows) for box in outs.boxes if volume(box)]
    whole = all(min(frame_of(rows, windows).zeros, default=0) >= 0 for rows in working)
    if turned or (transposed and cut_rows) or not whole:
        return None
    rows = _rows_by_axis(outs.mine, windows)
    frame = frame_of(rows, windows)
    if transposed and frame.zeros:
        return None
    found = OneCall(
        dims,
        grouped,
        transposed,
        tuple(frame.stride),
        tuple(frame.padding),
        tuple(frame.dilation),
        (0,) * dims,
    )
    if not transposed:
        return found._replace(halo=_halo(windows, source, made, tuple(frame.zeros)))
    more = tuple(_more_rows(window, rows[axis][1]) for axis, window in windows.items())
    fits = all(
        0 <= number < max(window.stride, window.dilation)
        for number, window in zip(more, windows.values(), strict=True)
    )
    read = [window.size for window in windows.values()]
    every = list(program.transposed_rows or ()) == read
    return found._replace(more_rows=more, makes_all_rows=every) if fits else None


def _rows_by_axis(box: Box, windows: dict[str, Window]) -> dict[str, Interval]:
    """Spatial axis -> the rows of a box."""
    return dict(zip(windows, box[-len(windows) :], strict=True))


def _halo(
    windows: dict[str, Window], source: Layout, made: Layout, zeros: tuple[int, ...]
) -> Halo | None:
    """What a rank fetches; None where no rank fetches rows, and there are no zeros."""
    dims, me = len(windows), source.ranks.me

    def carried(own: Box, out: Box) -> Box:
        rows = map(input_rows, out[-dims:], windows.values())
        return *own[:-dims], *rows

    boxes = tuple(map(carried, source.boxes, made.boxes))
    if boxes == source.boxes and not zeros:
        return None
    others = [rank for rank in range(len(boxes)) if rank != me]
    peers = tuple(
        rank
        for rank in others
        if volume(overlap(boxes[me], source.boxes[rank]))
        or volume(overlap(boxes[rank], source.boxes[me]))
    )
    return Halo(source, source.with_boxes(source.whole, boxes), peers, zeros)


def _more_rows(window: Window, given: int) -> int:
    """Rows of a transposed convolution's output beyond those that torch makes."""
    reach = window.dilation * (window.kernel - 1) + 1
    return window.size - (window.stride * (given - 1) + reach - 2 * window.padding)
