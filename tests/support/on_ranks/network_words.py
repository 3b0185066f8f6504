"""Words that the ranks of a network receive, by layer and between layers, beside those of its plan."""

from __future__ import annotations

from collections import defaultdict

import torch
import torch.distributed as dist

from synth.network.plan.plan import NetworkPlan
from synth.runtime.grid.ranks import Ranks
from synth.runtime.layers.distributed_layer import DistributedLayer
from synth.runtime.model.network import Network

Words = dict[str, int]  # name of a step or layer -> received words, without zeros


def most(values: Words, ranks: Ranks) -> Words:
    """By key, the most of any rank."""
    of_ranks: list[Words] = [{}] * ranks.size
    dist.all_gather_object(of_ranks, values, group=ranks.group)
    names = sorted({name for one in of_ranks for name in one})
    return {name: max(each.get(name, 0) for each in of_ranks) for name in names}


def between_layers(net: Network) -> Words:
    """By the step that they are moved for, words received between layers so far."""
    return {
        name: words
        for (phase, _, name), words in net.program.context.traffic.steps.items()
        if phase.strip() == "move"
    }


def in_layers(net: Network) -> Words:
    """By layer, words received in it so far."""
    own = {
        m.name: m.traffic.received()["total"]
        for m in net.program.modules()
        if isinstance(m, DistributedLayer)
    }
    halo = {
        name: words
        for (phase, _, name), words in net.program.context.traffic.steps.items()
        if phase == "halo"
    }
    return own | halo


def counted_words(net: Network, shape: tuple[int, ...]) -> tuple[Words, Words]:
    """Words that the busiest rank receives in one step: between layers, and in them."""
    for counter in (
        net.program.context.traffic,
        *(m.traffic for m in net.program.modules() if isinstance(m, DistributedLayer)),
    ):
        counter.steps.clear()
    out = net(net.scatter(torch.randn(shape, dtype=net.program.dtype)))
    forward = between_layers(net)
    out.square().sum().backward()
    both = between_layers(net)
    backward = {name: words - forward.get(name, 0) for name, words in both.items()}
    there, back = most(forward, net.ranks), most(backward, net.ranks)
    names = there.keys() | back.keys()
    return (
        without_zeros({name: there.get(name, 0) + back.get(name, 0) for name in names}),
        without_zeros(most(in_layers(net), net.ranks)),
    )


def planned_words(plan: NetworkPlan) -> tuple[Words, Words]:
    """The same of a plan: between layers by the step that reads them, and in layers."""
    graph, between = plan.network, defaultdict[str, int](int)
    for edge, words in plan.edge_words.items():
        names = [edge.target]
        if edge.moves_rows:
            names = [edge.target_path[-1].name]
        elif edge.role == "out":  # moved for the sum that lies where the target does
            sums = [node for node in graph.nodes.values() if len(node.inputs) > 1]
            ends = [edge.target, edge.source]
            names = [s.name for s in sums if [graph.parts[i][0].node for i in s.inputs] == ends]
        assert len(names) == 1, (edge, names)
        between[names[0]] += words
    layers = dict(zip((node.name for node in graph.planned), plan.layer_costs, strict=True))
    return without_zeros(between), without_zeros({name: int(words) for name, words in layers.items()})


def without_zeros(words: Words) -> Words:
    """The words of steps that receive any."""
    return {name: number for name, number in words.items() if number}


def words_as_planned(plan: NetworkPlan, net: Network, shape: tuple[int, ...]) -> None:
    """Assert that one step receives what the plan says, layer by layer and edge by edge."""
    graph = plan.network
    entered = {node.name for node in graph.planned if graph.parts[node.inputs[0]][0].node}
    readers = entered | {node.name for node in graph.nodes.values() if node.kind in ("add", "globalpool")}
    (counted, inside), (planned, planned_inside) = counted_words(net, shape), planned_words(plan)
    assert {name: words for name, words in counted.items() if name in readers} == planned
    assert inside == planned_inside
