"""Values that do not depend on a network's input, and parts of them for its steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from typing import Any

import torch

from synth.runtime.comm.adjoint import with_adjoint
from synth.runtime.comm.layout import replicated
from synth.runtime.grid.boxes import within
from synth.runtime.grid.ranks import Ranks
from synth.runtime.layers.steps.draws import Draws
from synth.runtime.layers.steps.held import Held, declare
from synth.runtime.layers.steps.step import Step
from synth.runtime.rules.rule import is_trainable
from synth.runtime.tensor.partition import Partition


class ExpressionStep(Step):
    """A function of parameters, buffers and other expressions: whole on every rank.

    call: takes the tensors of `values`, whole. evaluated: the same in evaluation.
    values: name -> what is bound later.
    draws: whether it draws random numbers, alike on all ranks then.
    changes: the modes in which it changes a tensor in place; True is training.

    Each rank has a part of the gradient, so each gives a part of that of a parameter:
    the function is differentiated on every rank, and the parts are added.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        evaluated: Callable[..., Any],
        values: Mapping[str, torch.Tensor],
        ranks: Ranks,
        device: torch.device,
        draws: bool,
        shape: tuple[int, ...],
        changes: Collection[bool] = (),
    ) -> None:
        super().__init__()
        self.changes = changes
        self.call, self.evaluated, self.device = call, evaluated, device
        self.draws = Draws() if draws else None
        self.layout = replicated(shape, ranks)
        self.likes = dict(values)
        for name, like in values.items():
            declare(self, name, like)

    @property
    def changes_buffers(self) -> bool:
        """Whether it changes a tensor in its mode."""
        return self.training in self.changes

    def forward(self) -> torch.Tensor:
        """The whole value."""
        given = [getattr(self, name) for name in self.likes]
        call = self.call if self.training else self.evaluated
        with self.draws.alike(self.device) if self.draws else nullcontext():
            made = call(*given)
        nothing = torch.empty(0, device=self.device)  # of what changes a tensor only
        return made if isinstance(made, torch.Tensor) else nothing

    def held_tensors(self) -> dict[str, Held]:
        """All operands, whole; what is no number that can be trained is not cut."""
        ranks = self.layout.ranks
        everyone = tuple(range(ranks.size))
        return {
            name: Held(self, name, Partition(replicated(like.shape, ranks)), everyone)
            if is_trainable(like)
            else Held(self, name, None)
            for name, like in self.likes.items()
        }


def part_of(whole: torch.Tensor, held: Held) -> torch.Tensor:
    """What a step uses of an expression; its gradient is a part of the whole one."""
    place = held.partition
    if place is None or (place.replicated and not place.refined and held.copies):
        return whole
    shape = whole.shape

    def cut(values: torch.Tensor) -> torch.Tensor:
        return place.cut(values).clone(memory_format=torch.contiguous_format)

    def around(gradient: torch.Tensor) -> torch.Tensor:
        """Zero but for the own words. Over all ranks, every word is there once."""
        spread = gradient.new_zeros(place.layout.whole)
        spread[within(place.box, place.frame)] = counted_once(gradient, held)
        return spread.reshape(shape)

    return with_adjoint(whole, cut, around)


def counted_once(gradient: torch.Tensor, held: Held) -> torch.Tensor:
    """Parts of a gradient whose sum over all ranks is the whole gradient.

    Where a step gives every copy of a word its whole gradient, one copy counts.
    """
    place = held.partition
    assert place is not None
    if held.copies:
        return gradient
    part = torch.zeros_like(gradient)
    for box in place.counted:
        inside = within(box, place.box)
        part[inside] = gradient[inside]
    return part
