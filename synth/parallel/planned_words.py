"""Words of whole passes, planned: what the steps of a model would exchange on ranks that do not run.

The steps are made as `parallelize` makes them, for ranks without process groups. Each says its exchanges
from its layouts. So group norms, calls whose boxes are cut anew, and gathered calls are part of the plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from synth.base.errors import UsageError
from synth.layer.axes import AXES, strides
from synth.network.plan.calls import MOST_RANKS
from synth.planning.plan import Plan
from synth.schedule.volume import received

if TYPE_CHECKING:
    from torch import nn

    from synth.runtime.comm.exchanges import Words
    from synth.runtime.grid.ranks import AbsentRanks
    from synth.runtime.model.assemble import NetworkParts
    from synth.runtime.model.planned_words import PlannedWords


def words_of_layer(plan: Plan) -> tuple[Words, Words]:
    """Words that each rank receives in the first pass of a layer, and in all others."""
    steps, grid, ranks = strides(plan.grid, plan.order), plan.grid, np.arange(plan.procs)
    at = tuple(ranks // steps[axis] % getattr(grid, axis) for axis in AXES)
    each = [received(plan.distribution, pass_plan).total[at] for pass_plan in plan.pass_plans]
    busy = ranks < grid.size
    forward = np.where(busy, each[0], 0)
    later = np.where(busy, sum(each[1:], start=np.zeros_like(each[0])), 0)
    return tuple(forward.tolist()), tuple(later.tolist())


def require_few(procs: int) -> None:
    """Raises `UsageError` for more ranks than steps are made for."""
    if procs > MOST_RANKS:
        raise UsageError(
            f"words of all calls are planned for up to {MOST_RANKS} ranks, but the plan is for {procs};"
            " plan fewer, or take cost and statistics_words"
        )


def planned_words(model: nn.Module, parts: NetworkParts, ranks: AbsentRanks, asked: bool) -> PlannedWords:
    """What the ranks of a model receive in a forward pass, or in a training step; nothing is sent.

    asked: whether the inputs require gradients, too.
    """
    from synth.runtime.comm.process_groups import ProcessGroups
    from synth.runtime.model.assemble import assembled
    from synth.runtime.model.planned_words import float_inputs, words_of

    graph = assembled(model, parts, ProcessGroups(ranks))
    if parts.inference:
        return words_of(graph, ())
    trained = {name for name, values in model.named_parameters() if values.requires_grad}
    return words_of(graph, trained, float_inputs(graph) if asked else ())
