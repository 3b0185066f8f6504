"""What a forward pass does beside calls with tensors is refused with its line."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from synth.runtime.tracing.trace import traced


class Descends(nn.Module):
    """Goes a step along the gradient of an energy."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        (slope,) = torch.autograd.grad(y.tanh().square().sum(), y, create_graph=True)
        return y - 0.1 * slope


class Maps(Descends):
    """Maps over rows of a parameter."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x).mean((2, 3))
        return torch.func.vmap(lambda row: torch.tanh(y * row))(self.conv.weight[:, :, 0, 0])


@pytest.mark.parametrize(
    ("model", "said"),
    [(Descends, "takes a gradient by torch.autograd.grad"), (Maps, "is transformed by torch.func")],
)
def test_gradients_and_transforms_in_forward_are_refused(model: type[nn.Module], said: str) -> None:
    with pytest.raises(ValueError, match=rf"forward {said}, .*\(test_gradients_in_forward.py:\d+\)"):
        traced(model(), (2, 4, 8, 8), torch.float32)
