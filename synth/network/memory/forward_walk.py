"""The forward pass of a network, node by node: values that live, and what is saved for the backward pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from synth.layer.axes import Tensor
from synth.network.graph import Node, kernel_words
from synth.network.memory.layer_words import LayerWords
from synth.network.memory.margin_words import MarginWords
from synth.network.memory.timeline import Part, Storage, Timeline, Words
from synth.network.step_time.buckets import LARGEST

if TYPE_CHECKING:
    from synth.network.plan.plan import NetworkPlan

INDEX_BYTES = 8  # of the place of a maximum


@dataclass
class Record:
    """What the backward pass of one node needs."""

    node: Node
    saved: Sequence[Storage | Part] = ()


@dataclass
class RegionRecord:
    """A region that is computed again: its nodes, and its inputs, which are held."""

    nodes: list[Node]
    inputs: dict[str, Storage]


Tape = list[Record | RegionRecord]


def _layers(plan: NetworkPlan) -> dict[str, LayerWords]:
    """Layer -> its words, which layers of one shape share that are cut alike."""
    alike: dict[object, LayerWords] = {}
    found = {}
    decided = plan.layer_classes, plan.placed_grids, plan.tilings, plan.whole
    for node, kind, placed, tiling, whole in zip(plan.network.planned, *decided, strict=True):
        key = kind, node.kind, node.in_shape, node.shape, node.bias, placed, tiling, whole
        if key not in alike:
            alike[key] = LayerWords(
                *(node, kind, placed, tiling, plan.request.procs),
                plan.request.resident_of(whole),
                plan.request.computed_on,
            )
        found[node.name] = alike[key]
    return found


class ForwardWalk:
    """A forward pass of a network: what it holds, and a tape of what it saves.

    values: node -> its value. own: node -> words of its value in the layout of the node.
    entered: layers whose input is redistributed. joined: (source, first operand) of redistributed operands.
    """

    def __init__(self, plan: NetworkPlan, training: bool, ahead: int) -> None:
        self.plan, self.network, self.training = plan, plan.network, training
        self.layers = _layers(plan)
        moved = [edge for edge, words in plan.edge_words.items() if words > 0]
        self.entered = {edge.target for edge in moved if edge.role == "in"}
        self.joined = {(edge.source, edge.target) for edge in moved if edge.role == "out"}
        self.ranks = next(iter(self.layers.values())).ranks
        self.nothing: Words = np.zeros(self.ranks)
        self.margins = MarginWords(plan)
        self.timeline = Timeline(self.ranks)
        self.values: dict[str, Storage] = {}
        self.last: set[str] = set()  # the values that the node which is computed is the last to read
        self.own: dict[str, Words] = {}
        self.again: set[str] | None = None  # the nodes of a region that is computed again
        self.weights = sum((self.parameters(node) for node in self.network.nodes.values()), self.nothing)
        weighted = (node for node in plan.network.planned if node.weighted)
        self.weighted = [node.name for node in weighted if not self.margins.covers(node)]
        self.pooled: Words = self._messages(ahead if training else 0)
        self.pooled = self.pooled + self._bucket()
        self.prefetches = self._prefetches(ahead)
        self.prefetched: dict[str, Storage] = {}  # slices of Ker on their way

    def _messages(self, ahead: int) -> Words:
        """Words of messages: those of a layer, while sums of dKer of some layers behind it are in flight."""
        most, layers = self.nothing, [self.layers[name] for name in self.weighted]
        for place, layer in enumerate(layers):
            behind = layers[place + 1 : place + 1 + ahead]
            most = np.maximum(most, sum((each.deferred for each in behind), layer.pooled(self.training)))
        return most

    def _bucket(self) -> Words:
        """Words of the gradients of whole weights that are copied into one message."""
        pairs = zip(self.layers.values(), self.plan.whole, strict=True)
        whole = sum((layer.own("Ker") for layer, each in pairs if each), self.nothing)
        return np.minimum(whole, LARGEST // self.plan.word_bytes) if self.training else self.nothing

    def _prefetches(self, ahead: int) -> dict[str, list[str]]:
        """Layer -> the layers whose slices of Ker start to arrive before it computes."""
        found: dict[str, list[str]] = {name: [] for name in self.weighted}
        for place, name in enumerate(self.weighted if ahead else []):
            if place:
                found[self.weighted[max(0, place - ahead)]].append(name)
        return found

    def parameters(self, node: Node) -> Words:
        """Words of the parameters of a node, of which a rank holds those of its channels."""
        if node.name in self.layers:
            layer = self.layers[node.name]
            return (self._kernel(node) if node.weighted else self.nothing) + layer.bias
        (part, *_) = self.network.parts[node.name]
        if part.node is None:
            return self.nothing + node.trained
        share = self.layers[part.node].channels / max(1, self.network.nodes[part.node].shape[1])
        return np.asarray(share * node.trained + self.nothing)

    def _kernel(self, node: Node) -> Words:
        """Words of its weights that a rank has: of a layer with margins all."""
        if (
            node.layer is not None
            and not node.tied
            and self.plan.request.training
            and self.margins.covers(node)
        ):
            return self.nothing + kernel_words(node.layer)
        return self.layers[node.name].own("Ker")

    # -- several nodes ----------------------------------------------------------------------------------

    def forward(self, nodes: list[Node], keep: set[str], depth: int) -> Tape:
        """Compute some nodes, and free each value after its last reader among them, but for `keep`."""
        tape: Tape = []
        readers = {name: node.name for node in nodes for name in node.inputs}
        last_of = {reader: [n for n, r in readers.items() if r == reader] for reader in set(readers.values())}
        groups = _groups(nodes, depth if self.training else None)
        for region, group in groups:
            names = {node.name for node in group}
            if region:
                inputs = {i: self.values[i] for node in group for i in node.inputs if i not in names}
                tape.append(RegionRecord(group, {name: each.hold() for name, each in inputs.items()}))
                later = {name for name in names if readers.get(name) not in names or name in keep}
                outside = [n for n in nodes if n.name not in names]
                later |= {i for node in outside for i in node.inputs if i in names}
                later &= {*readers} | keep
                for each in self.forward(group, later | {*inputs}, depth + 1):  # inputs are freed below
                    release(each)
                for node in group:
                    self._free(last_of.get(node.name, []), names, keep)
                continue
            for node in group:
                self.last = {name for name in last_of.get(node.name, []) if name not in keep}
                tape.append(Record(node, self._compute(node)))
                self._fetch(node.name)
                if node.name not in readers and node.name not in keep:
                    self.values.pop(node.name).free()
                self._free(last_of.get(node.name, []), set(), keep)
        return tape

    def _free(self, names: list[str], done: set[str], keep: set[str]) -> None:
        for name in names:
            if name not in keep and name not in done and name in self.values:
                self.values.pop(name).free()

    # -- one node ---------------------------------------------------------------------------------------

    def _compute(self, node: Node) -> Sequence[Storage | Part]:
        """Compute a node's value; gives what its backward pass needs."""
        inputs = [self.values[name] for name in node.inputs]
        if self.margins.covers(node):
            return self._compute_covered(node, inputs)
        if node.name in self.layers:
            return self._compute_layer(node, self.layers[node.name])
        if is_alias(node):
            self.own[node.name] = self.own[node.inputs[0]]
            self.values[node.name] = inputs[0].hold()
            return []
        self.own[node.name] = own = self._own(node)
        if node.kind == "gathered":
            return self._compute_divided(node, own) if node.divided else self._compute_gathered(node, own)
        moved = [self.timeline.new(own) for n in node.inputs[1:] if self._moves(n, node)]
        made = self.values[node.name] = self.timeline.new(own)
        for each in moved:
            each.free()
        return self._saved(node, inputs, made) if self.training else []

    def _saved(self, node: Node, inputs: list[Storage], made: Storage) -> Sequence[Storage | Part]:
        """What the backward pass of an operation on words needs."""
        match node.saves if node.known.saves == "own" else "in" if node.maximum else node.known.saves:
            case "in":
                return [each.hold() for each in inputs]
            case "out":
                return [made.hold()]
            case "mask":
                return [self.timeline.new(made.words / self.plan.word_bytes)]
        return []

    def _compute_covered(self, node: Node, inputs: list[Storage]) -> Sequence[Storage | Part]:
        """A node with margins computes its box from the rows that it holds of its inputs."""
        self.own[node.name] = self.margins.own(node.name)
        if is_alias(node):
            self.values[node.name] = inputs[0].hold()
            return []
        computed, kept = self.margins.computed(node.name), list[Storage | Part]()
        if node.name not in self.layers:
            made = self.values[node.name] = self.timeline.new(computed)
            return self._saved(node, inputs, made) if self.training else []
        padded = self.margins.padded(node, node.inputs[0])
        wide = self.timeline.new(padded)
        if node.weighted:
            self.timeline.brief(self.copied(node, 0) + computed)
        self.values[node.name] = self.timeline.new(computed)
        maximum = node.kind == "pool" and node.saves == "in"
        places = computed * (INDEX_BYTES / self.plan.word_bytes if maximum else 0)
        if self.training and (node.weighted or node.kind == "pool"):
            kept = [wide.hold(), inputs[0].hold_on(padded == 0), self.timeline.new(places)]
        elif len(node.shape) > 3:
            self.timeline.brief(places)
        wide.free()
        return kept

    def copied(self, node: Node, pass_: int) -> Words:
        """Words that a kernel copies for the computed rows: as for the own ones, in proportion."""
        layer, own = self.layers[node.name], self.margins.own(node.name)
        more = np.divide(self.margins.computed(node.name), own, out=self.nothing + 1, where=own > 0)
        return layer.copies(layer.tiling.pass_plans[pass_]) * more

    def _fetch(self, name: str) -> None:
        """Rows of others that readers with margins need of a value, beside what is computed."""
        if self.margins.is_fetched(name) and name in self.values:
            made, (received, sent) = self.values[name], self.margins.messages(name)
            held = self.timeline.new(self.margins.held(name))
            self.timeline.brief(received + sent)
            self.values[name] = held
            made.free()

    def _own(self, node: Node) -> Words:
        """Words of a value in the layout of its node."""
        if node.divided == "joined":
            return sum((self.own[name] for name in node.inputs), self.nothing)
        now, before = 1, 1
        if node.kind == "cat":
            first = self.network.nodes.get(node.inputs[0])
            now, before = node.shape[1], first.shape[1] if first else self.network.input[1]
        elif node.known.moves:
            now, before = node.out_words, node.in_words
        if node.kind == "gathered" or before == 0:  # cut evenly, also what comes of no words
            return self.nothing + -(-node.out_words // self.plan.request.procs)
        return self.own[node.inputs[0]] * now / before

    def _compute_gathered(self, node: Node, own: Words) -> Sequence[Storage | Part]:
        """Every rank brings the whole inputs together, computes all, and keeps a part."""
        whole = [self.timeline.new(self.nothing + self._whole(name)) for name in node.inputs]
        self.timeline.brief(node.out_words)
        self.values[node.name] = self.timeline.new(own)
        if self.training:
            return whole
        for each in whole:
            each.free()
        return []

    def _compute_divided(self, node: Node, own: Words) -> Sequence[Storage | Part]:
        """Each rank computes its part; of a product from slices of the operands, which it brings together."""
        inputs = [self.values[name] for name in node.inputs]
        moved = []
        if node.divided == "product":
            procs = self.plan.request.procs
            blocks = min(procs, math.prod(node.shape[:-2]))  # that read slices of their own
            parts = [procs, *[max(1, blocks)] * (len(inputs) - 1)]
            sizes = [-(-self._whole(name) // n) for name, n in zip(node.inputs, parts, strict=True)]
            moved = [self.timeline.new(self.nothing + size) for size in sizes]
        made = self.values[node.name] = self.timeline.new(own)
        if self.training and node.divided != "joined":
            saved = [made.hold()] if node.saves == "out" else [each.hold() for each in moved or inputs]
        else:
            saved = []
        for each in moved:
            each.free()
        return saved

    def _whole(self, name: str) -> int:
        node = self.network.nodes.get(name)
        return node.out_words if node else int(np.prod(self.network.input))

    def _moves(self, source: str, node: Node) -> bool:
        """Whether an operand of a sum is brought to the layout of the first."""
        one, other = (self.network.parts[name][0].node for name in (source, node.name))
        return (one, other) in self.joined

    def _compute_layer(self, node: Node, layer: LayerWords) -> Sequence[Storage | Part]:
        self.own[node.name] = layer.output
        first, source = layer.passes[0], self.values[node.inputs[0]]
        copied = node.name in self.entered or layer.leaves_rows
        given = self.timeline.new(layer.input) if copied else source.hold()
        if not node.weighted:
            return self._compute_weightless(node, layer, given)
        given, in_room = self._taken(node, layer, given)
        for later in self.prefetches[node.name]:
            if self.again is None or later in self.again:
                self.prefetched[later] = self.timeline.new(self.layers[later].passes[0].prefetched)
        if node.name in self.prefetched:  # a part of what arrives
            self.prefetched.pop(node.name).free()
        self.timeline.brief(first.arriving)
        brought = {t: words for t, words in first.gathered.items() if not (in_room and t == "In")}
        slices = {t: self.timeline.new(words) for t, words in brought.items()}
        self.timeline.brief(first.halo + first.kernel - (first.laid if in_room else 0.0))
        if first.reduced:
            self.timeline.brief(first.halo + first.result + layer.output)
        self.values[node.name] = self.timeline.new(layer.output)
        reads: tuple[Tensor, Tensor] = (layer.layer_class.input_tensor, "Ker")
        kept = []
        for tensor in reads:
            slice_ = slices.pop(tensor, None)
            if slice_ and self.training and tensor in layer.tiling.first.saves:
                kept.append(slice_)
            elif self.training and tensor == reads[0] and not (slice_ and tensor in layer.tiling.first.saves):
                kept.append(given.hold())
                if slice_:
                    slice_.free()
            elif slice_:
                slice_.free()
        for each in slices.values():
            each.free()
        given.free()
        return kept

    def _taken(self, node: Node, layer: LayerWords, given: Storage) -> tuple[Storage, bool]:
        """The input of a layer where it computes, and whether it has room for its halo there.

        Without gradients a layer lets go of an input that nobody reads later.
        """
        if self.training:
            return given, False
        if node.inputs[0] in self.last:
            self.values.pop(node.inputs[0]).free()
        if layer.room is None:
            return given, False
        room = self.timeline.new(layer.room)
        given.free()
        return room, True

    def _compute_weightless(self, node: Node, layer: LayerWords, given: Storage) -> Sequence[Storage | Part]:
        """A pooling saves its widened input, and of a maximum the places; a resizing nothing."""
        wide = given.hold()
        if layer.distribution.row_axes and node.kind == "pool":
            wide.free()
            wide = self.timeline.new(layer.slice("In"))
        self.values[node.name] = self.timeline.new(layer.output)
        maximum = node.kind == "pool" and node.saves == "in"
        places = layer.output * (INDEX_BYTES / self.plan.word_bytes if maximum else 0)
        kept = []
        if self.training and node.kind == "pool":
            kept = [wide.hold(), self.timeline.new(places)]
        elif len(node.shape) > 3:  # torch makes the places of a signal only to save them
            self.timeline.brief(places)
        wide.free()
        given.free()
        return kept


def is_alias(node: Node) -> bool:
    """Whether the value of a node is that of its input."""
    return (
        node.kind == "flatten" or node.divided == "view" or (node.kind == "dropout" and node.saves == "none")
    )


def _groups(nodes: list[Node], depth: int | None) -> list[tuple[int, list[Node]]]:
    """Consecutive nodes by the number of their region at a depth; 0 outside, or where depth is None."""
    groups: list[tuple[int, list[Node]]] = []
    for node in nodes:
        inside = depth is not None and len(node.region) > depth
        region = node.region[depth] if inside and depth is not None else 0
        if groups and groups[-1][0] == region:
            groups[-1][1].append(node)
        else:
            groups.append((region, [node]))
    return groups


def release(each: Record | RegionRecord) -> None:
    """Let go of what a record holds."""
    held = each.saved if isinstance(each, Record) else (*each.inputs.values(),)
    for storage in held:
        storage.free()
