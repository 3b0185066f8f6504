"""The local kernels: torch's own convolution and its gradients, on one block.

Shapes: In [b, c, *rows], Ker [k, c, *taps] and Out [b, k, *rows]. With groups: In
[b, g, c, *rows], Ker [g, k, c, *taps] and Out [b, g, k, *rows]. The context holds the
scratch memory and the autotuner.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from synth.runtime.comm.ghost_rows import clear_around, padded
from synth.runtime.grid.boxes import (
    REMEMBERED,
    Interval,
    Window,
    input_rows,
    output_rows,
    zeros_around,
)
from synth.runtime.kernels.autotune import (
    CHANNELS_LAST,
    Frame,
    Variant,
    channels_last,
    fits_in_memory,
    misses_onednn,
    unfold_filter,
    unfold_forward,
)
from synth.runtime.kernels.context import Context
from synth.runtime.kernels.dilated import (
    gradient_is_convolution,
    reversed_convolution,
)
from synth.runtime.kernels.pointwise import (
    is_pointwise,
    pointwise,
    pointwise_gradients,
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
    """torch's convolution, or its fastest variant where the context autotunes."""
    dims = len(frame.stride)
    groups, ker = groups_and_ker(ker, dims)

    def direct() -> torch.Tensor:
        if is_pointwise(wide, ker, frame, groups):
            return pointwise(wide, ker, None)
        if misses_onednn(wide, groups):
            return torch.mkldnn_convolution(
                wide, ker, None, frame.padding, frame.stride, frame.dilation, groups
            )
        return conv(
            wide, ker, None, frame.stride, frame.padding, frame.dilation, groups
        )

    if not context.tuner.enabled:
        return direct()
    variants: dict[str, Variant] = {"direct": direct}
    if dims in CHANNELS_LAST:
        variants["channels-last"] = lambda: conv(
            channels_last(wide),
            channels_last(ker),
            None,
            frame.stride,
            frame.padding,
            frame.dilation,
            groups,
        ).contiguous()
    if groups == 1 and fits_in_memory(wide, tuple(ker.shape[2:])):
        variants["unfold"] = lambda: unfold_forward(wide, ker, frame)
    if suits_winograd(wide, ker.shape, frame, groups):
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
    wide_shape = padded((samples, math.prod(channels), *rows), frame.zeros)
    if not context.tuner.enabled:
        dout, (groups, ker) = flat(dout_tile, dims), groups_and_ker(ker_tile, dims)
        if gradient_is_convolution(wide_shape[2:], ker, dout, frame, groups):
            din = reversed_convolution(ker, dout, frame, groups)
            return inside(din, frame.zeros).reshape(in_shape)
    # Its memory format is that of dOut: torch selects the kernel by it.
    in_only = shape_only(dout_tile, wide_shape, formatted=True)
    din = gradient_kernel(in_only, ker_tile, dout_tile, frame, "dIn", context)
    del in_only
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
    ker_only = shape_only(in_tile, ker_shape)
    dker = gradient_kernel(wide, ker_only, dout_tile, frame, "dKer", context)
    return dker.reshape(ker_shape)


def shape_only(
    like: torch.Tensor, sizes: Sequence[int], formatted: bool = False
) -> torch.Tensor:
    """The operand of a gradient of which torch reads the shape alone.

    torch would copy an expanded tensor. Nothing touches this one, so it takes no pages
    of host memory; a buffer of the pool would. formatted: its memory format is that of
    `like`.
    """
    return like_format(like, sizes) if formatted else like.new_empty(sizes)


def gradient_kernel(
    wide: torch.Tensor,
    ker: torch.Tensor,
    dout: torch.Tensor,
    frame: Frame,
    of: str,
    context: Context,
) -> torch.Tensor:
    """torch's gradient of one convolution, "dIn" or "dKer", or its fastest variant."""
    dims, index = len(frame.stride), ("dIn", "dKer").index(of)
    groups, ker = groups_and_ker(ker, dims)
    no_bias, transposed, more_rows = None, False, [0] * dims
    mask = [of == "dIn", of == "dKer", False]
    steps = frame.stride, frame.padding, frame.dilation, transposed, more_rows, groups
    backward, out = torch.ops.aten.convolution_backward, flat(dout, dims)

    def direct() -> torch.Tensor:
        if out.is_contiguous() and is_pointwise(wide, ker, frame, groups):
            wanted = of == "dIn", of == "dKer", False
            made = pointwise_gradients(out, wide, ker, None, wanted)[index]
            assert made is not None
            return made
        values = wide
        if misses_onednn(wide, groups):  # the layout of In selects the kernel
            layout = torch._mkldnn  # type: ignore[attr-defined]
            if of == "dKer":
                values = wide.to_mkldnn()
            else:  # the shape alone is read
                values = torch.empty(wide.shape, layout=layout)
        found: torch.Tensor = backward(out, values, ker, no_bias, *steps, mask)[index]
        return found

    if not context.tuner.enabled:
        return direct()
    variants: dict[str, Variant] = {"direct": direct}
    if dims in CHANNELS_LAST:
        variants["channels-last"] = lambda: backward(
            *(channels_last(out), channels_last(wide), channels_last(ker)),
            *(no_bias, *steps, mask),
        )[index].contiguous()
    taps, buffers = tuple(ker.shape[2:]), context.buffers
    if of == "dKer" and groups == 1 and fits_in_memory(wide, taps):
        variants["unfold"] = lambda: unfold_filter(wide, out, frame, taps)
    if of == "dIn" and gradient_is_convolution(wide.shape[2:], ker, out, frame, groups):
        variants["reversed"] = lambda: reversed_convolution(ker, out, frame, groups)
    if suits_winograd(wide, ker.shape, frame, groups):
        variants["winograd"] = lambda: (
            winograd_filter(wide, out, frame.padding, buffers)
            if of == "dKer"
            else winograd_input(out, ker, frame.padding, buffers)
        )
    name = "backward-filter" if of == "dKer" else "backward-data"
    key = name, tuple(wide.shape), tuple(ker.shape), wide.dtype
    return context.tuner.run(key, variants, wide.device)


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


def like_format(tile: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """Untouched memory, channels-last where a tile is and is not contiguous, too."""
    last = CHANNELS_LAST.get(len(sizes) - 2)
    if last is None or tile.is_contiguous() or tile.dim() != len(sizes):
        return tile.new_empty(sizes)
    if not tile.is_contiguous(memory_format=last):
        return tile.new_empty(sizes)
    return torch.empty(*sizes, dtype=tile.dtype, device=tile.device, memory_format=last)


def flat(tile: torch.Tensor, dims: int) -> torch.Tensor:
    """In or Out as torch has it: groups and their channels are one dimension."""
    return tile.flatten(1, 2) if tile.dim() == dims + 3 else tile


def groups_and_ker(ker: torch.Tensor, dims: int) -> tuple[int, torch.Tensor]:
    """The number of groups, and Ker as torch has it."""
    return (len(ker), ker.flatten(0, 1)) if ker.dim() == dims + 3 else (1, ker)
