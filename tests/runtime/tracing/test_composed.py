"""Functions that are recorded as several calls give what they give in one, with all ways to be called."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.nn import functional

from synth.runtime.rules.pointwise import LOSSES
from synth.runtime.tracing.composed import REDUCED
from synth.runtime.tracing.trace import traced

SHAPE = 3, 4, 5
BY_PLACE: list[tuple[Any, ...]] = [
    *[
        (),
        (None,),
        (0,),
        (1,),
        (2,),
        (True,),
        (False,),
        ((0, 1, 2),),
        ([0, 1, 2],),
        ((),),
        ("fro",),
        ("nuc",),
    ],
    *[
        (None, False),
        (None, True),
        ((0, 1, 2), False),
        ((0, 1, 2), True),
        (2, None),
        (2, None, True),
        (1, False),
    ],
    *[(2, (0, 1, 2)), ("fro", (1, 2)), ((1, 2), False, True), (float("inf"),)],
]
BY_NAME: dict[str, list[Any]] = {
    "dim": [None, 0, (0, 1, 2), (1, 2), ()],
    "keepdim": [False, True],
    "unbiased": [False, True],
    "correction": [0, 1, 2, None],
    "dtype": [None, torch.float64, torch.float32],
    "p": [1, 2, "fro", float("inf")],
}


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


class Calls(nn.Module):
    def __init__(self, call: Any) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: torch.Tensor) -> Any:
        return self.call(x * 1.0)


def given() -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    named = [{name: value} for name, values in BY_NAME.items() for value in values]
    pairs = itertools.combinations(named, 2)
    both = [{**one, **other} for one, other in pairs if one.keys() != other.keys()]
    return [*((args, {}) for args in BY_PLACE), *(((), each) for each in named + both)]


def same(call: Any, x: torch.Tensor, at: Any) -> bool:
    """Compare a call with the calls that are recorded of it; False for one that torch refuses."""
    try:
        right = call(x * 1.0)
    except (TypeError, RuntimeError, IndexError, ValueError):
        return False
    if not isinstance(right, torch.Tensor):  # words and their places
        return False
    graph = traced(Calls(call), tuple(x.shape), x.dtype)
    (found,) = fx.Interpreter(nn.Module(), graph=graph).run(x)
    assert (found.shape, found.dtype) == (right.shape, right.dtype), at
    near = {} if x.dtype == torch.float32 else {"rtol": 0.05, "atol": 0.02}  # what is rounded in between
    torch.testing.assert_close(found, right, equal_nan=True, msg=lambda said: f"{at}: {said}", **near)
    return True


def cast(kwargs: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    return {name: v.to(dtype) if isinstance(v, torch.Tensor) else v for name, v in kwargs.items()}


@DTYPES
@pytest.mark.parametrize("method", [False, True])
@pytest.mark.parametrize("name", REDUCED)
def test_reductions_of_all_words(name: str, method: bool, dtype: torch.dtype) -> None:
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1)).to(dtype)
    home: Any = torch.Tensor if method else torch
    compared = 0
    for args, kwargs in given():

        def call(y: torch.Tensor, args: Any = args, kwargs: Any = kwargs) -> Any:
            return getattr(home, name)(y, *args, **kwargs)

        compared += same(call, x, (args, kwargs))
    assert compared


PLAIN: dict[str, list[Any]] = {
    "reduction": ["none", "mean", "sum", "batchmean"],
    "size_average": [False],
    "reduce": [False],
    "weight": [torch.rand(SHAPE), torch.rand(5)],
    "pos_weight": [torch.rand(5)],
    "delta": [0.3],
    "beta": [0.0, 0.3],
    "log_target": [True],
}
LABELS: dict[str, list[Any]] = {
    "reduction": ["none", "mean", "sum"],
    "weight": [torch.rand(4)],
    "ignore_index": [2],
    "label_smoothing": [0.2],
    "size_average": [False],
}


def settings(table: dict[str, list[Any]], most: int) -> list[dict[str, Any]]:
    """None, one, or several of them."""
    found: list[dict[str, Any]] = [{}]
    for number in range(1, most + 1):
        for names in itertools.combinations(table, number):
            values = itertools.product(*(table[name] for name in names))
            found += [dict(zip(names, each, strict=True)) for each in values]
    return found


@DTYPES
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(LOSSES))
def test_losses_of_words(name: str, dtype: torch.dtype) -> None:
    x, compared, loss = torch.rand(SHAPE).to(dtype), 0, getattr(functional, name)
    for target in (torch.rand(SHAPE).to(dtype), torch.rand(4, 1).to(dtype)):
        for each in settings(PLAIN, 3 if dtype == torch.float32 else 2):
            kwargs = cast(each, dtype)
            old = kwargs.keys() & {"size_average", "reduce"}
            if kwargs.get("reduction") == "batchmean" and old and "weight" in kwargs:
                continue  # refused

            def call(y: torch.Tensor, target: Any = target, kwargs: Any = kwargs) -> Any:
                return loss(y, target, **kwargs)

            compared += same(call, x, kwargs)
    assert compared >= 5


@DTYPES
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["cross_entropy", "nll_loss"])
def test_losses_of_classes(name: str, dtype: torch.dtype) -> None:
    x, compared, loss = torch.rand(SHAPE).to(dtype), 0, getattr(functional, name)
    for target in (torch.randint(0, 4, (3, 5)), torch.rand(SHAPE).softmax(1).to(dtype)):
        for each in settings(LABELS, 3 if dtype == torch.float32 else 2):
            kwargs = cast(each, dtype)

            def call(y: torch.Tensor, target: Any = target, kwargs: Any = kwargs) -> Any:
                return loss(y, target, **kwargs)

            compared += same(call, x, kwargs)
    assert compared >= 5
