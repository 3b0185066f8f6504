"""What lies between planned layers: norms, activations, joins, and steps on gathered tensors.

Such a layer has the layout of the planned layer before it. It reads and writes the words of its rank, in one
kernel per pass, and a normalization exchanges statistics. Its work counts with that layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from synth.machine.hierarchy import Machine
from synth.network.graph import Network, Node
from synth.network.kinds import KINDS
from synth.network.step_time.calls import call_costs


@dataclass(frozen=True)
class Between:
    """What follows a planned layer in its layout.

    touched_forward, touched_backward: accesses of words, in multiples of the layer's output. norms,
    group_norms, layer_norms: exchanges of statistics per pass: of batch normalizations, of group and instance
    normalizations, of layer normalizations. groups: of the group normalizations, added, as a fraction of the
    channels. kernels_forward, kernels_backward: kernel calls. fixed, fixed_backward: seconds of calls that
    take the same on any grid.
    """

    touched_forward: float = 0.0
    touched_backward: float = 0.0
    norms: float = 0.0
    group_norms: float = 0.0
    layer_norms: float = 0.0
    groups: float = 0.0
    kernels_forward: float = 0.0
    kernels_backward: float = 0.0
    fixed: float = 0.0
    fixed_backward: float = 0.0

    def plus(self, other: Between, weight: float = 1.0) -> Between:
        """This and a multiple of another."""
        fields = Between.__dataclass_fields__
        return Between(**{name: getattr(self, name) + weight * getattr(other, name) for name in fields})


def between(network: Network, procs: int, machine: Machine, inference: bool = False) -> dict[str, Between]:
    """Planned layer -> what follows it in its layout. What follows the input alone is left out.

    inference: batch normalizations take running statistics, so that they exchange nothing.
    """
    found = {node.name: Between() for node in network.planned}
    calls = {each.name: each for each in call_costs(network, procs, machine)}
    last = ""
    for node in network.nodes.values():
        if node.layer is not None:
            last = node.name
        elif node.name in calls and last:
            call = calls[node.name]
            found[last] = found[last].plus(Between(fixed=call.forward, fixed_backward=call.backward))
        elif node.known.accesses:
            for name, added in _added(network, node, inference).items():
                found[name] = found[name].plus(added)
    return found


def _added(network: Network, node: Node, inference: bool) -> dict[str, Between]:
    """Planned layer -> the part of a node that lies as the layer's output."""
    parts = network.parts[node.name]
    running = inference and node.kind == "batchnorm"
    forward, backward = accesses(node, inference)
    found: dict[str, Between] = {}
    channels = sum(part.count for part in parts)
    for part in parts:
        if part.node is None or not part.count:
            continue
        words = node.in_words if node.kind == "globalpool" else node.out_words
        share = part.count / channels * words / network.nodes[part.node].out_words
        first = part is parts[0]
        added = Between(
            forward * share,
            backward * share,
            kernels_forward=float(first),
            kernels_backward=float(first and backward > 0),
        )
        if first and node.known.exchange and not running:
            added = replace(added, **{node.known.exchange: 1.0}, groups=_groups(node))
        found[part.node] = found.get(part.node, Between()).plus(added)
    return found


def accesses(node: Node, inference: bool) -> tuple[int, int]:
    """Accesses of the words of a node that lies as the layer before it, forward and backward.

    inference: see `between`.
    """
    running = inference and node.kind == "batchnorm"
    return (KINDS["scale"] if running else node.known).accesses or (0, 0)


def _groups(node: Node) -> float:
    """Groups of a group normalization as a fraction of its channels: 1 where they are not known."""
    if node.known.exchange != "group_norms":
        return 0.0
    return node.groups / node.shape[1] if node.kind == "groupnorm" and node.groups else 1.0


def mean_between(found: Sequence[Between]) -> Between:
    """What follows the layers of a class, on average."""
    total = Between()
    for each in found:
        total = total.plus(each, 1 / len(found))
    return total
