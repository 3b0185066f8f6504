"""The words that a rank receives in a step of a plan, by layer and in all."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import TYPE_CHECKING

from synth.layer.axes import LACKS, TENSORS
from synth.network.grids.layer_class import LayerClass
from synth.network.grids.owned_boxes import OwnedBoxes, PlacedGrid, slice_words
from synth.runtime.grid.rules.shared_rounds import all_reduced
from synth.schedule.distribution import Distribution
from synth.schedule.volume import received

if TYPE_CHECKING:
    from synth.network.plan.plan import NetworkPlan
    from synth.search.tiling_search import TilingChoice


def moved_words(plan: NetworkPlan) -> int:
    """Those in layers and between them, of fetched rows, and of the gradients of whole weights."""
    moved, covered = sum(plan.edge_words.values()), frozenset[str]()
    if plan.margins is not None:
        moved, covered = moved + plan.margins.cost, plan.margins.layers
    names = (node.name for node in plan.network.planned)
    rows = zip(names, plan.layer_classes, plan.placed_grids, plan.tilings, plan.whole, strict=True)
    for name, kind, placed, tiling, whole in rows:
        words = words_by_tensor(kind, placed, tiling, plan, whole, name in covered)
        moved += sum(words.values())
        if whole:
            moved += all_reduced(slice_words(kind.nest, placed.grid), placed.grid.of(LACKS["Ker"]))
    return moved


def words_by_tensor(
    layer_class: LayerClass,
    placed: PlacedGrid,
    tiling: TilingChoice,
    plan: NetworkPlan,
    whole: bool,
    covered: bool = False,
) -> dict[str, int]:
    """Tensor -> the most words of it that a rank receives. The ranks may differ, so their sum is a bound.

    Within a limit of memory, tiles may receive the same words again: there the passes are counted. covered:
    whether the layer has margins. Then its rows count with these, and the gradients of all copies of its
    weights are added at their owners, and return: as many words as shards gather once, and sum.
    """
    request = plan.request
    nest, resident = layer_class.nest.turn(placed.turned), request.resident_of(whole)
    if request.limit_bytes is not None and layer_class.weighted and not covered:
        distribution = Distribution(nest, placed.grid, resident=resident, ghosts=False)
        tiled = reduce(add, (received(distribution, each) for each in tiling.pass_plans)).most()
        return {tensor: tiled[tensor] for tensor in ("in", "ker", "out")}
    boxes = OwnedBoxes(nest, [placed], request.procs, resident)
    saves = frozenset(TENSORS) if covered else request.saves
    _, words = boxes.words(layer_class.passes(request.training), layer_class.weighted, saves)
    moved = ("ker",) if covered else ("in", "ker", "out")
    return dict.fromkeys(("in", "ker", "out"), 0) | {tensor: int(words[tensor][0]) for tensor in moved}
