"""Products of matrices by oneDNN: the values of torch, and where they are for BLAS."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch.utils._python_dispatch import TorchDispatchMode

from synth.layer.passes import Pass
from synth.network.memory import kernel_copies
from synth.runtime.grid.allocation_counter import allocated
from synth.runtime.grid.rules.onednn_rules import multiplies
from synth.runtime.grid.rules.processors import this_processor
from synth.runtime.kernels import matrix_product as products
from synth.runtime.kernels.matrix_product import MatrixProduct, linear, matrix_product, suits_onednn

needs_avx512 = pytest.mark.skipif(not multiplies(this_processor()), reason="BLAS multiplies without AVX-512")
CASES = [(256, 128, 160), (33, 2048, 97), (1024, 64, 64), (40, 300, 512)]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An entry for each product of oneDNN."""
    made, plain = list[int](), products.onednn_linear
    monkeypatch.setattr(products, "onednn_linear", lambda *of: made.append(0) or plain(*of))
    return made


def close(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)


@needs_avx512
@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_blas_for_any_strides(case: Any, calls: list[int]) -> None:
    m, n, k = case
    torch.manual_seed(0)
    whole = torch.randn(3 * max(case), 3 * max(case))
    lefts = [whole[:m, :n], whole[:n, 1 : m + 1].mT, whole[:m, : 2 * n : 2]]
    rights = [whole[2 : n + 2, :k], whole[:k, :n].mT, whole[: 2 * n : 2, :k]]
    for left in lefts:
        for right in rights:
            close(matrix_product(left, right), left @ right)
            close(matrix_product(left.contiguous(), right.contiguous()), left @ right)
    assert len(calls) == 18


class Factors(TorchDispatchMode):
    """The right factors that oneDNN is given."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[torch.Tensor] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every call of torch."""
        if function == torch.ops.mkldnn._linear_pointwise.default:
            self.found.append(args[1])
        return function(*args, **(kwargs or {}))


@needs_avx512
@pytest.mark.parametrize("case", CASES)
def test_onednn_never_takes_its_reference_kernel(case: Any) -> None:
    """It does for right factors that are a part of each row of a matrix, hundreds of times slower."""
    m, n, k = case
    left, whole = torch.randn(m, n), torch.randn(2 * max(n, k), 2 * max(n, k))
    dense = [torch.randn(n, k), torch.randn(k, n).mT, whole[:n, :1].expand(n, k).contiguous()]
    parts = [whole[:n, 3 : k + 3], whole[:k, :n].mT, whole[: 2 * n : 2, :k], whole[:n, :1].expand(n, k)]
    with Factors() as factors:
        for right in [*dense, *parts]:
            matrix_product(left, right)
    assert all(each.is_contiguous() or each.mT.is_contiguous() for each in factors.found)
    pairs = zip(factors.found, [*dense, *parts], strict=True)
    copied = [each.untyped_storage()._cdata != right.untyped_storage()._cdata for each, right in pairs]
    assert copied == [False] * len(dense) + [True] * len(parts)
    with Factors() as factors:
        linear(left[:, ::2], whole[:k, : n // 2].requires_grad_(), None)
        linear(left, torch.randn(k, 2 * n)[:, n:].requires_grad_(), None).sum().backward()
    assert factors.found
    assert all(each.is_contiguous() or each.mT.is_contiguous() for each in factors.found)


@needs_avx512
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_torch(case: Any, bias: bool, calls: list[int]) -> None:
    m, n, k = case
    torch.manual_seed(0)
    shapes = [(m, n), (k, n), (k,)][: 3 if bias else 2]
    given = [torch.randn(shape, requires_grad=True) for shape in shapes]
    ours: Any = MatrixProduct.apply
    found, expected = ours(*given, *([] if bias else [None])), F.linear(*given)
    close(found, expected)
    dout = torch.randn(m, 1).expand(m, k)  # not contiguous
    pairs = zip(
        torch.autograd.grad(found, given, dout), torch.autograd.grad(expected, given, dout), strict=True
    )
    for one, other in pairs:
        close(one, other)
    assert len(calls) == 3


@needs_avx512
def test_gradients_have_gradients() -> None:
    torch.manual_seed(0)
    values, ker = (torch.randn(n, 128, requires_grad=True) for n in (256, 160))
    ours: Any = MatrixProduct.apply
    seconds = []
    for layer in (lambda: ours(values, ker, None), lambda: F.linear(values, ker)):
        (din,) = torch.autograd.grad(layer().pow(2).mean(), values, create_graph=True)
        seconds.append(torch.autograd.grad(din.pow(2).sum(), (values, ker)))
    for one, other in zip(*seconds, strict=True):
        close(one, other)


@needs_avx512
def test_what_it_is_not_for() -> None:
    left, right = torch.randn(256, 128), torch.randn(128, 160)
    assert suits_onednn(left, right)
    assert not suits_onednn(left[:120], right)  # less work
    assert not suits_onednn(left[:16].repeat(1, 64), right.repeat(64, 1))  # few rows
    assert not suits_onednn(left[:, :16].repeat(16, 1), right[:16])  # few terms
    assert not suits_onednn(left.double(), right.double())
    assert not suits_onednn(left[None], right)
    assert not suits_onednn(left, right.clone().requires_grad_())  # autograd would not see it
    with torch.no_grad():
        assert suits_onednn(left, right.clone().requires_grad_())
    with torch.autocast("cpu", torch.bfloat16):
        assert not suits_onednn(left, right)
        assert matrix_product(left, right).dtype == torch.bfloat16
    with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):
        assert not suits_onednn(left, right)
    recorded = right.clone().requires_grad_()
    matrix_product(left, recorded).sum().backward()
    assert recorded.grad is not None


@needs_avx512
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    "sizes", [(256, 512, 128), (1024, 2048, 1024), (64, 4096, 256), (33, 2048, 97), (512, 64, 600)]
)
def test_planning_knows_what_it_copies_on_one_thread(sizes: Any) -> None:
    b, c, k = sizes
    values, ker, dout = torch.randn(b, c), torch.randn(k, c), torch.randn(b, k)
    passes: dict[Pass, Any] = {
        "forward": lambda: matrix_product(values, ker.mT),
        "backward-data": lambda: matrix_product(dout, ker),
        "backward-filter": lambda: matrix_product(dout.mT, values),
    }
    for pass_, product in passes.items():
        planned = 4 * kernel_copies.copies_of_product(pass_, b, c, k, np.array([float(b * k)]))[0]
        copied = allocated(product).peak - 4 * product().numel()
        assert planned <= copied <= planned + 1024, pass_
