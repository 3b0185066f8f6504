"""Parameters of a model that was given to parallelize, and others."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from synth.runtime.model.live.optimizers import look_for_uses, require_gradients


def network() -> nn.Module:
    """Its weight has a gradient."""
    made = nn.Linear(2, 2)
    made.weight.grad = torch.ones(2, 2)
    return made


def test_parameters_without_the_gradients_of_their_network_are_refused() -> None:
    model, trained = nn.Linear(40, 40), network()
    look_for_uses(trained, model)
    with pytest.raises(
        ValueError, match=r"SGD has parameters of the model .*\(weight and 1 more\).*; use others"
    ):
        require_gradients(list(model.parameters()), "SGD", "use others")


def test_a_parameter_where_one_of_a_freed_model_was_is_another() -> None:
    """Python gives its number, and torch its memory, to the next parameter of the same size."""
    trained = network()
    gc.freeze()  # collections look at what is made from here on
    try:
        for _ in range(100):
            model = nn.Linear(40, 40, bias=False)
            look_for_uses(trained, model)
            del model
            gc.collect()
            require_gradients(list(nn.Linear(40, 40, bias=False).parameters()), "SGD", "use others")
    finally:
        gc.unfreeze()
