"""Which calls that every rank computes may draw random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from synth.runtime.model.build import _may_draw
from synth.runtime.operators.table import Operators
from synth.runtime.tracing.inputs import Inputs
from synth.runtime.tracing.trace import traced

CALLS: dict[str, tuple[Callable[[torch.Tensor], Any], bool]] = {
    "rows by numbers": (lambda x: x[x.argmax(1)], False),
    "a loss of labels": (lambda x: functional.cross_entropy(x, x.argmax(1)), False),
    "a function of torch": (lambda x: torch.kron(x, x), False),
    "resizing": (lambda x: functional.interpolate(x.view(1, 1, 4, 6), size=5, mode="bicubic"), False),
    "classes": (lambda x: functional.one_hot(x.argmax(1), 6), False),
    "random pooling": (lambda x: functional.fractional_max_pool2d(x.view(1, 1, 4, 6), 2, 2), True),
    "drawn numbers": (lambda x: x + torch.bernoulli(x.sigmoid()), True),
    "dropout": (lambda x: functional.alpha_dropout(x, 0.5, training=True), True),
}


class One(nn.Module):
    def __init__(self, call: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.call = [call]

    def forward(self, x: torch.Tensor) -> Any:
        return self.call[0](x)


@pytest.mark.parametrize("name", CALLS)
def test_only_calls_that_draw_may_draw(name: str) -> None:
    call, draws = CALLS[name]
    graph, operators = traced(One(call), Inputs((4, 6)), torch.float64), Operators({}, {})
    calls = [operators.call(node) for node in graph.nodes if node.op == "call_function"]
    gathered = [each for each in calls if operators.operator(each).kind == "gathered"]
    assert gathered
    assert any(map(_may_draw, gathered)) is draws
