"""Training or inference: the two modes of `parallelize` and `plan_model`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synth.base.errors import UsageError
from synth.network.request import check_recompute

if TYPE_CHECKING:
    from torch import nn

MODES = ("training", "inference")


def check_mode(mode: str) -> None:
    """Raises `UsageError` for an unknown mode."""
    if mode not in MODES:
        raise UsageError(f"mode is {mode!r}; it must be {' or '.join(MODES)}")


def require_no_plan(recompute: float | None, plan: object) -> None:
    """Raises `UsageError` for rows that are computed twice where that is not planned here."""
    if recompute is not None:
        check_recompute(recompute)
    if recompute and plan is not None:
        raise UsageError(
            f"recompute={recompute} is for a plan that is made here, but one is given; leave out one of both"
        )


def require_evaluation(model: nn.Module) -> None:
    """Raises `UsageError` for a model that is about to be trained."""
    if model.training and any(p.requires_grad for p in model.parameters()):
        raise UsageError(
            f"mode is inference, but {type(model).__name__} is in training mode with parameters that require "
            "gradients; call model.eval() first"
        )
