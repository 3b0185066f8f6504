"""Arguments by which a call's result has a gradient, as torch says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from synth.runtime.operators.gradient_paths import gradient_paths
from synth.runtime.operators.table import Operators
from synth.runtime.tracing.inputs import Inputs
from synth.runtime.tracing.trace import traced


class Two(nn.Module):
    """A call of the model with two inputs of (4, 6), a parameter and a module of two inputs."""

    def __init__(self, call: Callable[[Any, torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        self.call, self.weight, self.inner = [call], nn.Parameter(torch.ones(6)), nn.Bilinear(6, 6, 3)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> Any:
        return self.call[0](self, a, b)


def hinge(m: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return functional.hinge_embedding_loss(a * m.weight, b)


CALLS: dict[str, tuple[Callable[[Any, torch.Tensor, torch.Tensor], Any], set[str] | None]] = {
    "a loss has none by its labels": (hinge, {"mul"}),
    "products of all pairs have one by both": (lambda m, a, b: torch.kron(a, b), {"a", "b"}),
    "a function without derivative": (lambda m, a, b: torch.histc(a, 3), set()),
    "a module, by its parameters too": (
        lambda m, a, b: m.inner(a, b),
        {"a", "b", "inner.weight", "inner.bias"},
    ),
    "moments of a batch norm": (
        lambda m, a, b: torch.native_batch_norm(a, m.weight, b[0], None, None, True, 0.1, 1e-5)[1],
        set(),
    ),
    "a function that looks at values": (lambda m, a, b: torch.corrcoef(a), None),
}


@pytest.mark.parametrize("name", CALLS)
def test_paths_are_those_of_autograd(name: str) -> None:
    call, right = CALLS[name]
    model = Two(call).double()
    graph = traced(model, Inputs((4, 6), (4, 6)), torch.float64)
    operators = Operators(dict(model.named_modules()), dict(model.named_parameters()))
    calls = (operators.call(node) for node in graph.nodes if node.op.startswith("call"))
    gathered = [each for each in calls if operators.operator(each).kind == "gathered"]
    assert [gradient_paths(each) for each in gathered] == [right]
