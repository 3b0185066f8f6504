"""Functions that are recorded as several calls give what they give in one, with all ways to be called."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import fx, nn

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


@pytest.mark.parametrize("method", [False, True])
@pytest.mark.parametrize("name", REDUCED)
def test_reductions_of_all_words(name: str, method: bool) -> None:
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))
    home: Any = torch.Tensor if method else torch
    compared = 0
    for args, kwargs in given():

        def call(y: torch.Tensor, args: Any = args, kwargs: Any = kwargs) -> Any:
            return getattr(home, name)(y, *args, **kwargs)

        try:
            right = call(x)
        except (TypeError, RuntimeError, IndexError, ValueError):
            continue
        if not isinstance(right, torch.Tensor):  # words and their places
            continue
        graph = traced(Calls(call), SHAPE, torch.float32)
        (found,) = fx.Interpreter(nn.Module(), graph=graph).run(x)
        assert (found.shape, found.dtype) == (right.shape, right.dtype), (args, kwargs)
        torch.testing.assert_close(found, right, msg=lambda said, at=(args, kwargs): f"{at}: {said}")
        compared += 1
    assert compared
