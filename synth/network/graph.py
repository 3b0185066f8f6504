"""A network as a graph of layers with shapes; what is planned are its convolutions, products and poolings.

A fully connected layer over a feature map is a convolution whose kernel covers the whole map, and a pooling
is a convolution with one group per channel and no weights: so every planned node is one loop nest, and
batch normalization, activations and the like stay wherever their input lies. A sum stays where its first
input lies; its other inputs are brought there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from synth.layer import Layer

CONVS = ("conv1d", "conv2d", "conv3d")
PASSIVE = ("batchnorm", "relu", "dropout", "softmax", "flatten")
KINDS = (*CONVS, "linear", "matmul", "pool", "globalpool", "add", *PASSIVE)
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

    @property
    def weighted(self) -> bool:
        """Whether the nest's Ker exists."""
        return self.layer is not None and self.kind not in ("pool", "globalpool")

    @property
    def parameters(self) -> int:
        """Trained words: weights, biases, scale and shift of a batch normalization."""
        if self.kind == "batchnorm":
            return 2 * self.shape[1]
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
class Edge:
    """Words that move between two planned nodes: into its input, or onto its output (a sum)."""

    source: str
    target: str
    role: Role


@dataclass(frozen=True)
class Network:
    """Nodes in an order in which every node comes after its inputs."""

    name: str
    input: tuple[int, ...]
    nodes: dict[str, Node]
    dtype: str = "float32"
    origin: str = field(default="", compare=False)

    @cached_property
    def planned(self) -> list[Node]:
        """The nodes that have a loop nest, in order."""
        return [node for node in self.nodes.values() if node.layer is not None]

    @cached_property
    def homes(self) -> dict[str, str | None]:
        """Node -> the planned node where its output lies; None for the network's input."""
        homes: dict[str, str | None] = {"input": None}
        for node in self.nodes.values():
            first = node.inputs[0] if node.inputs else None
            homes[node.name] = node.name if node.layer else (homes[first] if first else None)
        return homes

    @cached_property
    def edges(self) -> list[Edge]:
        """All redistributions, each once."""
        return list(dict.fromkeys(self._edges()))

    def _edges(self) -> Iterator[Edge]:
        for node in self.nodes.values():
            home = self.homes[node.name]
            sources = [self.homes[name] for name in node.inputs]
            if node.layer:
                yield from (Edge(s, node.name, "in") for s in sources if s)
            elif home:
                yield from (Edge(s, home, "out") for s in sources[1:] if s and s != home)

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
