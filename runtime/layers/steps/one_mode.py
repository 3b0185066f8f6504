"""Steps that are made in training or in evaluation only; what steps read of modules."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from synth.runtime.comm.exchanges import Exchange, moved
from synth.runtime.comm.layout import Layout
from synth.runtime.comm.redistribute import Count, redistribute
from synth.runtime.grid.boxes import shape
from synth.runtime.layers.steps.gathered_step import GatheredStep
from synth.runtime.layers.steps.held import Held
from synth.runtime.layers.steps.step import Step


class InOneMode(Step):
    """A step that the model makes in one mode only. In the other it passes a value on.

    mode: in which it computes. place: of that value among the arguments; None if nobody
    reads the result in the other mode. source: where the value lies, and the counter of
    the words that move if the result lies elsewhere.
    """

    def __init__(
        self,
        inner: Step,
        mode: bool,
        place: int | None,
        source: tuple[Layout, Count] | None,
    ) -> None:
        super().__init__()
        self.inner, self.mode, self.place, self.source = inner, mode, place, source
        self.layout = inner.layout

    def forward(self, *shards: torch.Tensor) -> torch.Tensor:
        """The shard of the result, or of the value that is passed on."""
        if not self.passes:
            result: torch.Tensor = self.inner(*shards)
            return result
        if self.place is None or self.source is None:
            like = shards[0] if shards else torch.empty(())
            # no words that memory had before: outputs and checks look at them
            return like.new_zeros(shape(self.layout.mine))
        layout, count = self.source
        return redistribute(shards[self.place], layout, self.layout, count)

    def held_tensors(self) -> dict[str, Held]:
        """What the inner step uses."""
        return self.inner.held_tensors()

    def reads_back(self, name: str, trained: bool) -> bool:
        """What the inner step reads."""
        return self.inner.reads_back(name, trained)

    def reads_inputs(self, trained: bool) -> bool:
        """Whether the inner step reads them."""
        return self.inner.reads_inputs(trained)

    @property
    def changes_buffers(self) -> bool:
        """Whether the inner step may, and runs."""
        return not self.passes and self.inner.changes_buffers

    @property
    def passes(self) -> bool:
        """Whether the step computes nothing in its mode."""
        return self.training != self.mode

    def exchanges(self) -> list[Exchange]:
        """Those of the inner step, or of the value that is passed on."""
        if not self.passes:
            return self.inner.exchanges()
        if self.place is None or self.source is None:
            return []
        return moved(self.source[0], self.layout, self.place)


def follow(step: Step, own: nn.Module, maker: nn.Module) -> None:
    """Let a step train or evaluate as modules do, with the settings that they have.

    own: the module that the step stands for; that in which the call is made for a
    function. maker: the module in which the call is made.
    """
    if isinstance(step, InOneMode):
        step.training, step = maker.training, step.inner
    mode = step.trains.get(own.training, own.training)
    if isinstance(step, GatheredStep):  # its arguments have the mode of the call
        step.training = maker.training
        for each, its in _alike(step.plain, own):
            each.training = its.training
    elif step.training != mode:
        step.train(mode)
    for name in step.settings:
        setattr(step.module, name, getattr(own, name))


def _alike(
    plain: nn.Module | None, own: nn.Module
) -> Iterable[tuple[nn.Module, nn.Module]]:
    """The modules of an empty copy, each with the user's."""
    if plain is None:
        return ()
    return zip(plain.modules(), own.modules(), strict=True)
