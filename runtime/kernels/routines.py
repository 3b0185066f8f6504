"""The routine of a convolution or a gradient: torch's own choice, or another.

On CPUs torch's choice is slow for three kinds of calls:

    pointwise     images and one tap on one thread: torch multiplies matrices, sample by
                  sample. With AVX-512 oneDNN takes half of the time, and less than a
                  tenth where images have few positions.
    small volume  one volume of few words: torch's plain kernel takes several times as
                  long as oneDNN.
    dilated       dIn, where oneDNN would make all windows of a sample: dOut convolved
                  with the reversed Ker.

The values differ by rounding. Shapes are those of torch: groups and their channels are
one dimension.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from synth.runtime.grid.rules.convolution_call import ConvolutionCall
from synth.runtime.grid.rules.library_rules import (
    FEW_POSITIONS,
    MANY_SAMPLES,
    is_small_sample,
)
from synth.runtime.grid.rules.onednn_rules import is_faster_turned
from synth.runtime.grid.rules.processors import USUAL, this_processor
from synth.runtime.kernels.autocast import Operator, autocast_dtype, no_autocast
from synth.runtime.kernels.autotune import CHANNELS_LAST
from synth.runtime.kernels.frame import Frame


def convolution(
    values: torch.Tensor,
    ker: torch.Tensor,
    bias: torch.Tensor | None,
    frame: Frame,
    groups: int,
    conv: Operator | None = None,
) -> torch.Tensor:
    """Out. conv: torch's conv1d, conv2d or conv3d; else its common operator."""
    if _is_onednns(values.shape, ker, frame, groups, values):
        return torch.mkldnn_convolution(
            values, ker, bias, frame.padding, frame.stride, frame.dilation, groups
        )
    if conv is None:
        return _by_torch(values, ker, bias, frame, groups)
    return conv(values, ker, bias, frame.stride, frame.padding, frame.dilation, groups)


def _by_torch(
    values: torch.Tensor,
    ker: torch.Tensor,
    bias: torch.Tensor | None,
    frame: Frame,
    groups: int,
) -> torch.Tensor:
    steps = frame.stride, frame.padding, frame.dilation
    out: torch.Tensor = torch.convolution(
        values, ker, bias, *steps, False, [0] * len(frame.stride), groups
    )
    return out


def in_gradient(
    dout: torch.Tensor,
    ker: torch.Tensor,
    shape: Sequence[int],
    frame: Frame,
    groups: int,
) -> torch.Tensor:
    """dIn, of a shape."""
    if gradient_is_convolution(shape[2:], ker, dout, frame, groups):
        return reversed_convolution(ker, dout, frame, groups)
    return library_in_gradient(dout, ker, shape, frame, groups)


def library_in_gradient(
    dout: torch.Tensor,
    ker: torch.Tensor,
    shape: Sequence[int],
    frame: Frame,
    groups: int,
) -> torch.Tensor:
    """dIn by torch or oneDNN, which read the shape and the layout of In alone."""
    if _is_onednns(shape, ker, frame, groups, dout):
        layout = torch._mkldnn  # type: ignore[attr-defined]
        told = torch.empty(tuple(shape), layout=layout)
    else:
        told = shape_only(dout, shape, formatted=True)
    wanted = True, False, False
    din: torch.Tensor = _gradients(dout, told, ker, None, frame, groups, wanted)[0]
    return din


def ker_gradient(
    values: torch.Tensor,
    dout: torch.Tensor,
    shape: Sequence[int],
    frame: Frame,
    groups: int,
) -> torch.Tensor:
    """dKer, of a shape."""
    ker = shape_only(values, shape)
    values = _read_for_ker(values, dout, ker, frame, groups)
    wanted = False, True, False
    dker: torch.Tensor = _gradients(dout, values, ker, None, frame, groups, wanted)[1]
    return dker


def shape_only(
    like: torch.Tensor, sizes: Sequence[int], formatted: bool = False
) -> torch.Tensor:
    """The operand of a gradient of which torch reads the shape alone.

    torch would copy an expanded tensor. Nothing touches this one, so it takes no pages
    of host memory; a buffer of the pool would. formatted: it is channels-last where
    `like` is and is not contiguous, too, since torch selects the kernel by it.
    """
    last = CHANNELS_LAST.get(len(sizes) - 2) if formatted else None
    if last is None or like.is_contiguous() or like.dim() != len(sizes):
        return like.new_empty(sizes)
    if not like.is_contiguous(memory_format=last):
        return like.new_empty(sizes)
    return torch.empty(*sizes, dtype=like.dtype, device=like.device, memory_format=last)


def _read_for_ker(
    values: torch.Tensor,
    dout: torch.Tensor,
    ker: torch.Tensor,
    frame: Frame,
    groups: int,
) -> torch.Tensor:
    """In, in the layout that selects the routine of dKer."""
    shape = values.shape
    many = len(values) * math.prod(shape[2:]) > FEW_POSITIONS
    pointwise = many and _is_pointwise(shape, ker, frame, groups, values)
    if (pointwise and dout.is_contiguous()) or is_small_volume(shape, groups, values):
        return values.to_mkldnn()
    return values


def _gradients(
    dout: torch.Tensor,
    values: torch.Tensor,
    ker: torch.Tensor,
    bias: list[int] | None,
    frame: Frame,
    groups: int,
    wanted: tuple[bool, bool, bool],
) -> Any:
    """dIn, dKer and the gradient of the bias, of a shape, where they are wanted."""
    steps = frame.stride, frame.padding, frame.dilation, False, [0] * len(frame.stride)
    backward = torch.ops.aten.convolution_backward
    return backward(dout, values, ker, bias, *steps, groups, wanted)


def _is_onednns(
    shape: Sequence[int],
    ker: torch.Tensor,
    frame: Frame,
    groups: int,
    like: torch.Tensor,
) -> bool:
    """Whether oneDNN is called where torch would not, for an In of a shape.

    like: In or dOut, whose dtype, device and memory format count.
    """
    pointwise = _is_pointwise(shape, ker, frame, groups, like)
    return pointwise or is_small_volume(shape, groups, like)


def _is_pointwise(
    shape: Sequence[int],
    ker: torch.Tensor,
    frame: Frame,
    groups: int,
    like: torch.Tensor,
) -> bool:
    return (
        len(shape) == 4
        and math.prod(ker.shape[2:]) == groups == max(frame.stride) == 1
        and not any(frame.padding)
        and shape[0] < MANY_SAMPLES
        and math.prod(shape[2:]) > 1
        and ker.dtype == torch.float32
        and torch.get_num_threads() == 1
        and like.is_contiguous()
        and _is_float_on_cpu(like)
        and autocast_dtype(like.device) is None
    )


def is_small_volume(shape: Sequence[int], groups: int, like: torch.Tensor) -> bool:
    """Whether oneDNN computes one volume of few words faster than torch's choice."""
    return (
        len(shape) == 5
        and is_small_sample(shape[0], groups, math.prod(shape[:4]))
        and _is_float_on_cpu(like)
    )


def _is_float_on_cpu(values: torch.Tensor) -> bool:
    return (
        values.device.type == "cpu"
        and values.dtype == torch.float32
        and bool(torch.backends.mkldnn.enabled)
        and not torch.compiler.is_compiling()
    )


def gradient_is_convolution(
    rows: Sequence[int],
    ker: torch.Tensor,
    dout: torch.Tensor,
    frame: Frame,
    groups: int,
) -> bool:
    """Whether dIn, of so many rows, is made by a convolution of dOut.

    Ker and dOut are as torch has them: groups and their channels are one dimension.
    """
    return _suits(dout, frame) and _call(rows, ker, dout.shape, frame, groups, dout)


def _suits(values: torch.Tensor, frame: Frame) -> bool:
    """Whether oneDNN computes a layer of stride 1; in channels-last it copies none."""
    return (
        max(frame.dilation, default=1) > 1
        and max(frame.stride) == 1
        and values.device.type == "cpu"
        and values.dtype in (torch.float32, torch.bfloat16)
        and values.is_contiguous()
        and bool(torch.backends.mkldnn.enabled)
    )


def _call(
    rows: Sequence[int],
    ker: torch.Tensor,
    made: Sequence[int],
    frame: Frame,
    groups: int,
    like: torch.Tensor,
) -> bool:
    filters, channels, *taps = ker.shape
    call = ConvolutionCall(
        made[0],
        channels * groups,
        filters,
        tuple(rows),
        tuple(made[2:]),
        tuple(taps),
        tuple(frame.dilation),
        tuple(frame.stride),
        groups,
        like.element_size(),
    )
    if groups > 1 and not call.depthwise:
        return False
    return is_faster_turned(call, this_processor() or USUAL[-1])


def reversed_convolution(
    ker: torch.Tensor, dout: torch.Tensor, frame: Frame, groups: int
) -> torch.Tensor:
    """dIn of a layer of stride 1: dOut convolved with the reversed Ker."""
    dims = len(frame.stride)
    by_group = ker.reshape(groups, len(ker) // groups, *ker.shape[1:])
    exchanged = by_group.transpose(1, 2).flatten(0, 1)
    turned = exchanged.contiguous().flip(tuple(range(2, 2 + dims)))
    reach = zip(frame.dilation, ker.shape[2:], frame.padding, strict=True)
    padding = [step * (taps - 1) - zeros for step, taps, zeros in reach]
    return _by_torch(dout, turned, None, frame._replace(padding=padding), groups)


class Convolution(torch.autograd.Function):
    """torch's convolution under autograd, by the routines above."""

    @staticmethod
    def forward(
        ctx: Any,
        values: torch.Tensor,
        ker: torch.Tensor,
        bias: torch.Tensor | None,
        frame: Frame,
        groups: int,
    ) -> torch.Tensor:
        ctx.save_for_backward(values, ker)
        ctx.frame, ctx.groups = frame, groups
        ctx.bias = None if bias is None else list(bias.shape)
        return convolution(values, ker, bias, frame, groups)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> Any:
        (values, ker), dout = ctx.saved_tensors, dout.contiguous()
        given = ctx.frame, ctx.groups
        (of_in, *others), din = ctx.needs_input_grad[:3], None
        with no_autocast(dout.device):
            if of_in:
                din = in_gradient(dout, ker, values.shape, *given)
            if not any(others):
                return din, None, None, None, None
            values = _read_for_ker(values, dout, ker, *given)
            wanted = False, *others
            _, *more = _gradients(dout, values, ker, ctx.bias, *given, wanted)
        return din, *more, None, None


def recorded_convolution(
    values: torch.Tensor,
    ker: torch.Tensor,
    bias: torch.Tensor | None,
    frame: Frame,
    groups: int,
) -> torch.Tensor:
    """Out, for autograd: torch's operator, unless another routine takes part."""
    own = _is_onednns(values.shape, ker, frame, groups, values)
    if not own and torch.is_grad_enabled() and values.requires_grad:
        own = _suits(values, frame) and _turns(values.shape, ker, frame, groups, values)
    if not own:
        return _by_torch(values, ker, bias, frame, groups)
    apply: Any = Convolution.apply
    made: torch.Tensor = apply(values, ker, bias, frame, groups)
    return made


def _turns(
    shape: Sequence[int],
    ker: torch.Tensor,
    frame: Frame,
    groups: int,
    like: torch.Tensor,
) -> bool:
    """Whether dIn of a shape is made by a convolution, by the shapes."""
    spans = zip(frame.dilation, ker.shape[2:], frame.padding, strict=True)
    beyond = [2 * zeros - step * (taps - 1) for step, taps, zeros in spans]
    made = [n + more for n, more in zip(shape[2:], beyond, strict=True)]
    return _call(shape[2:], ker, (shape[0], len(ker), *made), frame, groups, like)
