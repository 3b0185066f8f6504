"""States that cannot be loaded are refused in one sentence before anything is copied."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from synth.runtime.model.state_dict import check_state

OWN = {"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (None, "the state is a NoneType; give a dict of tensors"),
        ([("weight", 1)], "the state is a list; give a dict of tensors"),
        ({}, r"it lacks weight of shape \(2, 3\)"),
        ({**OWN, "bias": None}, r"its bias is a NoneType, the model's a tensor of shape \(2,\)"),
        ({**OWN, "bias": [1.0, 2.0]}, "its bias is a list"),
        ({**OWN, "bias": torch.zeros(2).numpy()}, "its bias is a ndarray"),
        ({**OWN, "bias": torch.zeros(3)}, r"its bias has the shape \(3,\), the model's \(2,\)"),
        ({**OWN, 3: torch.zeros(2)}, "it has 3, which the model lacks"),
        (
            {**OWN, "weight": torch.zeros(2, 3).to_sparse()},
            "weight of the state is of the layout torch.sparse",
        ),
        (
            {**OWN, "bias": torch.zeros(2, dtype=torch.complex64)},
            "bias of the state is of the dtype torch.complex64",
        ),
        ({**OWN, "bias": torch.zeros(2, device="meta")}, "bias of the state is on the device meta"),
    ],
)
def test_what_is_no_state_is_refused(state: Any, said: str) -> None:
    with pytest.raises(RuntimeError, match=said) as caught:  # as torch says it
        check_state(state, OWN)
    assert isinstance(caught.value, ValueError)


def test_other_real_dtypes_are_copied_as_torch_does() -> None:
    state = {"weight": torch.ones(2, 3, dtype=torch.int64), "bias": torch.ones(2, dtype=torch.float64)}
    assert check_state(state, OWN).keys() == OWN.keys()
