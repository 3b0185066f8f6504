"""Where the parameters of a network are held, if several steps use them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from synth.runtime.comm.layout import even
from synth.runtime.grid.ranks import Ranks
from synth.runtime.layers.planned_layer import PlannedLayer
from synth.runtime.layers.steps.expression import ExpressionStep
from synth.runtime.layers.steps.held import Held
from synth.runtime.layers.steps.homes import is_at_home
from synth.runtime.layers.steps.step import Step
from synth.runtime.rules.rule import is_trainable
from synth.runtime.tensor.partition import Partition

# words of a parameter from which on expressions gather it, instead of holding it whole
LARGE = 2**13
Uses = Mapping[str, list[tuple[str, Held]]]  # call -> (key, where its step uses it)


def first_names(model: nn.Module) -> dict[str, str]:
    """Name of a parameter or buffer -> its first name; tensors may have several."""
    found, first = {}, dict[int, str]()
    for each in (model.named_parameters, model.named_buffers):
        for name, values in each(remove_duplicate=False):
            found[name] = first.setdefault(id(values), name)
    return found


def homes(
    held: Uses,
    steps: Mapping[str, Step],
    tensors: Mapping[str, torch.Tensor],
    ranks: Ranks,
) -> dict[str, Held]:
    """Key of the state -> where it is held: as the first planned layer wants it.

    What expressions alone use is cut evenly if it is large; every rank has it whole
    otherwise. What no rank needs, for a result without words, is cut evenly, too.
    """
    uses: dict[str, list[tuple[Step, Held]]] = {}
    for call, pairs in held.items():
        for key, use in pairs:
            if key in tensors:
                uses.setdefault(key, []).append((steps[call], use))
    found = {}
    for key, each in uses.items():
        values = tensors[key]
        planned = [use for step, use in each if isinstance(step, PlannedLayer)]
        others = [use for step, use in each if not isinstance(step, ExpressionStep)]
        home = (planned + others + [use for _, use in each])[0]
        large = isinstance(values, nn.Parameter) and values.numel() >= LARGE
        place = home.partition
        lost = place is not None and place.layout.held_words < values.numel()
        if lost or (not planned and not others and large):
            place = Partition(even(values.shape, ranks))
            home = Held(home.module, home.name, place)
        if not is_trainable(values):  # whole on every rank
            home = Held(home.module, home.name, None)
        found[key] = home
    return found


def used_at_home(call: str, held: Uses, homes: Mapping[str, Held]) -> bool:
    """Whether a planned layer uses its weight as it is held."""
    return all(
        key in homes and is_at_home(use, homes[key])
        for key, use in held[call]
        if use.name == "weight"
    )
