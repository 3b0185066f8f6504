"""Words that normalizations exchange: two numbers per value and pass, of which several ranks have parts.

The numbers are mean and variance in the forward pass, and two sums in the backward pass. The values are
channels in a batch normalization: with global statistics all ranks that hold words of a channel exchange
them, with local ones those that hold parts of the same samples. In group and instance normalizations they are
samples and groups, in layer normalizations positions. Ranks send few words to each other in one round, or, in
these, to owners and back (`SharedParts` of the runtime).

The plan counts normalizations that lie as a planned layer does. It does not count those of concatenations, of
reindexed values and of the network's input.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from synth.layer.interval_arrays import cut
from synth.layer.intervals import joined
from synth.network.graph import Network, Node
from synth.network.grids.owned_boxes import OwnedBoxes
from synth.runtime.grid.rules.shared_rounds import NUMBERS, in_one_round, owned_share

if TYPE_CHECKING:
    from synth.network.plan.plan import NetworkPlan

CHANNEL = 1  # of a box
Boxes = tuple[np.ndarray, np.ndarray]


def statistics_words(plan: NetworkPlan) -> int:
    """Words per process and training step; of each normalization, those of the process that receives most.

    Also what a checkpoint's region exchanges again: see `recomputed_statistics`.
    """
    if not plan.request.training:
        return 0
    forward = _exchanged(plan)
    nodes = plan.network.nodes
    back = sum(words for name, words in forward.items() if _returns(nodes[name], plan))
    return sum(forward.values()) + back


def recomputed_statistics(plan: NetworkPlan) -> int:
    """Words per process that move again because the model checkpoints parts of itself."""
    if not plan.request.training:
        return 0
    nodes = plan.network.nodes
    return sum(len(nodes[name].region) * words for name, words in _exchanged(plan).items())


def _returns(node: Node, plan: NetworkPlan) -> bool:
    """Whether the backward pass of a batch normalization exchanges sums.

    Local statistics need them for the gradient of the input alone.
    """
    network, request = plan.network, plan.request
    before = request.input_gradient or any(name in network.trained for name in node.inputs)
    return before or (request.batch_norm == "global" and node.parameters > 0)


def _exchanged(plan: NetworkPlan) -> dict[str, int]:
    """Batch normalization -> words that a process receives in its forward pass, at most."""
    layers = dict(
        zip((node.name for node in plan.network.planned), range(len(plan.placed_grids)), strict=True)
    )
    found: dict[str, int] = {}
    of_layer: dict[str, int] = {}
    for node in plan.network.nodes.values():
        source = laid_out_by(node, plan.network) if node.known.exchange == "norms" else None
        if source is not None:
            if source not in of_layer:
                of_layer[source] = _received(plan, layers[source])
            found[node.name] = of_layer[source]
    return found


def laid_out_by(node: Node, network: Network) -> str | None:
    """The planned layer whose output lies as the input of a normalization."""
    part, *others = network.parts[node.inputs[0]]
    whole = not others and not part.path and part.node is not None
    return part.node if whole else None


def _received(plan: NetworkPlan, position: int) -> int:
    """Words that a process receives at most if the output of a layer is normalized."""
    low, high = boxes = boxes_after(plan, position)
    first, last = np.zeros_like(low), np.ones_like(high)
    first[CHANNEL], last[CHANNEL] = low[CHANNEL], high[CHANNEL]
    if plan.request.batch_norm == "local":
        full = (high > low).all(axis=0)
        groups = joined(zip(low[0][full].tolist(), high[0][full].tolist(), strict=True))
        begins = np.array([begin for begin, _ in groups])
        first[0] = np.searchsorted(begins, low[0], "right") - 1
        last[0] = first[0] + 1
    return NUMBERS * _around(first, last, boxes, plan.request.procs, always=True)


def boxes_after(plan: NetworkPlan, position: int) -> tuple[np.ndarray, np.ndarray]:
    """The boxes of all ranks after a layer, as (dimension of `FLAT`, rank).

    A grouped layer whose ranks hold parts of several groups is followed by an even cut of samples, then of
    groups, as `channel_runs` makes it.
    """
    kind, placed, procs = plan.layer_classes[position], plan.placed_grids[position], plan.request.procs
    low, high, exact = OwnedBoxes(kind.nest, [placed], procs).flat(kind.output_tensor)
    low, high = low[:, 0], high[:, 0]
    if exact[0]:
        return low, high
    samples, groups = int(high[0].max()), kind.nest.extents.g
    parts = max(each for each in range(1, procs + 1) if procs % each == 0 and each <= samples)
    rank, width = np.arange(procs), int(high[1].max()) // groups
    low, high = np.zeros((len(low), procs), low.dtype), np.tile(high.max(axis=1), (procs, 1)).T
    low[0], high[0] = cut((0, samples), parts, rank // (procs // parts))
    low[1], high[1] = (width * end for end in cut((0, groups), procs // parts, rank % (procs // parts)))
    return low, high


# -- group, instance and layer normalizations -------------------------------------------------------------


def group_statistics(plan: NetworkPlan) -> dict[str, tuple[int, int]]:
    """Normalization -> words that a process receives, at most, in the forward and in the backward pass.

    The backward pass also sums the gradients of scale and shift over the ranks that hold a channel. A group
    normalization whose number of groups is unknown is counted with a group per channel.
    """
    position = {node.name: i for i, node in enumerate(plan.network.planned)}
    found = {}
    for node in plan.network.nodes.values():
        apart = node.known.exchange in ("group_norms", "layer_norms")
        source = laid_out_by(node, plan.network) if apart else None
        if source is not None:
            boxes = boxes_after(plan, position[source])
            sums = _sums(node, boxes, plan.request.procs)
            found[node.name] = sums, sums + _of_parameters(node, boxes, plan.request.procs)
    return found


def group_statistics_words(plan: NetworkPlan) -> int:
    """Words per process in a forward pass, or in a training step."""
    words = group_statistics(plan).values()
    return sum(forward + (backward if plan.request.training else 0) for forward, backward in words)


def _sums(node: Node, boxes: Boxes, procs: int) -> int:
    """Words of the sums of one pass, of the process that receives most."""
    low, high = (each.copy() for each in boxes)
    if node.kind == "layernorm":
        if not (low[CHANNEL][high[CHANNEL] > low[CHANNEL]] > 0).any():
            return 0  # no channels are cut
        low[CHANNEL], high[CHANNEL] = 0, 1
    else:
        groups = (node.groups if node.kind == "groupnorm" else 0) or node.shape[1]
        size = node.shape[1] // groups
        low[CHANNEL], high[CHANNEL] = low[CHANNEL] // size, -(-high[CHANNEL] // size)
        low[CHANNEL + 1 :], high[CHANNEL + 1 :] = 0, 1
    return NUMBERS * _around(low, high, boxes, procs, direct=True)


def _of_parameters(node: Node, boxes: Boxes, procs: int) -> int:
    """Words of the gradients of scale and shift."""
    low, high = np.zeros_like(boxes[0]), np.ones_like(boxes[1])
    low[CHANNEL], high[CHANNEL] = boxes[0][CHANNEL], boxes[1][CHANNEL]
    return node.trained // node.shape[1] * _around(low, high, boxes, procs)


def _around(
    low: np.ndarray, high: np.ndarray, boxes: Boxes, procs: int, direct: bool = False, always: bool = False
) -> int:
    """Words that a process receives, at most, if sums over ranks with equal boxes go to owners and return.

    boxes: of the value itself; ranks without words of it add nothing. direct: whether few words go from all
    ranks to all others instead; always: whether all do.
    Of very many processes only a sample is known (`sampled_ranks`); its groups are scaled.
    """
    used = (boxes[1] > boxes[0]).all(axis=0)
    held, counts = np.unique(np.stack([low[:, used], high[:, used]]), axis=2, return_counts=True)
    most, scale = 0, max(1.0, procs / low.shape[1])
    for (first, last), number in zip(np.moveaxis(held, 2, 0), counts.tolist(), strict=True):
        extents, ranks = [int(each) for each in last - first], int(number * scale)
        share, words = owned_share(extents, ranks), math.prod(extents)
        if ranks > 1:
            once = always or (direct and in_one_round(words, share, ranks))
            most = max(most, (ranks - 1) * words if once else words + (ranks - 2) * share)
    return most
