"""The step of a rule: brings together what a rank reads, and calls torch on it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from synth.runtime.comm.exchanges import Exchange
from synth.runtime.comm.redistribute import Count
from synth.runtime.layers.steps.replicated_params import ReplicatedParams
from synth.runtime.layers.steps.step import Step
from synth.runtime.rules.rule import Rule


class Pulled(Step):
    """An operator of which a rule says what each rank reads and calls.

    counts: of the words that are received of each operand. module: the parameters that
    the call takes behind the operands.
    """

    def __init__(
        self,
        rule: Rule,
        counts: Count | Sequence[Count],
        module: ReplicatedParams | None = None,
    ) -> None:
        super().__init__()
        self.rule, self.layout, self.module = rule, rule.out, module
        each = counts if isinstance(counts, Sequence) else [counts] * len(rule.operands)
        self.takes = len({operand.place for operand in rule.operands})
        self.plan = [
            (operand.place, None if operand.stays else operand, count)
            for operand, count in zip(rule.operands, each, strict=True)
        ]

    @property
    def changes_buffers(self) -> bool:
        """A rule computes a result from what it reads, and changes nothing."""
        return False

    def forward(self, *shards: torch.Tensor) -> torch.Tensor:
        """The own box of the result."""
        here = [
            shards[place] if moved is None else moved.brought(shards[place], count)
            for place, moved, count in self.plan
        ]
        params = () if self.module is None else self.module.all()
        return self.rule.call(*here, *params)

    def exchanges(self) -> list[Exchange]:
        """What is brought together, and the gradients of parameters."""
        found = super().exchanges()
        for operand in self.rule.operands:
            found += operand.exchanges()
        return found
