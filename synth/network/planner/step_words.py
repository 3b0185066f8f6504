"""The words that a rank receives in a step of a plan, by which plans of nearly equal seconds are compared."""

from __future__ import annotations

from synth.layer.axes import LACKS
from synth.network.planner.plan import NetworkPlan
from synth.network.planner.plan_json import words_by_tensor
from synth.network.planner.resident_weights import slice_words


def moved_words(plan: NetworkPlan) -> int:
    """Those in layers and between them, and those of the gradients of whole weights."""
    moved = sum(plan.edge_words.values())
    for kind, placed, whole in zip(plan.layer_classes, plan.placed_grids, plan.whole, strict=True):
        moved += sum(words_by_tensor(kind, placed, plan, whole).values())
        sharing = placed.grid.of(LACKS["Ker"])
        moved += 2 * slice_words(kind.nest, placed.grid) * (sharing - 1) // sharing if whole else 0
    return moved
