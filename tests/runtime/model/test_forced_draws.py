"""Masks that a dropout may have drawn."""

from __future__ import annotations

import torch

from synth.runtime.model.self_check.forced_draws import could_be


def test_a_mask_has_the_scale_and_the_share_of_another() -> None:
    def mask(p: float, seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return torch.nn.functional.dropout(torch.ones(4, 6, 8, 8), p)

    assert could_be(mask(0.5, 0), mask(0.5, 1))
    assert not could_be(mask(0.5, 0), mask(0.1, 1))
    assert not could_be(mask(0.5, 0), 2 * mask(0.5, 1))


def test_one_word_that_is_dropped_does_not_tell_the_scale() -> None:
    assert could_be(torch.tensor(0.0), torch.tensor(2.0))
    assert could_be(torch.tensor(2.0), torch.tensor(0.0))
