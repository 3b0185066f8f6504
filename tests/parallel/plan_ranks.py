"""What the ranks of the tests of network plans do: functions that return what a test looks at."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from small_networks import MODELS, PLANS, near
from torch import nn

import synth
from synth.base.errors import InfeasibleError, UsageError
from synth.network.planner.plan import NetworkPlan
from synth.network.planner.plan_json import to_json
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
        if edge.role == "out":  # moved for the sum that lies where the target does
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
    readers = entered | {node.name for node in graph.nodes.values() if node.kind == "add"}
    (counted, inside), (planned, planned_inside) = counted_words(net, shape), planned_words(plan)
    assert {name: words for name, words in counted.items() if name in readers} == planned
    assert inside == planned_inside


def sgd_steps(net: Network, whole: nn.Module, shape: tuple[int, ...], steps: int) -> float:
    """SGD steps on the ranks and in one process: the largest difference of outputs, losses and the state."""
    differences = []
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (net, whole)]
    for _ in range(steps):
        batch = torch.randn(shape, dtype=net.program.dtype)
        right = whole(batch)
        target = torch.randn(right.shape, dtype=net.program.dtype)
        out = net.gather(net(net.scatter(batch)))
        losses = [nn.functional.mse_loss(each, target) for each in (out, right)]
        differences.append(near(out.detach(), right.detach()))
        differences.append(near(losses[0].detach(), losses[1].detach()))
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    state = net.full_state_dict()
    for key, values in whole.state_dict().items():
        differences.append(near(state[key], values))
    return max(differences)


def trained_as_planned(model: str, axes: str, source: str, folder: str) -> float:
    """Train a network for ten steps and check the words of one more: the largest difference of values.

    axes: those that may be cut; "" for all. source: where the plan comes from: "none" (`parallelize` makes
    it), "object" or "file".
    """
    torch.manual_seed(0)
    make, shape = MODELS[model]
    whole = make().double()
    plan = synth.plan_model(whole, shape, 4, axes=axes)
    file = Path(folder, f"plan-{dist.get_rank()}.json")
    file.write_text(json.dumps(to_json(plan)))
    if "decoder" in model:  # all layers but the first are cut by input rows
        assert [bool(placed.turned) for placed in plan.placed_grids] == [False, True, True, True]
    given = {"none": None, "object": plan, "file": str(file)}[source]
    net = synth.parallelize(whole, shape, plan=given)
    difference = sgd_steps(net, whole, shape, 10)
    words_as_planned(plan, net, shape)
    return difference


def gradients(net: Network) -> dict[str, torch.Tensor]:
    """By name, whole."""
    given = {name: p.grad for name, p in net.named_parameters()}
    return {name: grad.full_tensor() for name, grad in given.items() if grad is not None}


def gradients_in_buckets(plan: str) -> dict[str, Any]:
    """Gradients of three backward passes with buckets of 0, 200 bytes and 25 MiB, which must be equal.

    messages, words: of the sums, by the size of buckets. shared: parameters that several ranks hold.
    groups: groups of ranks that share parameters.
    """
    kind, shape = MODELS["biases"]
    sent, found = [], []
    for size in (0, 200, 25 * 2**20):
        torch.manual_seed(0)
        whole = kind().double()
        parts, target = torch.randn(3, *shape).double(), torch.randn(()).double()
        net = synth.parallelize(whole, shape, plan=PLANS[plan], bucket_bytes=size)
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


def gradients_after_a_failed_backward_pass(model: str) -> dict[str, float]:
    """Parameter -> the difference of its gradient before and after a backward pass that failed."""
    kind, shape = MODELS[model]
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


def fed(model: str, folder: str) -> None:
    """Every rank reads its own part of a file; together they read the file once."""
    kind, shape = MODELS[model]
    torch.manual_seed(0)
    batches = torch.randn(3, *shape)
    file = Path(folder, "samples.npy")
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


def refusals_of_other_plans() -> list[str]:
    """How plans for 3 processes, another model and another batch are refused, and a limit of 4000 bytes."""
    residual, shape = MODELS["residual"]
    cosmo, cosmo_shape = MODELS["cosmo"]
    plans = [
        synth.plan_model(residual(), shape, 3),
        synth.plan_model(cosmo(), cosmo_shape, 4),
        synth.plan_model(residual(), (8, *shape[1:]), 4, axes="b"),
    ]
    said = []
    for plan in plans:
        with pytest.raises(UsageError) as refused:
            synth.parallelize(residual(), (2, *shape[1:]), plan=plan)
        said.append(str(refused.value))
    with pytest.raises(InfeasibleError) as infeasible:
        synth.parallelize(residual(), shape, memory=4000)
    return [*said, str(infeasible.value)]
