"""The self-check takes gradients that are zero but for rounding for what they are, by dtype."""

from __future__ import annotations

import pytest
import torch

from synth.runtime.model.self_check.compare import MOST, differences
from synth.runtime.model.self_check.passes import Pass


@pytest.mark.parametrize(
    ("dtype", "noise"), [(torch.bfloat16, 2e-2), (torch.float16, 3e-3), (torch.float32, 1e-5)]
)
def test_biases_before_a_normalization_have_gradients_of_rounding(dtype: torch.dtype, noise: float) -> None:
    weight = torch.linspace(-1, 1, 9).to(dtype)
    right, ours = (
        Pass({}, {"weight": weight, "bias": sign * noise * torch.ones(3, dtype=dtype)}, {})
        for sign in (1, -1)
    )
    assert not list(differences(ours, right, MOST))
    ours.gradients["bias"] = torch.full((3,), 0.3, dtype=dtype)
    ours.gradients["weight"] = weight * 1.3
    assert [each.name for each in differences(ours, right, MOST)] == ["weight", "bias"]
