"""What one rank of the tests of whole-network plans does. Every function runs on all ranks and asserts."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from network_ranks import MODELS, near
from torch import nn

import synth
from runtime.module import DistributedLayer
from runtime.network import Network
from synth.errors import InfeasibleError, UsageError
from synth.network.planner import NetworkPlan
from synth.network.report import to_json


def most(values: dict[str, int]) -> dict[str, int]:
    """By key, the most of any rank."""
    told: list[dict[str, int]] = [{}] * dist.get_world_size()
    dist.all_gather_object(told, values)
    return {key: max(each.get(key, 0) for each in told) for key in sorted({k for one in told for k in one})}


def moved(net: Network) -> dict[str, int]:
    """By the step that they are moved for, words received between layers so far."""
    return {name: words for (phase, _, name), words in net.words.steps.items() if phase.strip() == "move"}


def inside(net: Network) -> dict[str, int]:
    """By layer, words received in it so far."""
    own = {m.name: m.words.received()["total"] for m in net.modules() if isinstance(m, DistributedLayer)}
    halo = {name: words for (phase, _, name), words in net.words.steps.items() if phase == "halo"}
    return own | halo


def words_as_planned(plan: NetworkPlan, net: Network, shape: tuple[int, ...]) -> None:
    """One step on the ranks receives what the plan says, layer by layer and edge by edge."""
    out = net(net.scatter(torch.randn(shape, dtype=net.dtype)))
    forward = moved(net)
    out.square().sum().backward()
    both = moved(net)
    there, back = most(forward), most({name: both[name] - forward.get(name, 0) for name in both})
    planned: dict[str, int] = defaultdict(int)
    graph = plan.network
    for edge, words in plan.edge_words.items():
        names = [edge.target]
        if edge.role == "out":  # moved for the sums that lie where the target does
            sums = [node for node in graph.nodes.values() if len(node.inputs) > 1]
            names = [s.name for s in sums if (graph.homes[s.inputs[0]], graph.homes[s.inputs[1]])
                     == (edge.target, edge.source)]  # fmt: skip
        assert len(names) == 1, (edge, names)
        planned[names[0]] += words
    open_ended = {name for name, node in graph.nodes.items() if None in map(graph.homes.get, node.inputs)}
    open_ended |= {name for name, node in graph.nodes.items() if node.kind == "gathered"}
    counted = {name: there.get(name, 0) + back.get(name, 0) for name in {*there, *back} - open_ended}
    assert {k: v for k, v in counted.items() if v} == {k: v for k, v in planned.items() if v}, (counted, planned)
    costs = dict(zip((node.name for node in graph.planned), plan.layer_costs, strict=True))
    received = most(inside(net))
    assert {k: v for k, v in received.items() if v} == {k: int(v) for k, v in costs.items() if v}
    if dist.get_rank() == 0:
        print("words", sum(counted.values()), sum(received.values()), "planned", plan.cost, flush=True)


def ten_steps(net: Network, whole: nn.Module, shape: tuple[int, ...]) -> None:
    """SGD on the ranks and in one process."""
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (net, whole)]
    for _ in range(10):
        batch = torch.randn(shape, dtype=net.dtype)
        right = whole(batch)
        target = torch.randn(right.shape, dtype=net.dtype)
        out = net.gather(net(net.scatter(batch)))
        losses = [nn.functional.mse_loss(each, target) for each in (out, right)]
        near(losses[0].detach(), losses[1].detach())
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    state = net.full_state_dict()
    for key, values in whole.state_dict().items():
        near(state[key], values)


def as_planned(case: str) -> None:
    """A plan, from here, as an object or from a file, is what runs; its words are counted, and it trains."""
    torch.manual_seed(0)
    name, *axes = case.split()
    kind, shape = MODELS[name]
    whole = kind()
    plan = synth.plan_model(whole, shape, 4, axes="".join(axes))
    file = Path(sys.argv[3], f"plan-{dist.get_rank()}.json")
    file.write_text(json.dumps(to_json(plan)))
    given = {"residual": None, "cosmo": str(file)}.get(case, plan)
    net = synth.parallelize(whole, shape, plan=given)
    ten_steps(net, whole, shape)
    for counted in (net.words, *(m.words for m in net.modules() if isinstance(m, DistributedLayer))):
        counted.steps.clear()
    words_as_planned(plan, net, shape)


def wrong_plans(case: str) -> None:
    """Plans of other models, inputs and processes are refused in a sentence, on every rank."""
    kind, shape = MODELS[case]
    other, its_shape = MODELS["cosmo"]
    plans: list[Any] = [
        synth.plan_model(kind(), shape, 3),
        synth.plan_model(other(), its_shape, 4),
        synth.plan_model(kind(), (8, *shape[1:]), 4, axes="b"),
    ]
    for plan in plans:
        try:
            synth.parallelize(kind(), (2, *shape[1:]), plan=plan)
        except UsageError as error:
            print("refused:", error)
        else:
            raise AssertionError(plan)
    try:
        synth.parallelize(kind(), shape, memory=4000)
    except InfeasibleError as error:
        print("refused:", error)


def main() -> None:
    """argv: function, its argument, folder."""
    dist.init_process_group("gloo")
    globals()[sys.argv[1]](sys.argv[2])
    dist.barrier()
    dist.destroy_process_group()
