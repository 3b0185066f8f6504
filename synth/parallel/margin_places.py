"""The boxes of every value of a model, where its ranks compute rows that others own."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from synth.base.errors import UsageError
from synth.network.grids.box_rows import Array
from synth.network.margins.boxes import hull, reads
from synth.network.margins.row_graph import row_graph
from synth.network.margins.walk import Walked, walk
from synth.parallel.layer_plans import LayerPlans

if TYPE_CHECKING:
    from torch import fx

    from synth.parallel.front_end.trace_model import TracedModel
    from synth.runtime.model.margins import MarginPlace

Boxes = tuple[tuple[tuple[int, int], ...], ...]


def margin_places(traced: TracedModel, plans: LayerPlans, ranks: int) -> dict[str, MarginPlace]:
    """Node of the graph -> its boxes; none for a plan without margins.

    Raises `UsageError` for margins of another network: of names that it lacks, or that move other words.
    """
    if plans.margins is None:
        return {}
    network = traced.network
    graph = row_graph(network, [plans.placed[node.name] for node in network.planned], ranks)
    covered = {name for name, tensor in graph.items() if tensor.covered and not tensor.joined}
    strange = [name for name in plans.margins if name not in covered]
    missing = [name for name in graph if name in covered and name not in plans.margins]
    walked = walk(graph, plans.margins)
    words = sum(int(walked.fetched(name).max()) for name in graph)
    if strange or missing or words != plans.fetched:
        name = (strange or missing or [network.name])[0]
        raise UsageError(
            f"the plan has margins of rows for another network: at {name} this model differs, and would fetch"
            f" {words:,} words, not {plans.fetched:,}; plan this model"
        )
    return _Places(traced.graph, walked, plans.whole).found()


class _Places:
    """The boxes of the nodes of a graph, from those of the tensors whose values they have.

    whole: the layers of which buckets sum the gradients of weights.
    """

    def __init__(self, graph: fx.Graph, walked: Walked, whole: frozenset[str]) -> None:
        self.nodes, self.walked, self.whole = list(graph.nodes), walked, whole
        self.joined: dict[fx.Node, Array] = {}  # a concatenation -> what its reader needs
        names = walked.graph
        self.tensor = {n: names[name] for n in self.nodes if (name := n.meta.get("tensor", "")) in names}

    def found(self) -> dict[str, MarginPlace]:
        """Node -> its boxes."""
        for node in reversed(self.nodes):
            if node in self.tensor and self.tensor[node].joined:
                self._join(node)
        places: dict[str, MarginPlace] = {}
        seen = set[str]()
        for node, tensor in self.tensor.items():
            made = self._joined_place(node) if tensor.joined else self._place(node, tensor.name not in seen)
            seen.add(tensor.name)
            if made is not None:
                places[node.name] = made
        return places

    def _join(self, node: fx.Node) -> None:
        """Note what is needed of a concatenation, or of words in its places; nothing for other readers."""
        needs = list[Array]()
        for user in node.users:
            reader = self.tensor.get(user)
            if reader is None or not reader.covered or user.op == "output":
                return
            if reader is self.tensor[node]:
                if user not in self.joined:
                    return
                needs.append(self.joined[user])
            else:
                made = self.walked.boxes[reader.name].computed
                needs.append(reads(made, reader.windows, self.tensor[node].shape))
        if needs:
            self.joined[node] = reduce(hull, needs)

    def _joined_place(self, node: fx.Node) -> MarginPlace | None:
        boxes = self.joined.get(node)
        return None if boxes is None else _place_of(node, boxes, boxes, boxes, True)

    def _place(self, node: fx.Node, first: bool) -> MarginPlace | None:
        """first: whether the node is the first with its value; others give words of it in their places."""
        tensor, (need, computed) = self.tensor[node], self.walked.boxes[node.meta["tensor"]]
        if not first:
            need = computed = hull(need, computed)
        if not tensor.covered and not need.any():
            return None
        whole = str(node.meta.get("layer")) in self.whole
        return _place_of(node, tensor.own, need, computed, tensor.covered or not first, whole)


def _place_of(
    node: fx.Node, own: Array, need: Array, computed: Array, covered: bool, in_buckets: bool = False
) -> MarginPlace:
    from synth.runtime.model.margins import MarginPlace

    dims = [0, 1, *range(7 - len(node.meta["value"].shape), 5)]
    owned, needed, made = (_by_rank(each[dims]) for each in (own, need, computed))
    return MarginPlace(owned, needed, made, covered, in_buckets)


def _by_rank(boxes: Array) -> Boxes:
    """By rank, an interval per dimension."""
    return tuple(tuple((low, high) for low, high in box) for box in boxes.transpose(2, 0, 1).tolist())
