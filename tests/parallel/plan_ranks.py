"""What one rank of the tests of whole-network plans does. Every function runs on all ranks and asserts."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from network_ranks import MODELS, PLANS, near
from ranks import print_facts
from torch import nn

import synth
from synth.base.errors import InfeasibleError, UsageError
from synth.network.planner.plan import NetworkPlan
from synth.network.planner.plan_json import to_json
from synth.runtime.grid.ranks import Ranks
from synth.runtime.layers.distributed_layer import DistributedLayer
from synth.runtime.model.network import Network


def most(values: dict[str, int], ranks: Ranks) -> dict[str, int]:
    """By key, the most of any rank."""
    told: list[dict[str, int]] = [{}] * ranks.size
    dist.all_gather_object(told, values, group=ranks.group)
    return {key: max(each.get(key, 0) for each in told) for key in sorted({k for one in told for k in one})}


def moved(net: Network) -> dict[str, int]:
    """By the step that they are moved for, words received between layers so far."""
    return {
        name: words
        for (phase, _, name), words in net.program.context.traffic.steps.items()
        if phase.strip() == "move"
    }


def since(now: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    """By key, by how much a number has grown."""
    return {name: number - before.get(name, 0) for name, number in now.items()}


def inside(net: Network) -> dict[str, int]:
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


def words_as_planned(plan: NetworkPlan, net: Network, shape: tuple[int, ...]) -> None:
    """One step on the ranks receives what the plan says, layer by layer and edge by edge."""
    for counter in (
        net.program.context.traffic,
        *(m.traffic for m in net.program.modules() if isinstance(m, DistributedLayer)),
    ):
        counter.steps.clear()
    out = net(net.scatter(torch.randn(shape, dtype=net.program.dtype)))
    forward = moved(net)
    out.square().sum().backward()
    both = moved(net)
    there, back = most(forward, net.ranks), most(since(both, forward), net.ranks)
    planned: dict[str, int] = defaultdict(int)
    graph = plan.network
    for edge, words in plan.edge_words.items():
        names = [edge.target]
        if edge.role == "out":  # moved for the sums that lie where the target does
            sums = [node for node in graph.nodes.values() if len(node.inputs) > 1]
            names = [s.name for s in sums if [graph.parts[i][0].node for i in s.inputs]
                     == [edge.target, edge.source]]  # fmt: skip
        assert len(names) == 1, (edge, names)
        planned[names[0]] += words
    entered = {node.name for node in graph.planned if graph.parts[node.inputs[0]][0].node}
    names = (entered | {node.name for node in graph.nodes.values() if node.kind == "add"}) & {*there, *back}
    counted = {name: there.get(name, 0) + back.get(name, 0) for name in names}
    assert {k: v for k, v in counted.items() if v} == {k: v for k, v in planned.items() if v}, (
        counted,
        planned,
    )
    costs = dict(zip((node.name for node in graph.planned), plan.layer_costs, strict=True))
    received = most(inside(net), net.ranks)
    assert {k: v for k, v in received.items() if v} == {k: int(v) for k, v in costs.items() if v}
    if net.ranks.me == 0:
        print("words", sum(counted.values()), sum(received.values()), "planned", plan.cost, flush=True)


def sgd_steps(net: Network, whole: nn.Module, shape: tuple[int, ...], steps: int) -> None:
    """Outputs, losses and the state after SGD steps are those of one process."""
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (net, whole)]
    for _ in range(steps):
        batch = torch.randn(shape, dtype=net.program.dtype)
        right = whole(batch)
        target = torch.randn(right.shape, dtype=net.program.dtype)
        out = net.gather(net(net.scatter(batch)))
        losses = [nn.functional.mse_loss(each, target) for each in (out, right)]
        near(out.detach(), right.detach())
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
    whole = kind().double()
    plan = synth.plan_model(whole, shape, 4, axes="".join(axes))
    file = Path(sys.argv[3], f"plan-{dist.get_rank()}.json")
    file.write_text(json.dumps(to_json(plan)))
    if "decoder" in name:
        turned = [placed.turned for placed in plan.placed_grids]
        assert turned[0] == ()
        assert all(turned[1:])
    given = {"residual": None, "cosmo": str(file), "decoder": str(file)}.get(case, plan)
    net = synth.parallelize(whole, shape, plan=given)
    sgd_steps(net, whole, shape, 10)
    words_as_planned(plan, net, shape)


def gradients(net: Network) -> dict[str, torch.Tensor]:
    """By name, whole."""
    given = {name: p.grad for name, p in net.named_parameters()}
    return {name: grad.full_tensor() for name, grad in given.items() if grad is not None}


def buckets(case: str) -> dict[str, Any]:
    """Any bucket size gives the same gradients of the same words; only messages are fewer."""
    name, how = case.split()
    kind, shape = MODELS[name]
    sent, found = [], []
    for size in (0, 200, 25 * 2**20):
        torch.manual_seed(0)
        whole = kind().double()
        parts, target = torch.randn(3, *shape).double(), torch.randn(()).double()
        net = synth.parallelize(whole, shape, plan=PLANS[how], bucket_bytes=size)
        for _ in range(2):  # sums of an earlier step do not come back
            net.zero_grad(set_to_none=False)
            before = net.program.buckets.messages
            with net.no_sync():
                for part in parts[:2]:
                    (net(net.scatter(part)) - target).square().sum().backward()
            assert net.program.buckets.messages == before
            (net(net.scatter(parts[2])) - target).square().sum().backward()
        (net(net.scatter(parts[0])) - target).square().sum().backward()  # without zeroing, adds
        found.append(gradients(net))
        sent.append((net.program.buckets.messages, net.program.buckets.words))
    for other in found[1:]:
        for key, values in found[0].items():
            torch.testing.assert_close(other[key], values)
    messages, words = zip(*sent, strict=True)
    shared = sum(len(bucket.shared) for bucket in net.program.buckets.buckets)
    groups = {bucket.group for bucket in net.program.buckets.buckets}
    for part in (*parts, parts[0]):
        (whole(part) - target).square().sum().backward()
    for key, parameter in whole.named_parameters():
        torch.testing.assert_close(found[-1][key], parameter.grad)
    return {"messages": messages, "words": words, "shared": shared, "groups": len(groups)}


def broken_pass(case: str) -> dict[str, float]:
    """Differences of gradients before and after a backward pass that broke off."""
    kind, shape = MODELS[case]
    torch.manual_seed(0)
    net = synth.parallelize(kind(), shape, plan="filter", input_gradient=True)
    batch = torch.randn(shape)

    def fails(gradient: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("on purpose")

    net(net.scatter(batch)).square().sum().backward()
    right = gradients(net)
    net.zero_grad()
    share = net.scatter(batch).requires_grad_()
    share.register_hook(fails)
    with pytest.raises(RuntimeError, match="on purpose"):
        net(share).square().sum().backward()
    net.zero_grad()
    net(net.scatter(batch)).square().sum().backward()
    found = gradients(net)
    assert found.keys() == right.keys()
    return {key: float((values - right[key]).abs().max()) for key, values in found.items()}


def fed(case: str) -> None:
    """Every rank reads its own part of a file; together they read the file once."""
    kind, shape = MODELS[case]
    torch.manual_seed(0)
    batches = torch.randn(3, *shape)
    file = Path(sys.argv[3], "samples.npy")
    if dist.get_rank() == 0:
        np.save(file, batches.flatten(0, 1).numpy())
    dist.barrier()
    for how in ("data", "rows_channels"):
        net = synth.parallelize(kind(), shape, plan=PLANS[how])
        feed = synth.feed(net, file)
        for share, batch in zip(feed, batches, strict=True):
            assert torch.equal(share, net.scatter(batch))
            net(share).sum().backward()
        read = torch.tensor(feed.samples.bytes_read)
        assert read == 3 * 4 * net.scatter(batches[0]).to_local().numel()
        dist.all_reduce(read)
        assert read == 4 * batches.numel()


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
    print_facts(globals()[sys.argv[1]](sys.argv[2]))
    dist.barrier()
    dist.destroy_process_group()
