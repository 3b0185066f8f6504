"""Calls on random layouts of six ranks, beside the call on the whole; no rank is started."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from synth.runtime.comm.layout import Layout
from synth.runtime.grid.boxes import Box, cut, volume, within
from synth.runtime.grid.ranks import AbsentRanks
from synth.runtime.kernels.context import Context
from synth.runtime.layers.steps.pulled import Pulled
from synth.runtime.operators.batch_norms import BatchNorms
from synth.runtime.operators.step_choice import choose_step
from synth.runtime.operators.table import Operators
from synth.runtime.rules.rule import Operand, Rule, is_trainable

RANKS = 6
Two = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Applied(nn.Module):
    """A function as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *operands: torch.Tensor) -> Any:
        """Of some tensors."""
        return self.function(*operands)


def random_layout(draws: random.Random, whole: tuple[int, ...]) -> Layout:
    """A grid of all ranks or of some, the others without words."""
    parts, left = list[int](), RANKS
    for _ in whole:
        parts.append(draws.choice([n for n in range(1, left + 1) if left % n == 0]))
        left //= parts[-1]
    boxes = list[Box]()
    for rank in range(RANKS):
        box, rest = list[tuple[int, int]](), rank
        for extent, n in zip(whole, parts, strict=True):
            box.append(cut((0, extent), n, rest % n))
            rest //= n
        boxes.append(((0, 0),) * len(whole) if rest else tuple(box))
    return Layout(whole, tuple(boxes), AbsentRanks.numbered(RANKS))


def read(operand: Operand, whole: torch.Tensor, me: int) -> torch.Tensor:
    """What a rank reads of an operand."""
    if isinstance(operand.reads, Layout):
        return whole[within(operand.reads.boxes[me], tuple((0, n) for n in whole.shape))]
    for dim, rows in enumerate(operand.reads.wanted[me]):
        whole = whole.index_select(dim, torch.tensor(rows, dtype=torch.int64))
    return whole


def step_of(call: Any, operators: Operators, sources: Mapping[Any, Layout], me: int) -> Any:
    """The step that a rank has for a call; None for one that it gathers."""
    ranks = AbsentRanks(tuple(range(RANKS)), me)
    given = {node: Layout(each.whole, each.boxes, ranks) for node, each in sources.items()}
    norms = BatchNorms(Context(), "global")
    return choose_step(call, operators.operator(call), given, lambda _: print, norms)


def rule_of(call: Any, operators: Operators, sources: Mapping[Any, Layout], me: int) -> Rule:
    """The rule that a rank has for a call."""
    step = step_of(call, operators, sources, me)
    assert isinstance(step, Pulled)
    return step.rule


def compare(
    call: Any, operators: Operators, sources: Mapping[Any, Layout], wholes: Sequence[torch.Tensor]
) -> None:
    """One call in one layout: every rank's box, and the gradients of all ranks added.

    wholes: the values of its operands.
    """
    generator = torch.Generator().manual_seed(0)
    for each in wholes:
        each.requires_grad_(is_trainable(each))
    result = call.filled(in_place=False)(*wholes)
    weights = torch.randn(result.shape, generator=generator, dtype=torch.float64)
    seen, total = torch.zeros(result.shape, dtype=torch.int64), torch.zeros((), dtype=torch.float64)
    for me in range(RANKS):
        rule = rule_of(call, operators, sources, me)
        made = rule.call(*(read(each, wholes[each.place], me) for each in rule.operands))
        mine = within(rule.out.mine, tuple((0, n) for n in result.shape))
        torch.testing.assert_close(made, result[mine])
        first = rule.out.boxes.index(rule.out.mine) == me or not volume(rule.out.mine)
        seen[mine] += first
        total = total + (made * weights[mine]).sum().real * first
    assert bool((seen == 1).all())
    if not is_trainable(result):
        return
    trained = [each for each in wholes if each.requires_grad]
    alone = torch.autograd.grad(
        (result * weights).sum().real, trained, retain_graph=True, materialize_grads=True
    )
    for one, other in zip(torch.autograd.grad(total, trained, materialize_grads=True), alone, strict=True):
        torch.testing.assert_close(one, other)
