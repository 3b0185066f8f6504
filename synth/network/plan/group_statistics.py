"""Words that group, instance and layer normalizations exchange: the sums of parts that several ranks hold.

A pass combines two numbers per sample and group, or per position: mean and variance, or two sums. Ranks that
hold parts of a group send them to each other in one round, or, where that moves many words, to owners and
back (`SharedParts` of the runtime). The plan counts normalizations that lie as a planned layer does.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from synth.network.graph import Node
from synth.network.norm_rounds import NUMBERS, in_one_round
from synth.network.plan.statistics import boxes_after, laid_out_by

if TYPE_CHECKING:
    from synth.network.plan.plan import NetworkPlan

KINDS = ("groupnorm", "instancenorm", "layernorm")
CHANNEL = 1  # of a box
Boxes = tuple[np.ndarray, np.ndarray]


def group_statistics(plan: NetworkPlan) -> dict[str, tuple[int, int]]:
    """Normalization -> words that a process receives, at most, in the forward and in the backward pass.

    The backward pass also sums the gradients of scale and shift over the ranks that hold a channel. A group
    normalization whose number of groups is unknown is counted with a group per channel.
    """
    position = {node.name: i for i, node in enumerate(plan.network.planned)}
    found = {}
    for node in plan.network.nodes.values():
        source = laid_out_by(node, plan.network) if node.kind in KINDS else None
        if source is not None:
            boxes = boxes_after(plan, position[source])
            sums = _sums(node, boxes)
            found[node.name] = sums, sums + _of_parameters(node, boxes)
    return found


def group_statistics_words(plan: NetworkPlan) -> int:
    """Words per process in a forward pass, or in a training step."""
    words = group_statistics(plan).values()
    return sum(forward + (backward if plan.request.training else 0) for forward, backward in words)


def _sums(node: Node, boxes: Boxes) -> int:
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
    return NUMBERS * _around(low, high, boxes, direct=True)


def _of_parameters(node: Node, boxes: Boxes) -> int:
    """Words of the gradients of scale and shift."""
    low, high = np.zeros_like(boxes[0]), np.ones_like(boxes[1])
    low[CHANNEL], high[CHANNEL] = boxes[0][CHANNEL], boxes[1][CHANNEL]
    return node.trained // node.shape[1] * _around(low, high, boxes)


def _around(
    low: np.ndarray,
    high: np.ndarray,
    boxes: Boxes,
    direct: bool = False,
) -> int:
    """Words that a process receives, at most, if sums over ranks with equal boxes go to owners and return.

    boxes: of the value itself; ranks without words of it add nothing. direct: whether few words go from all
    ranks to all others instead.
    """
    used = (boxes[1] > boxes[0]).all(axis=0)
    held, counts = np.unique(np.stack([low[:, used], high[:, used]]), axis=2, return_counts=True)
    most = 0
    for (first, last), ranks in zip(np.moveaxis(held, 2, 0), counts.tolist(), strict=True):
        extents = [int(each) for each in last - first]
        longest = max(extents)
        share = math.prod(extents) // longest * -(-longest // ranks)
        words = math.prod(extents)
        if ranks > 1:
            once = direct and in_one_round(words, share, ranks)
            most = max(most, (ranks - 1) * words if once else words + (ranks - 2) * share)
    return most
