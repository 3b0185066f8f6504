"""Words that batch normalizations exchange: two per channel and other rank, in each direction.

Ranks exchange mean and variance in the forward pass, and two sums in the backward pass. With global
statistics all ranks that hold words of a channel do so, with local ones those that hold parts of the same
samples. The plan counts batch normalizations that lie as a planned layer does. It does not count those of
concatenations, of reindexed values and of the network's input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from synth.layer.interval_arrays import cut
from synth.network.graph import Network, Node
from synth.network.grids.owned_boxes import OwnedBoxes

if TYPE_CHECKING:
    from synth.network.plan.plan import NetworkPlan

Interval = tuple[int, int]
PER_CHANNEL = 2  # mean and variance; two sums in the backward pass


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
        source = laid_out_by(node, plan.network) if node.kind == "batchnorm" else None
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
    """Words that a process receives at most if the output of a layer is normalized.

    Of very many processes only a sample is known (`sampled_ranks`); its groups are scaled.
    """
    low, high = boxes_after(plan, position)
    full = (high > low).all(axis=0)
    samples = [(0, int(high[0].max()))]
    if plan.request.batch_norm == "local":
        samples = joined(low[0][full], high[0][full])
    most, scale = 0, max(1.0, plan.request.procs / low.shape[1])
    for first, last in samples:
        inside = full & (low[0] >= first) & (low[0] < last)
        for begin, end in joined(low[1][inside], high[1][inside]):
            ranks = int((inside & (low[1] >= begin) & (low[1] < end)).sum() * scale)
            most = max(most, PER_CHANNEL * (end - begin) * (ranks - 1))
    return most


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


def joined(lows: np.ndarray, highs: np.ndarray) -> list[Interval]:
    """The intervals between the positions that no given interval crosses."""
    found: list[Interval] = []
    for low, high in sorted({(int(a), int(b)) for a, b in zip(lows, highs, strict=True)}):
        if found and low < found[-1][1]:
            found[-1] = found[-1][0], max(high, found[-1][1])
        else:
            found.append((low, high))
    return found
