"""dIn of dilated layers on CPUs as a convolution, where oneDNN would copy windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from synth.runtime.grid.dilated_calls import DilatedCall
from synth.runtime.kernels.autocast import no_autocast
from synth.runtime.kernels.autotune import Frame


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
    depthwise = groups > 1 and filters == groups and channels == 1
    call = DilatedCall(
        made[0],
        groups if depthwise else channels,
        filters,
        tuple(rows),
        tuple(made[2:]),
        tuple(taps),
        tuple(frame.dilation),
        depthwise,
        like.element_size(),
    )
    return (groups == 1 or depthwise) and call.gradient_is_convolution


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
    found: torch.Tensor = torch.convolution(
        *(dout, turned, None, frame.stride, padding, frame.dilation),
        *(False, [0] * dims, groups),
    )
    return found


class DilatedConvolution(torch.autograd.Function):
    """torch's convolution, whose dIn is made by a convolution, too."""

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
        zeros = [0] * len(frame.stride)
        out: torch.Tensor = torch.convolution(
            *(values, ker, bias, frame.stride, frame.padding, frame.dilation),
            *(False, zeros, groups),
        )
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> Any:
        frame, groups = ctx.frame, ctx.groups
        (values, ker), (of_in, *others) = ctx.saved_tensors, ctx.needs_input_grad[:3]
        din = None
        with no_autocast(dout.device):
            if of_in:
                din = reversed_convolution(ker, dout, frame, groups)
            steps = frame.stride, frame.padding, frame.dilation
            _, dker, dbias = torch.ops.aten.convolution_backward(
                *(dout, values, ker, ctx.bias, *steps, False),
                *([0] * len(frame.stride), groups, [False, *others]),
            )
        return din, dker, dbias, None, None


def convolution_in_one_call(
    values: torch.Tensor,
    ker: torch.Tensor,
    bias: torch.Tensor | None,
    frame: Frame,
    groups: int,
) -> torch.Tensor | None:
    """Out, whose gradient with respect to In is a convolution; None where it is not."""
    wanted = torch.is_grad_enabled() and values.requires_grad
    if not (wanted and _suits(values, frame)):
        return None
    spans = zip(frame.dilation, ker.shape[2:], frame.padding, strict=True)
    beyond = [2 * zeros - step * (taps - 1) for step, taps, zeros in spans]
    rows = values.shape[2:]
    made = [n + more for n, more in zip(rows, beyond, strict=True)]
    shape = len(values), len(ker), *made
    if not _call(rows, ker, shape, frame, groups, values):
        return None
    found: torch.Tensor = DilatedConvolution.apply(  # type: ignore[no-untyped-call]
        values, ker, bias, frame, groups
    )
    return found
