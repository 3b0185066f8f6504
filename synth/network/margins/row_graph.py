"""The tensors of a planned network between whose layers rows may be computed twice.

A tensor is *covered* if each rank computes all channels of its rows from rows of its sources: convolutions,
poolings and nearest upsamplings whose grid cuts samples and positions alone, shuffles and selections of
channels behind these, operations on single words, concatenations, and normalizations. All others have the
boxes of their layer, and are computed as always.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from synth.layer.axes import SPATIAL, X_AXES, strides
from synth.network.edges.redistribution import in_user_rows
from synth.network.graph import Network, Node
from synth.network.grids.box_rows import FLAT, Array, first_of_kinds
from synth.network.grids.layer_class import LayerClass
from synth.network.grids.owned_boxes import OwnedBoxes, PlacedGrid
from synth.network.kinds import REGROUPED
from synth.network.margins.boxes import SPATIAL_PLACES, RowWindow, normal
from synth.network.shuffles import Shuffle, boxes_of_shuffle

INPUT = "input"
PLAIN = (RowWindow(),) * len(SPATIAL)


@dataclass(frozen=True)
class RowTensor:
    """The result of a node, or the network's input.

    shape: along `FLAT`. own: the boxes of all ranks, in which every word has one owner. sources: the tensors
    that it reads, of covered tensors alone. placed: the grid that its ranks lie on. work: multiply-adds per
    position and sample of the result. free: whether every needed row is computed, since that costs no work
    and moves no more words. joined: a concatenation, which is put together where it is read: nobody owns it.
    """

    name: str
    shape: tuple[int, ...]
    own: Array
    placed: PlacedGrid
    covered: bool = False
    sources: tuple[str, ...] = ()
    windows: tuple[RowWindow, ...] = PLAIN
    work: float = 0.0
    free: bool = False
    joined: bool = False


RowGraph = dict[str, RowTensor]  # in the order of the network


def row_graph(network: Network, placed_grids: Sequence[PlacedGrid], procs: int) -> RowGraph:
    """The tensors of a network that covered tensors read or are, and the boxes of their owners."""
    placed = {node.name: each for node, each in zip(network.planned, placed_grids, strict=True)}
    graph: RowGraph = {}
    first = next((n.name for n in network.planned if n.inputs == (INPUT,)), None)
    if first is not None and cuts_rows(placed[first]) and 2 <= len(network.input) <= 5:
        own = _even(network.input, placed[first], procs)
        graph[INPUT] = RowTensor(INPUT, flat(network.input), own, placed[first])
    for node in network.nodes.values():
        made = _tensor(node, graph, placed.get(node.name), procs)
        if made is not None:
            graph[node.name] = made
    return graph


def of_different_ranks(graph: RowGraph) -> RowGraph:
    """A graph in which one rank stands for all whose own boxes differ by a shift along the samples alone.

    No window runs along the samples, so what these ranks need and compute differs by the same shift, and has
    equal words and work. Of tensors that no covered one reads or is, ranks need nothing.
    """
    read = {name for each in graph.values() for name in each.sources}
    some = [each.own for name, each in graph.items() if each.covered or name in read]
    if not some:
        return graph
    own = np.stack(some)  # (tensor, dimension, bound, rank)
    samples, used = own[:, 0], (own[:, 0, 1] > own[:, 0, 0])[:, None]
    first = np.where(used, samples, samples.max()).min(axis=(0, 1))
    own[:, 0] = np.where(used, samples - first, 0)
    ranks, _ = first_of_kinds([each.tobytes() for each in np.moveaxis(own, -1, 0)])
    return {name: replace(each, own=each.own[:, :, ranks]) for name, each in graph.items()}


def flat(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape (N, C, *spatial) along `FLAT`."""
    return (*shape[:2], *[1] * (5 - len(shape)), *shape[2:])


def cuts_rows(placed: PlacedGrid) -> bool:
    """Whether a grid cuts samples and positions alone, by rows of the result."""
    return placed.grid.k == placed.grid.c == placed.grid.g == 1 and not placed.turned


def _tensor(
    node: Node, graph: Mapping[str, RowTensor], placed: PlacedGrid | None, procs: int
) -> RowTensor | None:
    if not node.direct:
        return None
    known = bool(node.inputs) and all(name in graph for name in node.inputs)
    if node.layer is not None and placed is not None:
        rows = known and len(node.shape) > 2 and cuts_rows(placed)
        windows = _windows(node) if rows else None
        if windows is None and (not node.weighted or node.layer.groups > 1):
            return None  # whose ranks may lay its channels, or rows that nobody reads, elsewhere
        own = owned(node, placed, procs)
        if windows is None:
            return RowTensor(node.name, flat(node.shape), own, placed)
        copies = node.kind == "upsample"
        what = True, node.inputs, windows, _work(node), copies
        return RowTensor(node.name, flat(node.shape), own, placed, *what)
    if not node.inputs or node.inputs[0] not in graph:
        return None
    first = graph[node.inputs[0]]
    if not known:  # a sum lies where its first part does
        same = node.kind in ("add", "mul") and first.shape == flat(node.shape)
        return RowTensor(node.name, first.shape, first.own, first.placed) if same else None
    covered = _whole_channels(first.own, first.shape[1])
    sources = node.inputs if covered else ()
    if node.known.rows:
        return RowTensor(node.name, first.shape, first.own, first.placed, covered, sources, free=True)
    if node.kind == "cat":
        return _joined(node, graph)
    if node.kind in REGROUPED:
        return _shuffled(node, first)
    if node.kind == "reindex":
        return _of_channels(node, first)
    if node.kind in ("add", "mul") and len({graph[name].shape for name in node.inputs}) == 1:
        return RowTensor(node.name, first.shape, first.own, first.placed, covered, sources)
    return None


def _joined(node: Node, graph: Mapping[str, RowTensor]) -> RowTensor | None:
    """A concatenation. What is computed from it lies where its first part does."""
    first = graph[node.inputs[0]]
    if not _whole_channels(first.own, first.shape[1]):
        return None
    own = first.own.copy()
    own[1, 1] = np.where(own[1, 1] > 0, node.shape[1], 0)
    sources = node.inputs
    return RowTensor(node.name, flat(node.shape), own, first.placed, True, sources, free=True, joined=True)


def _shuffled(node: Node, first: RowTensor) -> RowTensor:
    """A shuffle of channels and positions, which lies where its source does."""
    last = Shuffle(node.name, node.in_shape, node.shape)
    own = normal(np.stack(boxes_of_shuffle((first.own[:, 0], first.own[:, 1]), last), axis=1))
    made = RowTensor(node.name, flat(node.shape), own, first.placed)
    if not _whole_channels(first.own, first.shape[1]):
        return made
    windows = list(PLAIN)
    for place, size, n in last.changed(len(FLAT)):
        if place in SPATIAL_PLACES:
            ratio = max(size // n, n // size)
            windows[place - SPATIAL_PLACES[0]] = RowWindow(ratio, ratio, spread=n > size)
    return replace(made, covered=True, sources=node.inputs, windows=tuple(windows))


def _of_channels(node: Node, first: RowTensor) -> RowTensor | None:
    """Some channels in any order, such as a half of them; None where other rows are moved."""
    if node.dims or not all(each.plain for dim, each in enumerate(node.maps) if dim != 1):
        return None
    if not _whole_channels(first.own, first.shape[1]):
        return None
    own, more = first.own.copy(), node.shape[1] >= node.in_shape[1]
    own[1, 1] = np.where(own[1, 1] > 0, node.shape[1], 0)
    return RowTensor(node.name, flat(node.shape), own, first.placed, True, node.inputs, free=more)


def _whole_channels(own: Array, channels: int) -> bool:
    used = own[1, 1] > own[1, 0]
    return bool((own[1][:, used] == np.array([[0], [channels]])).all())


def _windows(node: Node) -> tuple[RowWindow, ...] | None:
    """The windows of a layer along `FLAT`; None for layers that read rows in another way."""
    layer = node.layer
    assert layer is not None
    if layer.kind in ("matmul", "einsum") or (node.kind == "linear"):
        return None
    if node.kind == "upsample" and tuple(layer.kernel) != tuple(layer.stride):
        return None  # linear interpolation, whose rows follow from its corners
    pads = [before for before, _ in layer.zeros]
    numbers = zip(layer.kernel, layer.stride, pads, layer.dilation, strict=True)
    found = [RowWindow(*each, layer.transposed) for each in numbers]
    return (*PLAIN[len(found) :], *found)


def _work(node: Node) -> float:
    if not node.weighted or node.layer is None:
        return 0.0
    positions = int(np.prod([node.shape[0], *node.shape[2:]]))
    return node.layer.nest.work / positions


def owned(node: Node, placed: PlacedGrid, procs: int) -> Array:
    """What each rank owns of a layer's result, in the rows of the user's tensor."""
    assert node.layer is not None
    kind = LayerClass.of(node)
    rows = OwnedBoxes(kind.nest, [placed], procs).rows(kind.output_tensor)
    if kind.transposed:
        rows = in_user_rows(rows, kind.nest, kind.rows)
    low, high = (bound[:, 0] for bound in rows.spans)
    extents = np.array(flat(node.shape))[:, None]
    boxes = np.stack([np.minimum(low, extents), np.minimum(high, extents)], axis=1).astype(np.int64)
    return normal(boxes)


def _even(shape: Sequence[int], placed: PlacedGrid, procs: int) -> Array:
    """An even cut of the network's input along the axes of the first layer's grid."""
    steps, ranks = strides(placed.grid, placed.order), np.arange(procs)
    boxes = np.zeros((len(FLAT), 2, procs), np.int64)
    boxes[:, 1] = np.array(flat(shape))[:, None]
    for axis in X_AXES:
        at = FLAT.index(axis)
        parts = getattr(placed.grid, axis)
        part = ranks // steps[axis] % parts if parts > 1 else np.zeros_like(ranks)
        size, longer = divmod(boxes[at, 1, 0], parts)
        boxes[at, 0] = part * size + np.minimum(part, longer)
        boxes[at, 1] = boxes[at, 0] + size + (part < longer)
    boxes[:, :, ranks >= placed.grid.size] = 0
    return normal(boxes)
