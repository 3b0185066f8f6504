"""The step of a rule: brings together what a rank reads, and calls torch on it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from synth.runtime.comm.exchanges import Exchange
from synth.runtime.comm.redistribute import Count
from synth.runtime.layers.steps.replicated_params import ReplicatedParams
from synth.runtime.layers.steps.step import Step
from synth.runtime.rules.rule import Operand, Rule


class Pulled(Step):
    """An operator of which a rule says what each rank reads and calls.

    counts: of the words that are received of each operand. module: the parameters that
    the call takes behind the operands. before: how the only operand is moved first, to
    where the plan has it before the step, and the counter of these words.
    """

    def __init__(
        self,
        rule: Rule,
        counts: Count | Sequence[Count],
        module: ReplicatedParams | None = None,
        before: tuple[Operand, Count] | None = None,
    ) -> None:
        super().__init__()
        self.rule, self.layout, self.module = rule, rule.out, module
        self.before = before
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
        if self.before is not None:
            operand, count = self.before
            shards = (operand.brought(shards[0], count),)
        here = [
            shards[place] if moved is None else moved.brought(shards[place], count)
            for place, moved, count in self.plan
        ]
        params = () if self.module is None else self.module.all()
        return self.rule.call(*here, *params)

    @property
    def is_local(self) -> bool:
        """Whether every rank reads rows of its own alone, and no parameters."""
        moved = [each for _, each, _ in self.plan if each is not None]
        plain = self.module is None and self.before is None
        return plain and all(each.in_own_rows for each in moved)

    @property
    def takes_views(self) -> bool:
        """Whether `local` calls torch on parts of what it is given."""
        return any(moved is not None for _, moved, _ in self.plan)

    def local(self, *shards: torch.Tensor) -> torch.Tensor:
        """What `forward` gives, of views of what it reads, for a local step."""
        here = [
            shards[place] if moved is None else moved.own_rows(shards[place])
            for place, moved, _ in self.plan
        ]
        made: torch.Tensor = self.rule.call(*here)
        return made

    def exchanges(self) -> list[Exchange]:
        """Those of parameters, of the move before the rule, and of the rule."""
        first = self.before[0].exchanges() if self.before else []
        return super().exchanges() + first + self.rule.exchanges()
