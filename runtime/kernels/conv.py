"""The local kernels: torch's own convolution and its gradients, on one block.

Shapes: In [b, c, *rows], Ker [k, c, *taps] and Out [b, k, *rows]. With groups: In
[b, g, c, *rows], Ker [g, k, c, *taps] and Out [b, g, k, *rows]. The context holds the
scratch memory and the autotuner.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from synth.runtime.comm.ghost_rows import padded
from synth.runtime.grid.boxes import Interval, Window, input_rows, output_rows
from synth.runtime.kernels.autotune import (
    CHANNELS_LAST,
    Variant,
    channels_last,
    fits_in_memory,
    unfold_filter,
    unfold_forward,
)
from synth.runtime.kernels.context import Context
from synth.runtime.kernels.frame import Frame, frame_of, inside, surrounded
from synth.runtime.kernels.routines import (
    convolution,
    gradient_is_convolution,
    in_gradient,
    ker_gradient,
    library_in_gradient,
    reversed_convolution,
)
from synth.runtime.kernels.winograd import (
    suits_winograd,
    winograd,
    winograd_filter,
    winograd_input,
)


def convolve(
    conv: Callable[..., torch.Tensor],
    in_tile: torch.Tensor,
    ker_tile: torch.Tensor,
    block: dict[str, Interval],
    windows: dict[str, Window],
    context: Context,
) -> torch.Tensor:
    """What one block adds to Out, from exactly the input rows that the block reads.

    `conv` is torch's conv1d, conv2d or conv3d. `in_tile` may already have the zeros of
    `explicit_zeros` around its rows.
    """
    dims = len(windows)
    made = (output_rows(block[axis], window) for axis, window in windows.items())
    rows = (high - low for low, high in made)
    out_shape = (*in_tile.shape[: -dims - 1], ker_tile.shape[-dims - 2], *rows)
    if not (in_tile.numel() and ker_tile.numel() and all(out_shape)):
        return in_tile.new_zeros(out_shape)
    frame = frame_of(block, windows)
    wide = surrounded(flat(in_tile, dims), block, windows, frame.zeros)
    out = forward_kernel(conv, wide, ker_tile, frame, context)
    if out.shape == out_shape:  # no view: autograd then lets others change it in place
        return out
    return out.reshape(out_shape)


def forward_kernel(
    conv: Callable[..., torch.Tensor],
    wide: torch.Tensor,
    ker: torch.Tensor,
    frame: Frame,
    context: Context,
) -> torch.Tensor:
    """A convolution, or its fastest variant where the context autotunes."""
    dims = len(frame.stride)
    groups, ker = groups_and_ker(ker, dims)

    def direct() -> torch.Tensor:
        return convolution(wide, ker, None, frame, groups, conv)

    if not context.tuner.enabled:
        return direct()
    variants: dict[str, Variant] = {"direct": direct}
    if dims in CHANNELS_LAST:
        steps = frame.stride, frame.padding, frame.dilation, groups
        variants["channels-last"] = lambda: conv(
            channels_last(wide), channels_last(ker), None, *steps
        ).contiguous()
    if groups == 1 and fits_in_memory(wide, tuple(ker.shape[2:])):
        variants["unfold"] = lambda: unfold_forward(wide, ker, frame)
    if suits_winograd(wide, wide.shape, ker.shape, frame, groups):
        variants["winograd"] = lambda: winograd(
            wide, ker, frame.padding, context.buffers
        )
    key = "forward", tuple(wide.shape), tuple(ker.shape), wide.dtype
    return context.tuner.run(key, variants, wide.device)


def input_gradient(
    ker_tile: torch.Tensor,
    dout_tile: torch.Tensor,
    block: dict[str, Interval],
    windows: dict[str, Window],
    context: Context,
) -> torch.Tensor:
    """What one block adds to dIn, on exactly the input rows that the block reads."""
    dims = len(windows)
    reads = [input_rows(block[axis], window) for axis, window in windows.items()]
    rows = [high - low for low, high in reads]
    in_shape = (*dout_tile.shape[: -dims - 1], ker_tile.shape[-dims - 1], *rows)
    if not (dout_tile.numel() and ker_tile.numel() and all(in_shape)):
        return dout_tile.new_zeros(in_shape)
    frame = frame_of(block, windows)
    samples, *channels = in_shape[:-dims]
    wide = padded((samples, math.prod(channels), *rows), frame.zeros)
    din = in_gradient_kernel(wide, ker_tile, dout_tile, frame, context)
    return inside(din, frame.zeros).reshape(in_shape)


def kernel_gradient(
    in_tile: torch.Tensor,
    dout_tile: torch.Tensor,
    block: dict[str, Interval],
    windows: dict[str, Window],
    context: Context,
) -> torch.Tensor:
    """What one block adds to dKer."""
    dims = len(windows)
    taps = (window.kernel for window in windows.values())
    ker_shape = (*dout_tile.shape[1:-dims], in_tile.shape[-dims - 1], *taps)
    if not (in_tile.numel() and dout_tile.numel() and all(ker_shape)):
        return in_tile.new_zeros(ker_shape)
    frame = frame_of(block, windows)
    wide = surrounded(flat(in_tile, dims), block, windows, frame.zeros)
    dker = ker_gradient_kernel(wide, ker_shape, dout_tile, frame, context)
    return dker.reshape(ker_shape)


def in_gradient_kernel(
    shape: Sequence[int],
    ker: torch.Tensor,
    dout: torch.Tensor,
    frame: Frame,
    context: Context,
) -> torch.Tensor:
    """dIn of a shape, or its fastest variant where the context autotunes."""
    dims = len(frame.stride)
    (groups, ker), out = groups_and_ker(ker, dims), flat(dout, dims)
    if not context.tuner.enabled:
        return in_gradient(out, ker, shape, frame, groups)
    variants: dict[str, Variant] = {
        "direct": lambda: library_in_gradient(out, ker, shape, frame, groups)
    }
    if dims in CHANNELS_LAST:
        variants["channels-last"] = lambda: library_in_gradient(
            channels_last(out), channels_last(ker), shape, frame, groups
        ).contiguous()
    if gradient_is_convolution(shape[2:], ker, out, frame, groups):
        variants["reversed"] = lambda: reversed_convolution(ker, out, frame, groups)
    if suits_winograd(out, shape, ker.shape, frame, groups):
        variants["winograd"] = lambda: winograd_input(
            out, ker, frame.padding, context.buffers
        )
    key = "backward-data", tuple(shape), tuple(ker.shape), out.dtype
    return context.tuner.run(key, variants, out.device)


def ker_gradient_kernel(
    wide: torch.Tensor,
    shape: Sequence[int],
    dout: torch.Tensor,
    frame: Frame,
    context: Context,
) -> torch.Tensor:
    """dKer of a shape, or its fastest variant where the context autotunes."""
    dims = len(frame.stride)
    groups, out = 1, flat(dout, dims)
    if len(shape) == dims + 3:
        groups, filters, *others = shape
        shape = groups * filters, *others

    def direct() -> torch.Tensor:
        return ker_gradient(wide, out, shape, frame, groups)

    if not context.tuner.enabled:
        return direct()
    variants: dict[str, Variant] = {"direct": direct}
    if dims in CHANNELS_LAST:
        variants["channels-last"] = lambda: ker_gradient(
            channels_last(wide), channels_last(out), shape, frame, groups
        ).contiguous()
    taps = tuple(shape[2:])
    if groups == 1 and fits_in_memory(wide, taps):
        variants["unfold"] = lambda: unfold_filter(wide, out, frame, taps)
    if suits_winograd(wide, wide.shape, shape, frame, groups):
        variants["winograd"] = lambda: winograd_filter(
            wide, out, frame.padding, context.buffers
        )
    key = "backward-filter", tuple(wide.shape), tuple(shape), wide.dtype
    return context.tuner.run(key, variants, wide.device)


def flat(tile: torch.Tensor, dims: int) -> torch.Tensor:
    """In or Out as torch has it: groups and their channels are one dimension."""
    return tile.flatten(1, 2) if tile.dim() == dims + 3 else tile


def groups_and_ker(ker: torch.Tensor, dims: int) -> tuple[int, torch.Tensor]:
    """The number of groups, and Ker as torch has it."""
    return (len(ker), ker.flatten(0, 1)) if ker.dim() == dims + 3 else (1, ker)
