"""A lower bound of the words of a network in inference whose layers may compute words several times.

It is that of `synth.bounds.recomputation`, for the tensors between the layers of a plan. No process computes
more words of a layer than the busiest one of the plan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from synth.bounds.least_inputs import Axis, Proportion, Reading, Windows
from synth.bounds.recomputation import Tensor, best_proof
from synth.layer.layer import Layer
from synth.network.graph import Network, Node
from synth.network.grids.owned_boxes import PlacedGrid
from synth.network.kinds import REGROUPED
from synth.network.margins.boxes import sizes
from synth.network.margins.row_graph import INPUT, owned, row_graph
from synth.network.margins.walk import positions, walk
from synth.network.plan.universal import RESIDENT

if TYPE_CHECKING:
    from synth.network.plan.plan import NetworkPlan

SUMS = ("add", "mul")  # of words at equal places


def recomputing_assumptions(
    splits: str = "this plan splits", most: str = "as many words of each layer as in this plan"
) -> list[str]:
    """All that the bound assumes, a phrase each. splits: what says of which layers sums are split."""
    return [
        "a process that computes a word of a layer has all words that it reads, and words of layers are"
        " computed as often as one likes",
        f"sums are split in those layers alone in which {splits} them",
        "one owner of every word of the network's input",
        RESIDENT,
        f"in any process at most {most}",
        "any memory",
    ]


def recomputing_words(plan: NetworkPlan) -> int:
    """Words that a process receives at least in a forward pass, on average over the processes."""
    return math.floor(best_proof(tensors_of(plan), plan.request.procs).words)


def tensors_of(plan: NetworkPlan) -> list[Tensor]:
    """The tensors between the layers of a plan, sources first."""
    network, most = plan.network, _most_positions(plan)
    split = {
        node.name for node, placed in zip(network.planned, plan.placed_grids, strict=True) if _splits(placed)
    }
    every = positions_of(network.input)
    found = {INPUT: Tensor(INPUT, network.input[1], every, Fraction(every), given=True)}
    parts: dict[str, tuple[str, ...]] = {INPUT: (INPUT,)}  # node -> the tensors whose words it has
    for node in network.nodes.values():
        read = [parts.get(name, ()) for name in node.inputs]
        known = bool(read) and all(read)
        if known and (node.kind == "cat" or node.known.rows):
            parts[node.name] = tuple(name for names in read for name in names)
            continue
        if len(node.shape) <= 2:
            continue
        reading = _reading(node, network) if known else None
        if _by_channels(node) and any(len(each) > 1 for each in read):
            reading = None
        names = dict.fromkeys(name for names in read for name in names)
        reads = {} if reading is None else dict.fromkeys(names, reading)
        places = positions_of(node.shape)
        fair = Fraction(places, plan.request.procs)
        here = min(Fraction(places), max(most.get(node.name, Fraction(places)), fair))
        found[node.name] = Tensor(node.name, node.shape[1], places, here, reads, node.name in split)
        parts[node.name] = (node.name,)
    return list(found.values())


def _most_positions(plan: NetworkPlan) -> dict[str, Fraction]:
    """Layer -> positions of which the busiest process computes words, as a share of all channels."""
    procs, found = plan.request.procs, dict[str, Fraction]()
    for node, placed in zip(plan.network.planned, plan.placed_grids, strict=True):
        if len(node.shape) > 2:
            words = int(sizes(owned(node, placed, procs)).max())
            found[node.name] = Fraction(words, node.shape[1])
    if plan.margins is not None:
        walked = walk(row_graph(plan.network, plan.placed_grids, procs), plan.margins.rows)
        for name, boxes in walked.boxes.items():
            if name in found and walked.graph[name].covered:
                found[name] = Fraction(int(positions(boxes.computed).max()))
    return found


def _splits(placed: PlacedGrid) -> bool:
    """Whether processes add up parts of a sum."""
    return placed.grid.c > 1 or bool(placed.turned)


def positions_of(shape: Sequence[int]) -> int:
    """Positions of a tensor in all its samples."""
    return math.prod((shape[0], *shape[2:]))


def _by_channels(node: Node) -> bool:
    """Whether a word reads words of some channels alone."""
    layer = node.layer
    return layer is None or not node.weighted or layer.groups > 1


def _reading(node: Node, network: Network) -> Reading | None:
    """What a node reads of the positions of each of its inputs; None where nothing is proved."""
    if node.layer is None:
        places = positions_of(node.shape)
        alike = node.kind in SUMS and all(shape == node.shape for shape in _shapes(node, network))
        ratio = Fraction(positions_of(node.in_shape), places)
        return Proportion(places, ratio) if alike or node.kind in REGROUPED else None
    if node.kind == "upsample" and tuple(node.layer.kernel) != tuple(node.layer.stride):
        return None
    plain = node.kind != "linear" and tuple(node.shape) == tuple(node.layer.output_shape)
    return reading_of(node.layer, node.weighted) if plain else None


def reading_of(layer: Layer, weighted: bool) -> Reading | None:
    """What a layer reads of the positions of its input; None where nothing is proved."""
    if not layer.spatial_axes or len(layer.output_shape) != 2 + len(layer.kernel):
        return None
    places = positions_of(layer.output_shape)
    numbers = zip(layer.output_shape[2:], layer.kernel, layer.zeros, strict=True)
    axes = [Axis(outputs, taps, *zeros) for outputs, taps, zeros in numbers]
    plain = not layer.transposed and set(layer.stride) == set(layer.dilation) == {1}
    windows = tuple(axis for axis in axes if axis.taps > 1)
    if plain and windows and all(axis.more >= 0 and axis.side <= axis.outputs for axis in axes):
        images = places // math.prod(axis.outputs for axis in windows)
        return Windows(windows, images, layer.groups if weighted else layer.output_shape[1])
    pairs = zip(axes, layer.stride, layer.dilation, layer.input[2:], strict=True)
    ratio = math.prod((_ratio(*each, layer.transposed) for each in pairs), start=Fraction(1))
    return Proportion(places, ratio) if ratio else None


def _shapes(node: Node, network: Network) -> list[tuple[int, ...]]:
    return [network.input if name == INPUT else network.nodes[name].shape for name in node.inputs]


def _ratio(axis: Axis, stride: int, dilation: int, size: int, transposed: bool) -> Fraction:
    """Inputs that an output has for itself, or 1 over the outputs that share one; 0 for neither."""
    if not transposed:
        taps = dilation * np.arange(axis.taps) - axis.before
        inside = taps[(taps >= 0) & (stride * (axis.outputs - 1) + taps < size)]
        return Fraction(len(set((inside % stride).tolist())))
    if dilation > 1:
        return Fraction(0)
    at = np.arange(axis.outputs) + axis.before
    first, last = -((axis.taps - 1 - at) // stride), at // stride
    first, last = np.maximum(first, 0), np.minimum(last, size - 1)
    if (first > last).any():
        return Fraction(0)
    chosen = np.clip((at - max(0, axis.taps - stride) // 2) // stride, first, last)
    return Fraction(1, int(np.bincount(chosen).max()))
