"""What autograd saves while a network is made or compared, whatever hooks are around."""

from __future__ import annotations

import weakref

import pytest
import torch

from synth.parallel.self_check.check import check
from synth.runtime.model.undisturbed import undisturbed

CPU = torch.device("cpu")


def made(changed: bool) -> torch.Tensor:
    values = torch.arange(6.0, requires_grad=True).reshape(2, 3).sigmoid()
    if changed:
        values[0] = values[0] * 2 - 0.5
    return values


def test_a_change_in_place_of_what_a_gradient_needs_is_refused() -> None:
    """torch itself does not look where hooks keep a tensor; a self-check would compare wrong gradients."""
    with undisturbed(CPU):
        torch.autograd.backward(made(False).sum())
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.backward(made(True).sum())


def test_an_output_does_not_keep_itself() -> None:
    with undisturbed(CPU):
        values = made(False)
        gone = weakref.ref(values)
        del values
    assert gone() is None


class Decoded(torch.nn.Module):
    """Boxes of a detector, which change in place what a gradient needs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x).sigmoid()
        y[:, 0:2] = y[:, 0:2] * 2 - 0.5
        return y


def test_a_model_that_one_process_cannot_train_is_not_called_wrong() -> None:
    with undisturbed(CPU):
        found = check(Decoded().eval(), (2, 3, 8, 8))
    assert "modified by an inplace operation" in str(found)
