"""What the ranks of the tests of network plans do: functions that return what a test looks at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from beside_one_process import sgd_steps
from network_words import words_as_planned
from small_networks import MODELS, PLANS

import synth
from synth.base.errors import InfeasibleError, UsageError
from synth.network.plan.plan_json import to_json
from synth.runtime.model.network import Network


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
