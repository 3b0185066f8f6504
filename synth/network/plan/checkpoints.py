"""Words that move again in the backward pass, because the model checkpoints parts of itself.

A region of `torch.utils.checkpoint` is computed again before its backward pass. The forward words of its
layers and batch normalizations, and of the redistributions into them, then move again; in a region of a
region, twice more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from synth.layer.nest import Nest
from synth.network.edges.redistribution import EdgeEnd, redistribution_words, single_positions
from synth.network.graph import Edge, Network
from synth.network.grids.owned_boxes import OwnedBoxes, PlacedGrid
from synth.network.plan.statistics import recomputed_statistics

if TYPE_CHECKING:
    from synth.network.plan.plan import NetworkPlan


def recomputed_words(plan: NetworkPlan) -> int:
    """Words per process and training step, each layer's by the process that receives most."""
    if not plan.request.training or not any(node.region for node in plan.network.nodes.values()):
        return 0
    rows = zip(plan.network.planned, plan.layer_classes, plan.placed_grids, strict=True)
    boxes = {
        node.name: (kind, _boxes(plan, kind.nest.turn(placed.turned), placed)) for node, kind, placed in rows
    }
    total = recomputed_statistics(plan)
    for node in plan.network.planned:
        kind, owned = boxes[node.name]
        if node.region:
            words, _ = owned.words(kind.passes(training=False), kind.weighted)
            total += len(node.region) * int(words[0])
    for edge, times in _times(plan.network).items():
        if times and edge in plan.edge_words:
            single = single_positions(plan.network, edge)
            pair = EdgeEnd(*boxes[edge.source]), EdgeEnd(*boxes[edge.target])
            total += times * int(redistribution_words(edge, *pair, single=single, back=False)[0, 0])
    return total


def _boxes(plan: NetworkPlan, nest: Nest, placed: PlacedGrid) -> OwnedBoxes:
    return OwnedBoxes(nest, [placed], plan.request.procs)


def _times(network: Network) -> dict[Edge, int]:
    """Edge -> how often its words move again: as often as the layer, or the sum, that reads them."""
    sums: dict[tuple[str | None, str | None], int] = {}
    for node in network.nodes.values():
        if node.kind in ("add", "mul"):
            for name in node.inputs[1:]:
                for source in network.parts[name]:
                    for target in network.parts[node.name]:
                        key = source.node, target.node
                        sums[key] = max(sums.get(key, 0), len(node.region))
    return {
        edge: len(network.nodes[_reader(edge)].region)
        if edge.role == "in" or edge.moves_rows
        else sums.get((edge.source, edge.target), 0)
        for edge in network.edges
    }


def _reader(edge: Edge) -> str:
    """The node that reads what an edge moves."""
    return edge.target_path[-1].name if edge.moves_rows else edge.target
