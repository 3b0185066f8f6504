"""A network as a graph of layers with shapes. Its convolutions, matrix products and poolings are planned.

Every planned node is one loop nest. A fully connected layer over a feature map is a convolution whose kernel
covers the map. A pooling is a convolution with one group per channel and no weights; an upsampling is a
transposed one. Global and adaptive pooling is computed where its input lies; of a concatenation, part by
part. A shuffle of channels and positions lies where its input does. All other nodes have the layout of their
input: normalization, activations and the like. A sum has the layout of its first input, which is one that
lies as planned nodes do, if any does (`first_laid_out`); its other inputs are redistributed. A concatenation
moves nothing; a node that reads it reads its channels from the layouts of all its parts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from synth.layer.layer import Layer
from synth.layer.nest import WORD_BYTES
from synth.network.kinds import KINDS, Kind
from synth.network.reductions import Reduction
from synth.network.row_maps import Reindexing, RowMap
from synth.network.shuffles import Shuffle

Role = Literal["in", "out"]
Divided = Literal[
    "",  # not at all: every rank computes it from whole tensors
    "view",  # it has the words of its input
    "parts",  # each rank computes its part
    "joined",  # so, and nothing is kept for the backward pass
    "product",  # so, from slices of operands, of which several ranks may read one
]
Moved = Reindexing | Reduction | Shuffle
Path = tuple[Moved, ...]


@dataclass(frozen=True)
class Node:
    """One layer. `shape` is that of its output, (N, C, *spatial); `layer` its loop nest, if it has one.

    trained: trained words of a node without a loop nest: scale and shift of a normalization, slopes.
    tied: whether its parameters are those of nodes before it, which count their words.
    saves: what the backward pass of an operation on single words needs: "in", "out" or "none".
    region: the checkpoints of the model that it is in during training, the outermost first.
    maps, dims: of a reindexing; see `Reindexing`. A concatenation of positions is a "gathered" node. Its
    `dims` have the dimension, and its `maps` the rows of every input in the result; see `joined_rows`.
    groups: of a group normalization; 0 where it is unknown. maximum: of a global pooling; else it is a mean.
    direct: whether the call of the model reads its inputs and gives its result with the dimensions of the
    network, and takes no other tensors with positions; only then may ranks compute rows of others in it.
    divided: how ranks divide a "gathered" node for which the planner has no layout; see `Divided`.
    multiply_adds: of a product; 0 where they follow from the shapes of its inputs, as for two matrices.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    shape: tuple[int, ...]
    in_shape: tuple[int, ...]
    layer: Layer | None = None
    bias: bool = False
    trained: int = 0
    tied: bool = field(default=False, compare=False)
    saves: str = field(default="out", compare=False)
    region: tuple[int, ...] = field(default=(), compare=False)
    maps: tuple[RowMap, ...] = ()
    dims: tuple[int, ...] = ()
    groups: int = 0
    maximum: bool = False
    divided: Divided = field(default="", compare=False)
    multiply_adds: int = field(default=0, compare=False)
    direct: bool = field(default=True, compare=False)

    @property
    def known(self) -> Kind:
        """What the planner knows of nodes of the kind."""
        return KINDS[self.kind]

    @property
    def weighted(self) -> bool:
        """Whether the nest has a Ker."""
        return self.layer is not None and self.known.weighted

    @property
    def parameters(self) -> int:
        """Trained words: weights, biases, scale and shift of a normalization."""
        if self.layer is None:
            return self.trained
        if not self.weighted or self.tied:
            return 0
        return kernel_words(self.layer) + (self.layer.out_channels if self.bias else 0)

    @property
    def operations(self) -> int:
        """Multiply-adds of the forward pass, those on padding zeros included; 0 without weights."""
        return self.layer.nest.work if self.weighted and self.layer else 0

    @property
    def out_words(self) -> int:
        """Words of the output, for the whole batch."""
        return math.prod(self.shape)

    @property
    def in_words(self) -> int:
        """Words of one input, for the whole batch."""
        return math.prod(self.in_shape)


def kernel_words(layer: Layer) -> int:
    """Words of all weights of the user's layer."""
    layer = layer.conv
    if layer.kind == "matmul":
        return layer.input[1] * layer.input[2]
    return layer.out_channels * (layer.input[1] // layer.groups) * math.prod(layer.kernel)


@dataclass(frozen=True)
class Channels:
    """Channels that a source and a target share."""

    source: int  # first channel in the source
    target: int  # the same channel in the target
    count: int


@dataclass(frozen=True)
class Edge:
    """A redistribution between two planned nodes: to the target's input, or to its output (a sum).

    channels: those that move, if a concatenation moves only some; () for all. trained: whether a parameter
    is trained before the edge, so that gradients return over it.
    source_path, target_path: reindexings, reductions and shuffles between the node and the value that moves
    or that receives. moves_rows: whether the edge is the last of `target_path` itself.
    """

    source: str
    target: str
    role: Role
    channels: tuple[Channels, ...] = ()
    trained: bool = True
    source_path: Path = ()
    target_path: Path = ()
    moves_rows: bool = False


@dataclass(frozen=True)
class Part:
    """Channels of a value, and the planned node whose output holds them; None for the network's input.

    path: reindexings, reductions and shuffles between the two. The value then has all its channels, numbered
    after them.
    """

    node: str | None
    first: int
    count: int
    path: Path = ()

    @property
    def regular(self) -> bool:
        """Whether all boxes of ranks are those of one grid: not where several blocks share some windows."""
        return all(not isinstance(each, Reduction) or each.whole for each in self.path)


Parts = tuple[Part, ...]


@dataclass(frozen=True)
class Network:
    """A network as the planner sees it: nodes, each of which comes after its inputs, and the input's shape.

    `load_network` reads one from a file; `synth import` writes the file of a torch model. `planned` are the
    nodes with a loop nest, `edges` the redistributions between them. `origin` is the file.
    """

    name: str
    input: tuple[int, ...]
    nodes: dict[str, Node]
    dtype: str = "float32"
    origin: str = field(default="", compare=False)

    @property
    def word_bytes(self) -> int:
        """Bytes per word of the network's dtype."""
        return WORD_BYTES[self.dtype]

    @cached_property
    def planned(self) -> list[Node]:
        """The nodes that have a loop nest, in order."""
        return [node for node in self.nodes.values() if node.layer is not None]

    @cached_property
    def parts(self) -> dict[str, Parts]:
        """Node -> the parts of its output's channels, in order."""
        parts = parts_of_input(self.input)
        for node in self.nodes.values():
            parts[node.name] = parts_of(node, parts)
        return parts

    @cached_property
    def trained(self) -> frozenset[str]:
        """The nodes whose outputs have gradients: those with a parameter in them or before them."""
        found = set[str]()
        for node in self.nodes.values():
            own = node.parameters or node.tied or node.kind == "gathered"  # whose parameters are unknown
            if own or any(name in found for name in node.inputs):
                found.add(node.name)
        return frozenset(found)

    def needs_input_gradient(self, node: Node) -> bool:
        """Whether a parameter is trained before a node, so that its input needs a gradient."""
        return any(name in self.trained for name in node.inputs) or not node.inputs

    @cached_property
    def edges(self) -> list[Edge]:
        """All redistributions between two nodes, each once."""
        joined: dict[Edge, list[Channels]] = {}
        back = set[Edge]()
        for _, value, ends, channels in self._edges():
            found = joined.setdefault(ends, [])
            found += [channels] if channels not in found else []
            back |= {ends} if value in self.trained else set()
        return [
            replace(ends, channels=self._partial(ends, every), trained=ends in back)
            for ends, every in joined.items()
        ]

    def _partial(self, ends: Edge, channels: list[Channels]) -> tuple[Channels, ...]:
        """The channels of an edge; () if they are all channels of source and target."""
        source, target = self.end_shapes(ends)
        every = Channels(0, 0, source[1])
        whole = ends.moves_rows or (channels == [every] and target[1] == every.count)
        return () if whole else tuple(channels)

    def end_shapes(self, edge: Edge) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of the value that an edge moves, and of the one that it is moved for."""
        source, target = self.nodes[edge.source], self.nodes[edge.target]
        there = target.in_shape if edge.role == "in" else target.shape
        return (
            edge.source_path[-1].shape if edge.source_path else source.shape,
            edge.target_path[-1].shape if edge.target_path else there,
        )

    def makers(self, edge: Edge) -> Set[str]:
        """The nodes for which an edge moves words."""
        return self._makers[replace(edge, channels=(), trained=True)]

    @cached_property
    def _makers(self) -> dict[Edge, set[str]]:
        found = defaultdict[Edge, set[str]](set)
        for node, _, ends, _ in self._edges():
            found[ends].add(node)
        return dict(found)

    def _edges(self) -> Iterator[tuple[str, str, Edge, Channels]]:
        """(node that reads, node whose output moves, the ends, channels) of every part of an edge."""
        for node in self.nodes.values():
            for part in self.parts[node.name] if node.known.moves else ():
                if part.node and part not in self.parts[node.inputs[0]]:
                    whole_edge = Edge(part.node, part.node, "out", (), True, part.path[:-1], part.path, True)
                    yield node.name, node.inputs[0], whole_edge, Channels(0, 0, part.count)
            if node.layer:
                whole = (Part(node.name, 0, node.in_shape[1]),)
                for name in node.inputs:
                    common = _common_channels(self.parts[name], whole, "in")
                    yield from ((node.name, name, *each) for each in common)
            elif node.kind in ("add", "mul"):
                for name in node.inputs[1:]:
                    common = _common_channels(self.parts[name], self.parts[node.name], "out")
                    yield from ((node.name, name, *each) for each in common)
            elif (largest := largest_laid_out(node, self.parts)) is not None:
                for place, name in enumerate(node.inputs):
                    rows = _rows_of(node, place, self.parts[node.name][0])
                    if place != largest:
                        common = _common_channels(self.parts[name], (rows,), "out")
                        yield from ((node.name, name, *each) for each in common)

    @property
    def parameters(self) -> int:
        """Trained words of the whole network."""
        return sum(node.parameters for node in self.nodes.values())

    def __str__(self) -> str:
        return (
            f"{self.name}: {len(self.nodes)} layers, {len(self.planned)} of them planned, "
            f"{self.parameters:,} parameters, input {'x'.join(map(str, self.input))}"
        )


def parts_of_input(shape: tuple[int, ...]) -> dict[str, Parts]:
    """Those of the network's input, to which those of each node are added by `parts_of`."""
    return {"input": (Part(None, 0, shape[1]),)}


def parts_of(node: Node, known: Mapping[str, Parts]) -> Parts:
    """The parts of a node's output. known: those of its inputs."""
    if node.kind == "gathered":  # every rank computes it from whole tensors, but for joined rows
        place = largest_laid_out(node, known)
        if place is None:
            return (Part(None, 0, math.prod(node.shape[1:2])),)
        return (_joined(node, place, known[node.inputs[place]][0]),)
    if node.layer or not node.inputs:
        return (Part(node.name, 0, node.shape[1]),)
    first = known[node.inputs[0]]
    if node.kind == "globalpool":
        return _reduced(node, first)
    if node.known.moves:
        return _moved(node, first)
    if node.kind == "cat":
        return tuple(part for name in node.inputs for part in known[name])
    return first


def first_laid_out(names: Sequence[str], known: Mapping[str, Parts]) -> int:
    """The place of the operand of a sum or product in whose layout it is computed. names: of equal shapes.

    This is the first that lies as planned nodes do, all of it: else no edges would lead to its readers.
    Without such an operand it is the first.
    """
    places = (i for i, name in enumerate(names) if all(part.node for part in known[name]))
    return next(places, 0)


def largest_laid_out(node: Node, known: Mapping[str, Parts]) -> int | None:
    """The place of the input in whose layout joined rows lie; None where there is none, and for other nodes.

    It is the one of most rows of which all channels lie as those of one planned node do.
    """
    inputs = node.inputs if node.kind == "gathered" and node.dims else ()
    places = [place for place, name in enumerate(inputs) if _is_whole(node, known[name])]
    return max(places, key=lambda place: node.maps[place].size, default=None)


def _is_whole(node: Node, parts: Parts) -> bool:
    first = parts[0]
    alone = len(parts) == 1 and first.node is not None and first.regular
    return alone and (first.first, first.count) == (0, node.shape[1])


def _joined(node: Node, place: int, part: Part) -> Part:
    """An input of joined rows as if it were padded by those of the others."""
    return replace(part, path=(*part.path, _along(node, "", node.maps[place], node.shape)))


def _rows_of(node: Node, place: int, joined: Part) -> Part:
    """The rows of an input in joined rows."""
    own, rows = node.maps[place], node.maps[place].rows
    start = sum(each.size for each in node.maps[:place])
    shape = tuple(own.size if dim == node.dims[0] else n for dim, n in enumerate(node.shape))
    selected = RowMap(len(rows), range(start, start + own.size))
    return replace(joined, path=(*joined.path, _along(node, f".{place}", selected, shape)))


def _along(node: Node, suffix: str, row_map: RowMap, shape: tuple[int, ...]) -> Reindexing:
    maps = [RowMap(size, range(size)) for size in node.shape]
    maps[node.dims[0]] = row_map
    return Reindexing(f"{node.name}{suffix}", tuple(maps), shape)


def _reduced(node: Node, parts: Parts) -> Parts:
    """The parts of a value whose positions are reduced, each by itself."""
    found = []
    for number, part in enumerate(parts):
        name = node.name if len(parts) == 1 else f"{node.name}.{number}"
        known = part.node is not None and part.regular
        last = Reduction.of(name, node, part.count)
        made = replace(part, path=(*part.path, last)) if known else Part(None, 0, part.count)
        found.append(made)
    return tuple(found)


def _moved(node: Node, parts: Parts) -> Parts:
    """The parts of a reindexed or shuffled value.

    They have no planned node where a reindexed value has other channels.
    """
    first = parts[0]
    unknown = (Part(None, 0, math.prod(node.shape[1:2])),)
    if len(parts) > 1 or first.node is None or (first.first, first.count) != (0, node.in_shape[1]):
        made = _selected(node, parts) if node.kind == "reindex" else _shuffled(node, parts)
        return made or unknown
    if not first.regular or node.dims[1:2] not in ((), (1,)):
        return unknown
    last: Moved = Shuffle(node.name, node.in_shape, node.shape)
    if node.kind == "reindex":
        last = Reindexing(node.name, node.maps, node.shape, node.dims)
    return (Part(first.node, 0, node.shape[1], (*first.path, last)),)


def _selected(node: Node, parts: Parts) -> Parts:
    """The parts of neighbouring channels of a concatenation, each where it lies; none for other rows."""
    rows = node.maps[1].rows
    others = all(each.plain for dim, each in enumerate(node.maps) if dim != 1)
    if node.dims or not others or not isinstance(rows, range) or rows.step != 1:
        return ()
    found, start = list[Part](), 0
    for number, part in enumerate(parts):
        low, high = max(rows.start - start, 0), min(rows.stop - start, part.count)
        start += part.count
        if low >= high:
            continue
        if part.node is not None and part.regular and high - low < part.count:
            maps = (node.maps[0], RowMap(part.count, range(low, high)), *node.maps[2:])
            shape = (node.shape[0], high - low, *node.shape[2:])
            last = Reindexing(f"{node.name}.{number}", maps, shape)
            part = replace(part, path=(*part.path, last))
        found.append(replace(part, count=high - low))
    return tuple(found) if all(part.regular for part in found) else ()


def _shuffled(node: Node, parts: Parts) -> Parts:
    """The parts of a shuffled concatenation, each by itself; none where channels of several become one."""
    (n, channels, *extents), made = node.in_shape, node.shape
    found = list[Part]()
    for number, part in enumerate(parts):
        count, rest = divmod(part.count * made[1], channels)
        if rest or part.node is None or not part.regular:
            return ()
        shapes = (n, part.count, *extents), (n, count, *made[2:])
        last = Shuffle(f"{node.name}.{number}", *shapes)
        found.append(Part(part.node, 0, count, (*part.path, last)))
    return tuple(found)


def _common_channels(sources: Parts, targets: Parts, role: Role) -> Iterator[tuple[Edge, Channels]]:
    """(ends of an edge, channels) of all pairs of parts that have channels in common."""
    begin = 0
    for source in sources:
        start = 0
        for target in targets:
            low = max(begin, start)
            count = min(begin + source.count, start + target.count) - low
            there = role == "out" and (source.node, source.path) == (target.node, target.path)
            if count > 0 and source.node and target.node and not there:
                channels = Channels(source.first + low - begin, target.first + low - start, count)
                ends = source.node, target.node, role
                yield Edge(*ends, source_path=source.path, target_path=target.path), channels
            start += target.count
        begin += source.count
