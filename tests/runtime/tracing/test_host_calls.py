"""Shapes that are found by calls on the host are those of torch, or none where values decide them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from synth.runtime.tracing.host_calls import made_on_host
from synth.runtime.tracing.shape_only import made_of, without_values


def empty(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("function", "args", "shape"),
    [
        (torch.cov, (empty(4, 6),), (4, 4)),
        (torch.Tensor.cov, (empty(4, 6),), (4, 4)),
        (torch.corrcoef, (empty(4, 6),), (4, 4)),
        (torch.combinations, (empty(6), 3), (20, 3)),
    ],
)
def test_shapes_are_those_of_torch(function: Any, args: Any, shape: tuple[int, ...]) -> None:
    given = args[0].clone().requires_grad_()
    made = without_values(function, (given, *args[1:]), {})
    assert (made.shape, made.dtype, made.device.type) == (shape, torch.float64, "meta")
    assert made.requires_grad
    assert not without_values(function, args, {}).requires_grad


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (torch.masked_select, (empty(4, 6), empty(4, 6, dtype=torch.bool))),
        (torch.nonzero, (empty(4),)),
        (torch.unique, (empty(4),)),
        (torch.bincount, (empty(5, dtype=torch.int64),)),
        (torch.bincount, (empty(5, dtype=torch.int64), None, 4)),
        (torch.repeat_interleave, (empty(5, dtype=torch.int64),)),
        (torch.Tensor.item, (empty(),)),
        (torch.equal, (empty(3), empty(3))),
        (torch.linalg.inv, (empty(3, 4),)),  # which fails with any values
        (torch.cov, (empty(2, 2**24),)),  # too large to try
    ],
)
def test_what_values_decide_is_not_known(function: Any, args: Any) -> None:
    assert made_on_host(function, args, {}) is NotImplemented


def test_functions_without_a_kernel_are_called_on_the_host() -> None:
    counts, edges = made_of(torch.histogram, (empty(4, 6), 5), {})
    assert (counts.shape, edges.shape, counts.device.type) == ((5,), (6,), "meta")
    assert [tuple(each.shape) for each in made_of(torch.geqrf, (empty(4, 3),), {})] == [(4, 3), (3,)]
    for function in (torch.bincount, torch.Tensor.to_sparse):
        with pytest.raises(NotImplementedError):
            made_of(function, (empty(4).long(),), {})
