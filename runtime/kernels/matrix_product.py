"""Products of matrices on CPUs: by oneDNN where it is faster than torch's own choice.

torch calls BLAS for float32, mostly MKL. MKL uses AVX-512 on processors of Intel only.
oneDNN uses it on all, and takes half of the time on an AMD EPYC. The values differ by
rounding.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from synth.runtime.grid.rules.library_rules import is_large_product
from synth.runtime.grid.rules.onednn_rules import multiplies
from synth.runtime.grid.rules.processors import this_processor
from synth.runtime.kernels.autocast import autocast_dtype, no_autocast


def matrix_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """[m, n] and [n, k] to [m, k]."""
    if suits_onednn(left, right):
        return onednn_linear(left, right.mT, None)
    return left @ right


def onednn_linear(
    values: torch.Tensor, ker: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """[m, n], [k, n] and [k] to [m, k], by oneDNN."""
    by_onednn = torch.ops.mkldnn._linear_pointwise
    made: torch.Tensor = by_onednn(values, _dense(ker), bias, "none", [], "")
    return made


def _dense(ker: torch.Tensor) -> torch.Tensor:
    """A matrix whose rows or columns lie one after the other: itself, or a copy.

    Of others (a part of each row of a matrix) oneDNN makes products by its reference
    kernel, hundreds of times slower. A copy in the order of the words takes less time
    than oneDNN gains, from 32 rows of the other factor on.
    """
    if ker.is_contiguous() or ker.mT.is_contiguous():
        return ker
    by_columns = ker.stride(0) < ker.stride(1)
    return ker.mT.contiguous().mT if by_columns else ker.contiguous()


def suits_onednn(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether oneDNN computes a product, without gradients, faster than BLAS."""
    return is_faster(left, right) and not _recorded(left, right)


def is_faster(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether oneDNN is faster than BLAS."""
    return (
        left.dim() == right.dim() == 2
        and left.device.type == "cpu"
        and left.dtype == right.dtype == torch.float32
        and is_large_product(len(left), *right.shape)
        and _has_onednn()
        and bool(torch.backends.mkldnn.enabled)
        and autocast_dtype(left.device) is None
    )


def _recorded(*operands: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and any(each.requires_grad for each in operands)


@cache
def _has_onednn() -> bool:
    """Whether torch is built with it, and the processor has AVX-512."""
    built: Any = torch.backends.mkldnn.is_available
    return multiplies(this_processor()) and bool(built())


class MatrixProduct(torch.autograd.Function):
    """torch's linear layer under autograd; its gradients have gradients by BLAS."""

    @staticmethod
    def forward(
        ctx: Any, values: torch.Tensor, ker: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.save_for_backward(values, ker)
        return onednn_linear(values, ker, bias)

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor) -> Any:
        values, ker = ctx.saved_tensors
        of_in, of_ker, of_bias = ctx.needs_input_grad
        with no_autocast(dout.device):
            return (
                matrix_product(dout, ker) if of_in else None,
                matrix_product(dout.mT, values) if of_ker else None,
                dout.sum(0) if of_bias else None,
            )


def linear(
    values: torch.Tensor, ker: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """torch's linear layer under autograd, by oneDNN where that is faster."""
    if is_faster(values, ker.mT):
        apply: Any = MatrixProduct.apply
        made: torch.Tensor = apply(values, ker, bias)
        return made
    return torch.nn.functional.linear(values, ker, bias)
