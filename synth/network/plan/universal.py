"""A lower bound of the words of any schedule of a network's layers, not of grids alone; see docs/bounds.md.

Bounds of layers add up where every activation has one owner between two layers, and no copy that one layer
received is kept for another.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

from synth.bounds.assumptions import SCHEDULES
from synth.bounds.surface import surface_bound, surface_words
from synth.bounds.training_step import training_bound
from synth.layer.passes import WRITES
from synth.network.grids.layer_class import LayerClass
from synth.schedule.distribution import Distribution

if TYPE_CHECKING:
    from synth.network.plan.plan import NetworkPlan

BETWEEN_LAYERS = "one owner of every activation between layers, no copies kept from one layer to the next"
RESIDENT = "weights may be everywhere"


def universal_words(plan: NetworkPlan) -> Fraction:
    """Words that a process receives at least, on average over the processes, in layers alone.

    No process does more multiply-adds of a layer than the most loaded one of the plan.
    """
    request, found = plan.request, Fraction(0)
    for kind, load in zip(plan.layer_classes, loads(plan), strict=True):
        found += _of_layer(kind, request.procs, load, request.training, request.resident_weights)
    return found


def loads(plan: NetworkPlan) -> list[int]:
    """The multiply-adds of the most loaded process, layer by layer, padding excluded."""
    found = []
    for kind, placed in zip(plan.layer_classes, plan.placed_grids, strict=True):
        most = Distribution(kind.nest.turn(placed.turned), placed.grid).most_real_work
        found.append(max(most, -(-kind.nest.real_work // plan.request.procs)))
    return found


def assumptions(plan: NetworkPlan) -> list[str]:
    """All that `universal_words` assumes, a phrase each."""
    return given(
        plan.request.resident_weights, "at most the work of this plan in any process, layer by layer"
    )


def given(resident: bool, work: str) -> list[str]:
    """The assumptions, with one about the work of a process."""
    once, owners, whole = SCHEDULES
    owners = owners.replace(", Ker and", " and") + f" ({RESIDENT})" if resident else owners
    return [once, owners, BETWEEN_LAYERS, whole, work, "any memory"]


@lru_cache(maxsize=4096)
def _of_layer(kind: LayerClass, procs: int, load: int, training: bool, resident: bool) -> Fraction:
    """The bound of one layer; of a training step with the slices that its passes share.

    Poolings have no weights. Their backward pass is not counted: a maximum sends what it sends.
    """
    nest = kind.nest
    halos = Fraction(surface_words(nest, procs, load), procs)
    if not kind.weighted or (resident and not training):
        return halos
    if not training:
        return Fraction(surface_bound(nest, procs, load))
    both = passes_between_layers(kind, training=True) * halos
    return max(both, Fraction(training_bound(nest, procs, load, kind.passes(training=True)).words))


def passes_between_layers(kind: LayerClass, training: bool) -> int:
    """The passes that write no weights: forward of activations, and backward of gradients.

    A pooling has no backward pass here: a maximum sends what it sends.
    """
    return sum(WRITES[pass_] != "Ker" for pass_ in kind.passes(training)) if kind.weighted else 1
