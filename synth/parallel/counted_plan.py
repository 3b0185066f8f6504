"""Plans of a model beside each other, by the words of all its calls.

The planner knows what layers receive, and what moves between them. Calls such as attention, or the frames
that a film's decoder keeps, cut their operands anew. What they move follows from the grids of the layers
around them, and only the steps of the model count it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator
from dataclasses import replace

from synth.base.errors import InfeasibleError
from synth.layer.axes import SPATIAL
from synth.machine.collectives import exchange_seconds
from synth.machine.rank_groups import split_over
from synth.network.plan.plan import NetworkPlan
from synth.network.plan.step_words import moved_words
from synth.network.planner.planner import plan_network
from synth.runtime.operators.alike_positions import ATTENTION

UNSEEN = "gathered", "reindex", "softmax"  # kinds of calls that may cut operands anew
SEEN = 0.9  # where the smaller of two costs, the planner's and that with all calls, is more of the other


def least_counted(plan: NetworkPlan) -> NetworkPlan:
    """The plan, or one that cuts fewer axes, if that costs less with the words of all calls.

    plan: of a model whose words are counted (`NetworkPlan.words_of`); others are returned as they are. So is
    one that its user limited to some axes, or of which the planner sees what all calls cost (`SEEN`).
    Attention of one sample does not count there: it gathers the same words on all grids. The result keeps the
    request, and the bound of all plans.
    """
    request, nodes = plan.request, plan.network.nodes.values()
    if request.procs == 1 or request.axes or not plan.counted:
        return plan
    if not any(node.kind in UNSEEN for node in nodes):
        return plan
    try:
        best, least = plan, cost_of_all(plan)
    except ValueError:  # which the steps of the model raise again, where they are made
        return plan
    alone = plan.network.input[0] == 1
    attention = {node.name for node in nodes if alone and node.name.startswith(ATTENTION)}
    differing = cost_of_all(plan, attention)
    if SEEN * differing <= plan.cost <= differing / SEEN:
        return plan
    for axes in _fewer_axes(plan):
        try:
            other = plan_network(plan.network, replace(request, axes=axes, strict_axes=False))
        except InfeasibleError:
            continue
        made = replace(other, request=request, lower_bound=plan.lower_bound, words_of=plan.words_of)
        cost = cost_of_all(made)
        if cost < least:
            best, least = made, cost
    return best


def cost_of_all(plan: NetworkPlan, but: Collection[str] = ()) -> float:
    """Words that the busiest rank receives in all calls; or seconds, with those of what only steps count.

    but: calls of which no words count.
    """
    calls = {name: words for name, words in plan.words.calls.items() if name not in but}
    most = replace(plan.words, calls=calls).most
    if plan.timed is None:
        return most
    request = plan.request
    assert request.machine is not None
    beside = sum(words for cause, words in plan.words_beside.items() if cause != "calls")
    size = max(0, most - moved_words(plan) - beside) * plan.word_bytes
    return plan.cost + exchange_seconds(request.machine, size, split_over(request.machine, request.procs))


def _fewer_axes(plan: NetworkPlan) -> Iterator[str]:
    """One or two spatial axes that most layers can divide among all processes, and the samples with them."""
    procs, layers = plan.request.procs, [each.nest.extents for each in plan.layer_classes]

    def usable(axes: str) -> bool:
        rows: list[list[int]] = [[getattr(each, axis) for axis in axes] for each in layers]
        return 2 * sum(min(each) > 1 and math.prod(each) >= procs for each in rows) > len(layers)

    pairs = map("".join, itertools.combinations(SPATIAL, 2)) if procs > 3 else ()
    for axes in filter(usable, (*SPATIAL, *pairs)):
        yield axes
        if plan.network.input[0] > 1:
            yield f"b{axes}"
