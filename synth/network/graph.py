"""A network as a graph of layers with shapes; what is planned are its convolutions, products and poolings.

A fully connected layer over a feature map is a convolution whose kernel covers the whole map, and a pooling
is a convolution with one group per channel and no weights, an upsampling a transposed one: so every planned
node is one loop nest, and normalization, activations and the like stay wherever their input lies. A sum
stays where its first input lies; its other inputs are brought there. The parts of a concatenation stay where
they are; what reads it reads its channels from all of them.
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
WEIGHTLESS = ("pool", "globalpool", "upsample")  # planned, but nothing of them is trained
KINDS = (*CONVS, "linear", "matmul", *WEIGHTLESS, "add", "mul", "cat", *PASSIVE)
Role = Literal["in", "out"]


@dataclass(frozen=True)
class Node:
    """One layer. `shape` is its output (N, C, *spatial) in elements; `layer` its loop nest, if it has one."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    shape: tuple[int, ...]
    in_shape: tuple[int, ...]
    layer: Layer | None = None
    bias: bool = False
    trained: int = 0  # words of what has no loop nest: scale and shift of a normalization, slopes

    @property
    def weighted(self) -> bool:
        """Whether the nest's Ker exists."""
        return self.layer is not None and self.kind not in WEIGHTLESS

    @property
    def parameters(self) -> int:
        """Trained words: weights, biases, scale and shift of a normalization."""
        if self.layer is None:
            return self.trained
        if not self.weighted or self.layer is None:
            return 0
        return kernel_words(self.layer) + (self.layer.out_channels if self.bias else 0)

    @property
    def operations(self) -> int:
        """Multiply-adds of the forward pass (those on padding zeros included); 0 for what has no weights."""
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
    """Words of all weights as the user has them."""
    layer = layer.conv
    if layer.kind == "matmul":
        return layer.input[1] * layer.input[2]
    return layer.out_channels * (layer.input[1] // layer.groups) * math.prod(layer.kernel)


@dataclass(frozen=True)
class Channels:
    """Which channels of a source are which of a target."""

    source: int  # the first one in the source
    target: int  # the same one in the target
    count: int


@dataclass(frozen=True)
class Edge:
    """Words that move between two planned nodes: into its input, or onto its output (a sum).

    `channels` are the parts that a concatenation makes of it; () where all channels are meant. `trained`:
    whether something is trained before them, so that their gradients go back.
    """

    source: str
    target: str
    role: Role
    channels: tuple[Channels, ...] = ()
    trained: bool = True


@dataclass(frozen=True)
class Part:
    """Channels of a value, and the planned node in whose output they lie; None for the network's input."""

    home: str | None
    first: int
    count: int


@dataclass(frozen=True)
class Network:
    """Nodes in an order in which every node comes after its inputs."""

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
        """Node -> where the channels of its output lie, one after the other."""
        parts: dict[str, tuple[Part, ...]] = {"input": (Part(None, 0, self.input[1]),)}
        for node in self.nodes.values():
            if node.kind == "gathered":  # of a traced model: every rank computes it from the whole
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
        """The nodes with a parameter in them or before them: those whose outputs have gradients."""
        found = set[str]()
        for node in self.nodes.values():
            own = node.parameters or node.kind == "gathered"  # of which nobody says what it has
            if own or any(name in found for name in node.inputs):
                found.add(node.name)
        return frozenset(found)

    def needs_input_gradient(self, node: Node) -> bool:
        """Whether something is trained before a node, so that a step needs the gradient of what it reads."""
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
        return [Edge(*ends, self._some(ends, every), ends in back) for ends, every in joined.items()]

    def _some(self, ends: tuple[str, str, Role], channels: list[Channels]) -> tuple[Channels, ...]:
        """() where the channels are all that source and target have."""
        source, target, role = ends
        reads = self.nodes[target].in_shape if role == "in" else self.nodes[target].shape
        every = Channels(0, 0, self.nodes[source].shape[1])
        return () if channels == [every] and reads[1] == every.count else tuple(channels)

    def _edges(self) -> Iterator[tuple[str, tuple[str, str, Role, Channels]]]:
        """The node whose output moves, and the edge with some of its channels."""
        for node in self.nodes.values():
            if node.layer:
                whole = (Part(node.name, 0, node.in_shape[1]),)
                for name in node.inputs:
                    yield from ((name, each) for each in _met(self.parts[name], whole, "in"))
            elif node.kind in ("add", "mul"):
                for name in node.inputs[1:]:
                    met = _met(self.parts[name], self.parts[node.name], "out")
                    yield from ((name, each) for each in met)

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


def _met(
    sources: tuple[Part, ...], targets: tuple[Part, ...], role: Role
) -> Iterator[tuple[str, str, Role, Channels]]:
    """The channels that two rows of parts have in common, pair by pair."""
    begin = 0
    for source in sources:
        start = 0
        for target in targets:
            low = max(begin, start)
            count = min(begin + source.count, start + target.count) - low
            ends = source.home, target.home
            if count > 0 and ends[0] and ends[1] and (role == "in" or ends[0] != ends[1]):
                channels = Channels(source.first + low - begin, target.first + low - start, count)
                yield ends[0], ends[1], role, channels
            start += target.count
        begin += source.count
