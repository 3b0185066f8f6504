"""A planned layer that its rank computes by one call of torch's own operator.

Its block reads only words that the rank owns, and adds to no words of others, so that
no pass exchanges anything. torch's autograd then makes both gradients in one call.
There is less to launch than in the passes of the emitted module, each of which is a
Python function of its own: what a GPU waits for where layers are small.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from synth.runtime.grid.boxes import Interval, Window
from synth.runtime.kernels.autotune import misses_onednn
from synth.runtime.kernels.conv import frame_of
from synth.runtime.layers.layer_program import LayerProgram


class OneCall(NamedTuple):
    """How torch is called.

    dims: spatial dimensions; 0 for a matrix product. grouped: whether groups are a
    dimension of their own. more_rows: those at the end of a transposed convolution's
    output that no window ends in. makes_all_rows: whether its windows reach all rows of
    the user's tensor.
    """

    dims: int
    grouped: bool
    transposed: bool = False
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    more_rows: tuple[int, ...] = ()
    makes_all_rows: bool = True

    def suits(self, shard: torch.Tensor, weight: torch.Tensor) -> bool:
        """Whether there are words, and torch's call is not far slower than ours."""
        if not (shard.numel() and weight.numel()):
            return False
        return not misses_onednn(shard, 1)

    def __call__(
        self, shard: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """The shard of the output, from those of input, weight and bias."""
        if bias is not None:
            bias = bias.to(shard.dtype).flatten()
        if not self.dims:
            return torch.nn.functional.linear(shard, weight, bias)
        groups = 1
        if self.grouped:
            groups, weight = weight.shape[0], weight.flatten(0, 1)
            shard = shard.flatten(1, 2)
        out: torch.Tensor = torch.convolution(
            *(shard, weight, bias, self.stride, self.padding, self.dilation),
            *(self.transposed, self.more_rows, groups),
        )
        if not self.grouped:
            return out
        return out.reshape(len(out), groups, -1, *out.shape[2:])


def one_call(program: LayerProgram) -> OneCall | None:
    """The call of a layer whose block is not tiled; None where it takes more than one.

    The rank has a place on the grid.
    """
    windows, parts = program.windows, program.grid
    dims = len(windows)
    grouped = len(program.ker_shape) == dims + 3
    cut_rows = any(parts.get(axis, 1) > 1 for axis in windows)
    if program.group_axes or program.classes or cut_rows:
        return None
    if not dims:
        plain = len(program.in_shape) == len(program.ker_shape) == 2
        transposed = program.transposed_rows is not None
        return OneCall(0, False) if plain and not transposed else None
    rows: dict[str, Interval] = {
        axis: (0, size)
        for axis, size in zip(windows, program.out_shape[-dims:], strict=True)
    }
    if any(window.turned for window in windows.values()):
        return None
    frame = frame_of(rows, windows)
    if frame.zeros:
        return None
    found = OneCall(
        dims,
        grouped,
        program.transposed_rows is not None,
        tuple(frame.stride),
        tuple(frame.padding),
        tuple(frame.dilation),
        (0,) * dims,
    )
    if not found.transposed:
        return found
    more = tuple(_more_rows(window, rows[axis][1]) for axis, window in windows.items())
    fits = all(
        0 <= number < max(window.stride, window.dilation)
        for number, window in zip(more, windows.values(), strict=True)
    )
    read = [window.size for window in windows.values()]
    every = list(program.transposed_rows or ()) == read
    return found._replace(more_rows=more, makes_all_rows=every) if fits else None


def _more_rows(window: Window, given: int) -> int:
    """Rows of a transposed convolution's output beyond those that torch makes."""
    reach = window.dilation * (window.kernel - 1) + 1
    return window.size - (window.stride * (given - 1) + reach - 2 * window.padding)
