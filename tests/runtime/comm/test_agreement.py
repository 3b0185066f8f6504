"""Checksums by which ranks see that they were given other tensors."""

from __future__ import annotations

import pytest
import torch

from synth.runtime.comm.agreement import checksum


@pytest.mark.parametrize("values", [torch.randn(4, 3, 5), torch.tensor([3, 1, 0, 2])], ids=["image", "label"])
def test_samples_in_another_order_have_another_checksum(values: torch.Tensor) -> None:
    one, other = checksum(values), checksum(values[[1, 0, 2, 3]])
    assert one[1] == pytest.approx(other[1])
    assert abs(one[0] - other[0]) > 1e-4 * one[1]


def test_what_has_no_samples_has_a_checksum() -> None:
    assert checksum(torch.tensor(-3.0)) == (-3.0, 3.0)
    assert checksum(torch.zeros(0, 3)) == checksum(torch.zeros(0)) == (0.0, 0.0)
    assert checksum(torch.tensor([True, False])) == (1.0, 1.0)
