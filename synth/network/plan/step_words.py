"""The words that a rank receives in a step of a plan, by layer and in all."""

from __future__ import annotations

from synth.layer.axes import LACKS
from synth.network.grids.layer_class import LayerClass
from synth.network.grids.owned_boxes import OwnedBoxes, PlacedGrid
from synth.network.grids.whole_weights import slice_words
from synth.network.plan.plan import NetworkPlan


def moved_words(plan: NetworkPlan) -> int:
    """Those in layers and between them, and those of the gradients of whole weights."""
    moved = sum(plan.edge_words.values())
    for kind, placed, whole in zip(plan.layer_classes, plan.placed_grids, plan.whole, strict=True):
        moved += sum(words_by_tensor(kind, placed, plan, whole).values())
        sharing = placed.grid.of(LACKS["Ker"])
        moved += 2 * slice_words(kind.nest, placed.grid) * (sharing - 1) // sharing if whole else 0
    return moved


def words_by_tensor(
    layer_class: LayerClass, placed: PlacedGrid, plan: NetworkPlan, whole: bool
) -> dict[str, int]:
    """Tensor -> the most words of it that a rank receives. The ranks may differ, so their sum is a bound."""
    request = plan.request
    resident = request.resident_of(whole)
    boxes = OwnedBoxes(layer_class.nest.turn(placed.turned), [placed], request.procs, resident)
    _, words = boxes.words(layer_class.passes(request.training), layer_class.weighted, request.saves)
    return {tensor: int(words[tensor][0]) for tensor in ("in", "ker", "out")}
