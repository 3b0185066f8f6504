"""Convolutions of one position on one thread, by oneDNN.

torch multiplies matrices there, sample by sample, and takes oneDNN with several threads
only. With AVX-512, oneDNN takes half of the time, and less than a tenth where images
have few positions. The values differ by rounding.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from synth.runtime.kernels.autocast import autocast_dtype, no_autocast
from synth.runtime.kernels.autotune import Frame

MANY_SAMPLES = 16  # for which torch takes oneDNN itself
FEW_POSITIONS = 128  # of all samples, up to which torch makes dKer faster


def is_pointwise(
    values: torch.Tensor, ker: torch.Tensor, frame: Frame, groups: int
) -> bool:
    """Whether oneDNN computes a layer faster than torch's own choice.

    values: In. Ker is as torch has it.
    """
    return (
        values.dim() == 4
        and math.prod(ker.shape[2:]) == groups == max(frame.stride) == 1
        and not any(frame.padding)
        and values.device.type == "cpu"
        and values.dtype == ker.dtype == torch.float32
        and autocast_dtype(values.device) is None
        and values.is_contiguous()
        and len(values) < MANY_SAMPLES
        and math.prod(values.shape[2:]) > 1
        and torch.get_num_threads() == 1
        and bool(torch.backends.mkldnn.enabled)
    )


def pointwise(
    values: torch.Tensor, ker: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Out of such a layer."""
    return torch.mkldnn_convolution(values, ker, bias, [0, 0], [1, 1], [1, 1], 1)


def pointwise_gradients(
    dout: torch.Tensor,
    values: torch.Tensor,
    ker: torch.Tensor,
    bias: list[int] | None,
    wanted: tuple[bool, bool, bool],
) -> list[torch.Tensor | None]:
    """dIn, dKer and the gradient of the bias, where they are wanted.

    The layout of In selects the kernel; for dIn its shape alone is read.
    bias: its shape.
    """
    backward = torch.ops.aten.convolution_backward
    layout = torch._mkldnn  # type: ignore[attr-defined]
    steps = bias, [1, 1], [0, 0], [1, 1], False, [0, 0], 1
    of_in, *others = wanted
    found: list[torch.Tensor | None] = [None] * 3
    if of_in:
        shape_only = torch.empty(values.shape, layout=layout)
        found[0] = backward(dout, shape_only, ker, *steps, [True, False, False])[0]
    if any(others):
        many = len(values) * math.prod(values.shape[2:]) > FEW_POSITIONS
        read = values.to_mkldnn() if many else values
        found[1:] = backward(dout, read, ker, *steps, [False, *others])[1:]
    return found


class PointwiseConvolution(torch.autograd.Function):
    """Such a layer under autograd."""

    @staticmethod
    def forward(
        ctx: Any, values: torch.Tensor, ker: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.save_for_backward(values, ker)
        ctx.bias = None if bias is None else list(bias.shape)
        return pointwise(values, ker, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> Any:
        values, ker = ctx.saved_tensors
        with no_autocast(dout.device):
            return tuple(
                pointwise_gradients(
                    dout.contiguous(), values, ker, ctx.bias, ctx.needs_input_grad
                )
            )
