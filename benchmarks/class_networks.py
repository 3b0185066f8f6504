"""Would residue classes pay in networks? `python benchmarks/class_networks.py --procs 4 16 64`.

Words that the most-receiving process receives in a network of dilated layers, planned twice: as
`synth.parallelize` plans it, and with the choice of a view for each layer (`benchmarks.class_views`). A view
has the residue classes of a dilation as samples. Between two views tensors are redistributed, and these words
count. Layers at the network's input and outputs are in no view, since these are the user's tensors.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from benchmarks.class_views import PLAIN, View, moved_between, viewed
from benchmarks.dilated_networks import NETWORKS, Dilated
from synth.layer.axes import TENSORS
from synth.network.edges.redistribution import EdgeEnd, cut_channels, redistribution_words, single_positions
from synth.network.file import parse_network
from synth.network.graph import Edge, Network
from synth.network.grids.box_rows import Array
from synth.network.grids.layer_class import LayerClass
from synth.network.grids.owned_boxes import OwnedBoxes
from synth.network.planner.candidates import GridCandidates
from synth.network.planner.options import LayerOption, options
from synth.network.request import NetworkRequest
from synth.network.solve import Table, solve

OPTIONS = 8  # grids per layer that are kept in a view because of their own words
NEVER = 1e15  # words of what cannot be done


@dataclass(frozen=True)
class Row:
    """Words without and with classes. inside: layers in views. changes: words that move between views."""

    plain: float
    classes: float
    inside: int
    layers: int
    changes: float

    def __str__(self) -> str:
        return (
            f"{self.plain:>12,.0f} {self.classes:>12,.0f} {self.classes / max(1.0, self.plain):6.3f}  "
            f"{self.inside} of {self.layers} layers in views, {self.changes:,.0f} words between views"
        )


class Study:
    """Plans of one network over options of several views. All lists are by layer, or by class of layers."""

    def __init__(self, network: Network, request: NetworkRequest, views: tuple[View, ...]) -> None:
        self.network, self.request, self.nodes = network, request, network.planned
        self.at = {node.name: i for i, node in enumerate(self.nodes)}
        kinds = [LayerClass.of(n, network.needs_input_gradient(n)) for n in self.nodes]
        self.kinds = list(dict.fromkeys(kinds))
        self.kind_of = [self.kinds.index(kind) for kind in kinds]
        self.ends: dict[tuple[int, View], EdgeEnd] = {}
        self.rows: list[list[tuple[View, LayerOption]]] = [[] for _ in self.kinds]
        for view in (PLAIN, *views):
            self._add(view)

    def _add(self, view: View) -> None:
        """The options of all layers that have a view."""
        nests = [viewed(kind.nest, view) for kind in self.kinds]
        has = [k for k, nest in enumerate(nests) if nest is not None and not self.kinds[k].rows]
        has = list(range(len(nests))) if view == PLAIN else has
        kinds = [replace(self.kinds[k], nest=nests[k] or self.kinds[k].nest) for k in has]
        candidates = [GridCandidates(kind, self.request) for kind in kinds]
        beside = [[has.index(other) for other in self._beside[k] if other in has] for k in has]
        found = options(candidates, beside, self.request)
        for k, kind, row in zip(has, kinds, found, strict=True):
            self.rows[k] += [(view, option) for option in row]
            boxes = OwnedBoxes(kind.nest, [option.placed for option in row], self.request.procs)
            self.ends[k, view] = EdgeEnd(kind, boxes)

    @cached_property
    def _beside(self) -> list[set[int]]:
        found: list[set[int]] = [set() for _ in self.kinds]
        for edge in self.network.edges:
            one, other = (self.kind_of[self.at[name]] for name in (edge.source, edge.target))
            found[one].add(other)
            found[other].add(one)
        return found

    @cached_property
    def tables(self) -> dict[Edge, Table]:
        """Edge -> words by (option of its source, option of its target); equal edges are priced once."""
        known: dict[tuple[object, ...], Table] = {}
        found = {}
        for edge in self.network.edges:
            ends = tuple(self.kind_of[self.at[name]] for name in (edge.source, edge.target))
            back = self.request.sends_gradient_back(edge)
            key = (*ends, back, replace(edge, source="", target=""), self.network.end_shapes(edge))
            if key not in known:
                known[key] = self._table(edge, back)
            found[edge] = known[key]
        return found

    def _table(self, edge: Edge, back: bool) -> Table:
        ends = [self.kind_of[self.at[name]] for name in (edge.source, edge.target)]
        has = [[view for other, view in self.ends if other == k] for k in ends]
        return np.block([[self._words(edge, (one, two), back) for two in has[1]] for one in has[0]])

    def _words(self, edge: Edge, views: tuple[View, View], back: bool) -> Array:
        """The words of an edge between the options of two views."""
        names = edge.source, edge.target
        source, target = (
            self.ends[self.kind_of[self.at[name]], view] for name, view in zip(names, views, strict=True)
        )
        single = single_positions(self.network, edge)
        moves = any(single) or edge.moves_rows or edge.source_path or edge.target_path
        if views[0] == views[1] and (views[0] == PLAIN or not moves):
            return redistribution_words(edge, source, target, single=single, back=back)
        reads = target.layer_class.input_tensor if edge.role == "in" else target.layer_class.output_tensor
        have, want = source.rows(source.layer_class.output_tensor), target.rows(reads)
        shape = self.nodes[self.at[edge.source]].shape
        extents = (shape[0], *[1] * (5 - len(shape)), *shape[2:])
        read = [window.size for window in target.layer_class.nest.undivided.windows.values()]
        if moves or (edge.role == "in" and read != list(extents[1:])):
            return np.full((have.spans[0].shape[1], want.spans[0].shape[1]), NEVER)
        parts = [(each.source, each.target, each.count) for each in edge.channels]
        pairs = [cut_channels(have, want, part) for part in parts] or [(have, want)]
        moved = (moved_between(one.spans, two.spans, views, extents, back) for one, two in pairs)
        words: Array = np.sum(list(moved), axis=0)
        return words

    def row(self) -> Row:
        """The fewest words without and with views."""
        plain, _ = self._solved((PLAIN,))
        classes, chosen = self._solved(None)
        views = [self.rows[k][option][0] for k, option in zip(self.kind_of, chosen, strict=True)]
        changes = 0.0
        for edge, table in self.tables.items():
            one, two = self.at[edge.source], self.at[edge.target]
            changes += float(table[chosen[one], chosen[two]]) if views[one] != views[two] else 0
        return Row(plain, classes, sum(view != PLAIN for view in views), len(views), changes)

    def _solved(self, views: tuple[View, ...] | None) -> tuple[float, list[int]]:
        """(words, option per layer) of the best choice within some views, None for all."""
        sources, targets = zip(*((edge.source, edge.target) for edge in self.network.edges), strict=True)
        kept, costs = [], []
        for node, k in zip(self.nodes, self.kind_of, strict=True):
            allowed = views if node.name in sources and node.name in targets else (PLAIN,)
            kept.append([i for i, (view, _) in enumerate(self.rows[k]) if not allowed or view in allowed])
            costs.append(np.array([self.rows[k][i][1].cost for i in kept[-1]], dtype=np.float64))
        pairs: dict[tuple[int, int], Table] = {}
        for edge, table in self.tables.items():
            one, two = self.at[edge.source], self.at[edge.target]
            part = table[np.ix_(kept[one], kept[two])].astype(np.float64)
            if one == two:
                costs[one] = costs[one] + np.diag(part)
            else:
                pairs[one, two] = pairs[one, two] + part if (one, two) in pairs else part
        found = solve(costs, pairs)
        return found.cost, [own[option] for own, option in zip(kept, found.chosen, strict=True)]


def rows(name: str, case: Dilated, procs: list[int], modes: list[str]) -> Iterator[str]:
    """A line per number of processes and mode."""
    network = parse_network(case.text, name)
    for mode in modes:
        training = mode == "training"
        saves = frozenset(TENSORS) if training else frozenset({"Out"})
        for count in procs:
            request = NetworkRequest(
                count,
                training=training,
                resident_weights=not training,
                saves=saves,  # type: ignore[arg-type]
                input_gradient=False,
                exact_procs=True,
                options_per_layer=OPTIONS,
            )
            yield f"{name:24} {mode:9} {count:4} {Study(network, request, case.views).row()}"


def main() -> None:
    """Print a line per network, number of processes and mode."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--procs", nargs="+", type=int, default=[4, 16, 64])
    parser.add_argument(
        "--modes", nargs="+", choices=("inference", "training"), default=["inference", "training"]
    )
    args = parser.parse_args()
    print(f"{'network':24} {'mode':9} {'P':>4} {'words':>12} {'with classes':>12} {'ratio':>6}")
    for name in args.networks:
        for line in rows(name, NETWORKS[name], args.procs, args.modes):
            print(line, flush=True)


if __name__ == "__main__":
    main()
