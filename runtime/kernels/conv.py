"""The local kernels: torch's own convolution and its gradients, on one block.

Shapes: In [b, c, *rows], Ker [k, c, *taps] and Out [b, k, *rows]; with groups In
[b, g, c, *rows], Ker [g, k, c, *taps] and Out [b, g, k, *rows].
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from synth.runtime.comm.buffer_pool import Room
from synth.runtime.comm.halo_exchange import clear_around, padded
from synth.runtime.grid.boxes import Interval, Window, input_rows, zeros_around
from synth.runtime.kernels.autotune import (
    LAST,
    Fit,
    Form,
    Tuning,
    fastest,
    filter_product,
    fits_in_memory,
    overlooked,
    product,
    reordered,
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
) -> torch.Tensor:
    """Out of one block, from exactly the input rows that it reads.

    `conv` is torch's conv1d, conv2d or conv3d. The rows may have the zeros of
    `explicit_zeros` around them.
    """
    dims = len(windows)
    rows = (high - low for low, high in (block[axis] for axis in windows))
    out_shape = (*in_tile.shape[: -dims - 1], ker_tile.shape[-dims - 2], *rows)
    if not (in_tile.numel() and ker_tile.numel() and all(out_shape)):
        return in_tile.new_zeros(out_shape)
    fit = fitted(block, windows)
    wide, copied = surrounded(flat(in_tile, dims), block, windows, fit.zeros)
    out = output(conv, wide, ker_tile, fit)
    Room.leave(*copied)
    return out.reshape(out_shape)


def output(
    conv: Callable[..., torch.Tensor],
    wide: torch.Tensor,
    ker: torch.Tensor,
    fit: Fit,
) -> torch.Tensor:
    """torch's convolution, or the form of it that was the fastest."""
    dims, groups = len(fit.stride), 1
    if ker.dim() == dims + 3:
        groups, ker = ker.shape[0], ker.flatten(0, 1)

    def direct() -> torch.Tensor:
        steps = fit.padding, fit.stride, fit.dilation, groups
        if overlooked(wide, groups):
            return torch.mkldnn_convolution(wide, ker, None, *steps)
        padding, stride, *rest = steps
        return conv(wide, ker, None, stride, padding, *rest)

    if not Tuning.on:
        return direct()
    forms: dict[str, Form] = {"direct": direct}
    if dims in LAST:
        forms["channels-last"] = lambda: conv(
            reordered(wide),
            reordered(ker),
            None,
            fit.stride,
            fit.padding,
            fit.dilation,
            groups,
        ).contiguous()
    if groups == 1 and fits_in_memory(wide, tuple(ker.shape[2:])):
        forms["unfold"] = lambda: product(wide, ker, fit)
    if suits_winograd(wide, ker.shape, fit, groups):
        forms["winograd"] = lambda: winograd(wide, ker, fit.padding)
    key = "forward", tuple(wide.shape), tuple(ker.shape), wide.dtype
    return fastest(key, forms, wide.device)


def input_gradient(
    ker_tile: torch.Tensor,
    dout_tile: torch.Tensor,
    block: dict[str, Interval],
    windows: dict[str, Window],
) -> torch.Tensor:
    """What one block adds to dIn, on exactly the input rows that it reads."""
    dims = len(windows)
    reads = [input_rows(block[axis], window) for axis, window in windows.items()]
    rows = [high - low for low, high in reads]
    in_shape = (*dout_tile.shape[: -dims - 1], ker_tile.shape[-dims - 1], *rows)
    if not (dout_tile.numel() and ker_tile.numel() and all(in_shape)):
        return dout_tile.new_zeros(in_shape)
    fit = fitted(block, windows)
    rows_shape = flat(dout_tile.new_empty(1).expand(in_shape), dims).shape
    wide_shape = padded(rows_shape, fit.zeros)
    shape_only = Room.take(dout_tile, *wide_shape)  # torch would copy a view
    din = gradients(shape_only, ker_tile, dout_tile, fit, 0)
    Room.leave(shape_only)
    return inside(din, fit.zeros).reshape(in_shape)


def kernel_gradient(
    in_tile: torch.Tensor,
    dout_tile: torch.Tensor,
    block: dict[str, Interval],
    windows: dict[str, Window],
) -> torch.Tensor:
    """What one block adds to dKer."""
    dims = len(windows)
    taps = (window.kernel for window in windows.values())
    ker_shape = (*dout_tile.shape[1:-dims], in_tile.shape[-dims - 1], *taps)
    if not (in_tile.numel() and dout_tile.numel() and all(ker_shape)):
        return in_tile.new_zeros(ker_shape)
    fit = fitted(block, windows)
    wide, copied = surrounded(flat(in_tile, dims), block, windows, fit.zeros)
    shape_only = Room.take(in_tile, *ker_shape)
    dker = gradients(wide, shape_only, dout_tile, fit, 1)
    Room.leave(shape_only, *copied)
    return dker.reshape(ker_shape)


def fitted(block: dict[str, Interval], windows: dict[str, Window]) -> Fit:
    """The zeros around a block; written out along axes where `padding=` cannot."""
    around = [zeros_around(block[axis], window) for axis, window in windows.items()]
    stride = [window.stride for window in windows.values()]
    dilation = [window.dilation for window in windows.values()]
    zeros, padding = [], list[int]()
    for (before, after), step in zip(around, stride, strict=True):
        even = 0 <= before - after < step
        padding.append(before if even else 0)
        zeros.append((0, 0) if even else (before, after))
    written = [n for pair in reversed(zeros) for n in pair]
    return Fit(written if any(written) else [], padding, stride, dilation)


def explicit_zeros(block: dict[str, Interval], windows: dict[str, Window]) -> list[int]:
    """The zeros that a block sees and `padding=` cannot add, as `F.pad` takes them.

    Laid around the rows of a block once, they need not be for every pass.
    """
    zeros = fitted(block, windows).zeros
    return zeros if min(zeros, default=0) >= 0 else []  # rows are cut off instead


def surrounded(
    values: torch.Tensor,
    block: dict[str, Interval],
    windows: dict[str, Window],
    zeros: list[int],
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """A block's rows with zeros around them; what of that is in `Room`, for a while.

    A copy, unless there are none or they are there already.
    """
    reads = [input_rows(block[axis], window) for axis, window in windows.items()]
    rows = [high - low for low, high in reads]
    if min(zeros, default=0) < 0:  # rows that nothing reads are cut off
        return F.pad(values, zeros), []
    if not zeros or list(values.shape[-len(rows) :]) == padded(rows, zeros):
        return values, []
    wide = Room.take(values, *padded(values.shape, zeros))
    clear_around(wide, zeros).copy_(values)
    return wide, [wide]


def inside(values: torch.Tensor, zeros: list[int]) -> torch.Tensor:
    """What has zeros around it: a view, where nothing had been cut off."""
    if any(n < 0 for n in zeros):
        return F.pad(values, [-n for n in zeros])
    for place, (low, high) in enumerate(zip(zeros[::2], zeros[1::2], strict=True)):
        dim = values.dim() - 1 - place
        values = values.narrow(dim, low, values.shape[dim] - low - high)
    return values


def flat(tile: torch.Tensor, dims: int) -> torch.Tensor:
    """In or Out as torch has it: groups and their channels are one dimension."""
    return tile.flatten(1, 2) if tile.dim() == dims + 3 else tile


def gradients(
    wide: torch.Tensor, ker: torch.Tensor, dout: torch.Tensor, fit: Fit, of: int
) -> torch.Tensor:
    """torch's gradient of one convolution: of its input (0) or of its kernel (1)."""
    dims, groups = len(fit.stride), 1
    if ker.dim() == dims + 3:
        groups, ker = ker.shape[0], ker.flatten(0, 1)
    no_bias, transposed, more_rows = None, False, [0] * dims
    wanted = [of == 0, of == 1, False]
    steps = fit.stride, fit.padding, fit.dilation, transposed, more_rows, groups
    backward, out = torch.ops.aten.convolution_backward, flat(dout, dims)

    def direct() -> torch.Tensor:
        values = wide
        if overlooked(wide, groups):  # its layout decides; dIn reads no more of it
            layout = torch._mkldnn  # type: ignore[attr-defined]
            stand_in = torch.empty(wide.shape, layout=layout)
            values = wide.to_mkldnn() if of == 1 else stand_in
        found: torch.Tensor = backward(out, values, ker, no_bias, *steps, wanted)[of]
        return found

    if not Tuning.on:
        return direct()
    forms: dict[str, Form] = {"direct": direct}
    if dims in LAST:
        forms["channels-last"] = lambda: backward(
            reordered(out), reordered(wide), reordered(ker), no_bias, *steps, wanted
        )[of].contiguous()
    taps = tuple(ker.shape[2:])
    if of == 1 and groups == 1 and fits_in_memory(wide, taps):
        forms["unfold"] = lambda: filter_product(wide, out, fit, taps)
    if suits_winograd(wide, ker.shape, fit, groups):
        forms["winograd"] = lambda: (
            winograd_filter(wide, out, fit.padding)
            if of == 1
            else winograd_input(out, ker, fit.padding)
        )
    name = "backward-filter" if of == 1 else "backward-data"
    key = name, tuple(wide.shape), tuple(ker.shape), wide.dtype
    return fastest(key, forms, wide.device)
