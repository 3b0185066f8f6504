"""Normalizations and resizings that are traced by their shape give what torch gives without values."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from synth.runtime.tracing.shape_only import without_values


def made(by_shape: bool, shape: tuple[int, ...], training: bool, held: bool, graded: bool) -> list[object]:
    """Facts of the result, and how often each statistic was changed."""
    x = torch.empty(shape, device="meta", requires_grad=graded)
    mean, var = (torch.zeros(shape[1], device="meta") for _ in range(2))
    weight = torch.ones(shape[1], device="meta", requires_grad=True) if graded else None
    args = (x, mean, var) if held else (x, None, None)
    kwargs = {"weight": weight, "training": training, "momentum": 0.1}
    if by_shape:
        result = without_values(functional.batch_norm, args, kwargs)
    else:
        result = functional.batch_norm(*args, **kwargs)
    assert result is not NotImplemented
    assert result is not x
    return [result.shape, result.dtype, result.requires_grad, mean._version > 0, var._version > 0]


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 5), (2, 3, 4, 5), (2, 3, 4, 5, 6)])
@pytest.mark.parametrize(("training", "held"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("graded", [True, False])
def test_shapes_and_changes_are_those_of_torch(
    shape: tuple[int, ...], training: bool, held: bool, graded: bool
) -> None:
    assert made(True, shape, training, held, graded) == made(False, shape, training, held, graded)


def test_what_torch_may_refuse_is_left_to_it() -> None:
    x = torch.empty(2, 3, 4, 4, device="meta")
    few, half = torch.zeros(2, device="meta"), torch.zeros(3, device="meta", dtype=torch.float16)
    for args in (
        (x, few, few),
        (x, half, half),
        (x, None, None),
        (x[0, 0, 0], None, None),
        (x.int(), None, None),
    ):
        assert without_values(functional.batch_norm, args, {}) is NotImplemented
    trained = {"weight": nn.Parameter(torch.zeros(3, device="meta")), "training": True}
    assert without_values(functional.batch_norm, (x, None, None), trained) is NotImplemented
    assert without_values(functional.relu, (x,), {}) is NotImplemented
    single = torch.empty(1, 3, 1, 1, device="meta")
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        without_values(functional.batch_norm, (single, None, None), {"training": True})


@pytest.mark.parametrize("shape", [(4, 6), (2, 6, 5), (2, 6, 4, 5), (1, 6, 4, 5, 6)])
@pytest.mark.parametrize("graded", [True, False])
def test_group_norms_have_the_shapes_of_torch(shape: tuple[int, ...], graded: bool) -> None:
    x = torch.empty(shape, device="meta", requires_grad=graded)
    weight = torch.ones(6, device="meta", requires_grad=graded)
    for args in ((x, 2), (x, 3, weight), (x, 1, weight, weight)):
        found, wanted = without_values(functional.group_norm, args, {}), functional.group_norm(*args)
        facts = [[each.shape, each.dtype, each.requires_grad, each is x] for each in (found, wanted)]
        assert facts[0] == facts[1]


def test_other_group_norms_are_left_to_torch() -> None:
    x, few = torch.empty(2, 6, 4, device="meta"), torch.zeros(2, device="meta")
    trained = nn.Parameter(torch.zeros(6, device="meta"))
    for args in ((x, 4), (x, 2, few), (x, 2, trained), (x.int(), 2), (x[0, 0], 1), (x[:, :, 0], 6)):
        assert without_values(functional.group_norm, args, {}) is NotImplemented


@pytest.mark.parametrize(("mode", "dims"), [("linear", 1), ("bilinear", 2), ("bicubic", 2), ("trilinear", 3)])
@pytest.mark.one_in(2)
def test_resizings_have_the_shapes_of_torch(mode: str, dims: int) -> None:
    x = torch.empty((2, 3, 5, 7, 6)[: 2 + dims], device="meta", dtype=torch.float64, requires_grad=True)
    for kwargs in (
        {"size": 4},
        {"size": (11, 3, 8)[:dims], "align_corners": True},
        {"scale_factor": 2, "align_corners": False},
        {"scale_factor": (1.7, 0.6, 2.3)[:dims]},
        {"scale_factor": 1.7, "recompute_scale_factor": True},
    ):
        found = without_values(functional.interpolate, (x,), {**kwargs, "mode": mode})
        wanted = functional.interpolate(x, **kwargs, mode=mode)
        facts = [[each.shape, each.dtype, each.requires_grad] for each in (found, wanted)]
        assert facts[0] == facts[1]


def test_other_resizings_are_left_to_torch() -> None:
    x = torch.empty(2, 3, 4, 4, device="meta")
    for given, kwargs in (
        (x, {"size": 3}),
        (x, {"size": 3, "mode": "area"}),
        (x, {"size": 3, "mode": "linear"}),
        (x, {"size": 3, "mode": "bilinear", "antialias": True}),
        (x.to(torch.uint8), {"size": 3, "mode": "bilinear"}),
    ):
        assert without_values(functional.interpolate, (given,), kwargs) is NotImplemented
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert without_values(functional.interpolate, (x,), {"size": 3, "mode": "bilinear"}) is NotImplemented
