"""A network as a graph of layers with shapes. Its convolutions, matrix products and poolings are planned.

Every planned node is one loop nest. A fully connected layer over a feature map is a convolution whose kernel
covers the map. A pooling is a convolution with one group per channel and no weights; an upsampling is a
transposed one. All other nodes have the layout of their input: normalization, activations and the like. A sum
has the layout of its first input; its other inputs are redistributed. A concatenation moves nothing; a node
that reads it reads its channels from the layouts of all its parts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from synth.layer.layer import Layer
from synth.layer.nest import WORD_BYTES

CONVS = ("conv1d", "conv2d", "conv3d")
NORMS = ("batchnorm", "layernorm", "groupnorm", "instancenorm")
PASSIVE = (*NORMS, "relu", "prelu", "scale", "dropout", "softmax", "flatten")
WEIGHTLESS = ("pool", "globalpool", "upsample")  # planned, but without weights
KINDS = (*CONVS, "linear", "matmul", *WEIGHTLESS, "add", "mul", "cat", *PASSIVE, "gathered")
Role = Literal["in", "out"]


@dataclass(frozen=True)
class Node:
    """One layer. `shape` is that of its output, (N, C, *spatial); `layer` its loop nest, if it has one.

    trained: trained words of a node without a loop nest: scale and shift of a normalization, slopes.
    saves: what the backward pass of an operation on single words needs: "in", "out" or "none".
    region: the checkpoints of the model that it is in during training, the outermost first.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    shape: tuple[int, ...]
    in_shape: tuple[int, ...]
    layer: Layer | None = None
    bias: bool = False
    trained: int = 0
    saves: str = field(default="out", compare=False)
    region: tuple[int, ...] = field(default=(), compare=False)

    @property
    def weighted(self) -> bool:
        """Whether the nest has a Ker."""
        return self.layer is not None and self.kind not in WEIGHTLESS

    @property
    def parameters(self) -> int:
        """Trained words: weights, biases, scale and shift of a normalization."""
        if self.layer is None:
            return self.trained
        if not self.weighted:
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
    """

    source: str
    target: str
    role: Role
    channels: tuple[Channels, ...] = ()
    trained: bool = True


@dataclass(frozen=True)
class Part:
    """Channels of a value, and the planned node whose output holds them; None for the network's input."""

    node: str | None
    first: int
    count: int


@dataclass(frozen=True)
class Network:
    """Nodes in an order in which every node comes after its inputs. `origin` is the file of the network."""

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
    def parts(self) -> dict[str, tuple[Part, ...]]:
        """Node -> the parts of its output's channels, in order."""
        parts: dict[str, tuple[Part, ...]] = {"input": (Part(None, 0, self.input[1]),)}
        for node in self.nodes.values():
            if node.kind == "gathered":  # every rank computes it from whole tensors
                parts[node.name] = (Part(None, 0, math.prod(node.shape[1:2])),)
            elif node.layer or not node.inputs:
                parts[node.name] = (Part(node.name, 0, node.shape[1]),)
            elif node.kind == "cat":
                parts[node.name] = tuple(part for name in node.inputs for part in parts[name])
            else:
                parts[node.name] = parts[node.inputs[0]]
        return parts

    @cached_property
    def trained(self) -> frozenset[str]:
        """The nodes whose outputs have gradients: those with a parameter in them or before them."""
        found = set[str]()
        for node in self.nodes.values():
            own = node.parameters or node.kind == "gathered"  # whose parameters are unknown
            if own or any(name in found for name in node.inputs):
                found.add(node.name)
        return frozenset(found)

    def needs_input_gradient(self, node: Node) -> bool:
        """Whether a parameter is trained before a node, so that its input needs a gradient."""
        return any(name in self.trained for name in node.inputs) or not node.inputs

    @cached_property
    def edges(self) -> list[Edge]:
        """All redistributions between two nodes, each once."""
        joined: dict[tuple[str, str, Role], list[Channels]] = {}
        back = set[tuple[str, str, Role]]()
        for value, (source, target, role, channels) in self._edges():
            found = joined.setdefault((source, target, role), [])
            found += [channels] if channels not in found else []
            back |= {(source, target, role)} if value in self.trained else set()
        return [Edge(*ends, self._partial(ends, every), ends in back) for ends, every in joined.items()]

    def _partial(self, ends: tuple[str, str, Role], channels: list[Channels]) -> tuple[Channels, ...]:
        """The channels of an edge; () if they are all channels of source and target."""
        source, target, role = ends
        reads = self.nodes[target].in_shape if role == "in" else self.nodes[target].shape
        every = Channels(0, 0, self.nodes[source].shape[1])
        return () if channels == [every] and reads[1] == every.count else tuple(channels)

    def _edges(self) -> Iterator[tuple[str, tuple[str, str, Role, Channels]]]:
        """(node whose output moves, (source, target, role, channels)) of every part of an edge."""
        for node in self.nodes.values():
            if node.layer:
                whole = (Part(node.name, 0, node.in_shape[1]),)
                for name in node.inputs:
                    yield from ((name, each) for each in _common_channels(self.parts[name], whole, "in"))
            elif node.kind in ("add", "mul"):
                for name in node.inputs[1:]:
                    common = _common_channels(self.parts[name], self.parts[node.name], "out")
                    yield from ((name, each) for each in common)

    @property
    def parameters(self) -> int:
        """Trained words of the whole network."""
        return sum(node.parameters for node in self.nodes.values())

    @property
    def is_chain(self) -> bool:
        """Whether the planned nodes follow one another without a branch."""
        names = [node.name for node in self.planned]
        pairs = {(edge.source, edge.target) for edge in self.edges}
        return pairs == set(itertools.pairwise(names)) and len(self.edges) == len(pairs)

    def __str__(self) -> str:
        return (
            f"{self.name}: {len(self.nodes)} layers, {len(self.planned)} of them planned, "
            f"{self.parameters:,} parameters, input {'x'.join(map(str, self.input))}"
        )


def _common_channels(
    sources: tuple[Part, ...], targets: tuple[Part, ...], role: Role
) -> Iterator[tuple[str, str, Role, Channels]]:
    """(source, target, role, channels) of all pairs of parts that have channels in common."""
    begin = 0
    for source in sources:
        start = 0
        for target in targets:
            low = max(begin, start)
            count = min(begin + source.count, start + target.count) - low
            ends = source.node, target.node
            if count > 0 and ends[0] and ends[1] and (role == "in" or ends[0] != ends[1]):
                channels = Channels(source.first + low - begin, target.first + low - start, count)
                yield ends[0], ends[1], role, channels
            start += target.count
        begin += source.count
