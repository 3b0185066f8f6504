"""A lower bound of the words of any schedule of a network's layers, not of grids alone; see docs/bounds.md.

Bounds of layers add up where every activation has one owner between two layers, and no copy that one layer
received is kept for another.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from synth.bounds.assumptions import SCHEDULES
from synth.bounds.surface import surface_bound, surface_words
from synth.bounds.training_step import training_bound
from synth.network.grids.layer_class import LayerClass
from synth.schedule.distribution import Distribution

if TYPE_CHECKING:
    from synth.network.plan.plan import NetworkPlan

BETWEEN_LAYERS = "one owner of every activation between layers, no copies kept from one layer to the next"
RESIDENT = "weights may be everywhere"


def universal_words(plan: NetworkPlan) -> float:
    """Words that a process receives at least, on average over the processes, in layers alone.

    No process does more multiply-adds of a layer than the most loaded one of the plan.
    """
    request, found = plan.request, 0.0
    for kind, placed in zip(plan.layer_classes, plan.placed_grids, strict=True):
        if kind.weighted:
            load = Distribution(kind.nest.turn(placed.turned), placed.grid).most_real_work
            found += _of_layer(kind, request.procs, load, request.training, request.resident_weights)
    return found


def assumptions(plan: NetworkPlan) -> list[str]:
    """All that `universal_words` assumes, a phrase each."""
    once, owners, whole = SCHEDULES
    owners = (
        owners.replace(", Ker and", " and") + f" ({RESIDENT})" if plan.request.resident_weights else owners
    )
    work = "at most the work of this plan in any process, layer by layer"
    return [once, owners, BETWEEN_LAYERS, whole, work, "any memory"]


@lru_cache(maxsize=4096)
def _of_layer(kind: LayerClass, procs: int, load: int, training: bool, resident: bool) -> float:
    """The bound of one layer; of a training step with the slices that its passes share."""
    nest = kind.nest
    load = max(load, -(-nest.real_work // procs))
    if training:
        return training_bound(nest, procs, load, kind.passes(training=True)).words
    return surface_words(nest, procs, load) / procs if resident else surface_bound(nest, procs, load)
