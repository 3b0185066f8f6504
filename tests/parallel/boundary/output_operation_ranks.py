"""Operations on the output of a network on ranks, beside one process."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from output_operations import OPERATIONS, REFUSED, Operation
from torch import nn

import synth

SHAPE = (4, 3, 8, 8)
networks: dict[str, tuple[Any, nn.Module]] = {}


def network(plan: Any, refuse: bool = False) -> tuple[Any, nn.Module]:
    """A convolution on ranks, and in one process."""
    key = f"{plan} {refuse}"
    if key not in networks:
        torch.manual_seed(0)
        whole = nn.Conv2d(3, 6, 3, padding=1).double()
        net = synth.parallelize(copy.deepcopy(whole), SHAPE, plan=plan, refuse=refuse)
        networks[key] = net, whole
    return networks[key]


def whole_of(values: Any) -> torch.Tensor:
    """All words."""
    whole: torch.Tensor = values.full_tensor() if hasattr(values, "full_tensor") else values
    return whole.detach()


def apart(mine: torch.Tensor, its: torch.Tensor) -> float:
    """The largest difference, by the largest word."""
    if mine.shape != its.shape or mine.dtype != its.dtype:
        return float("inf")
    if not its.numel():
        return 0.0
    difference = (mine.double() - its.double()).abs().max()
    return float(difference / its.double().abs().max().clamp(min=1e-3))


def error(name: str, plan: Any) -> float:
    """The largest difference of an operation's result, and of the gradients behind it."""
    net, whole = network(plan)
    torch.manual_seed(1)
    batch, operation = torch.randn(SHAPE, dtype=torch.float64), OPERATIONS[name]
    results = []
    with warnings.catch_warnings(action="ignore"):
        for each in (net, whole):
            each.zero_grad()
            made = operation(each(batch))
            found = whole_of(made)
            if made.requires_grad:
                torch.autograd.backward((made * found.cos()).sum())
            gradients = [whole_of(p.grad) for p in each.parameters() if p.grad is not None]
            results.append([found, *gradients])
    mine, its = results
    return max(map(apart, mine, its)) if len(mine) == len(its) else float("inf")


def errors(plan: Any) -> dict[str, float]:
    """All operations that differ by more than rounding."""
    found = {name: error(name, plan) for name in OPERATIONS}
    return {name: each for name, each in found.items() if not each < 1e-9}


def sentences(plan: Any) -> dict[str, str]:
    """What is said of changes that would be lost."""
    net, _ = network(plan)
    out = net(torch.ones(SHAPE, dtype=torch.float64))
    found = {}
    with warnings.catch_warnings(action="ignore"):
        for name, (operation, _) in REFUSED.items():
            try:
                operation(out)
                found[name] = "nothing"
            except RuntimeError as fault:
                found[name] = str(fault)
    return found


def told(operation_name: str) -> list[str]:
    """Warnings of an operation that is called three times on one line."""
    net, _ = network({"h": 2, "k": 2})
    operation: Operation = OPERATIONS[operation_name]
    with warnings.catch_warnings(record=True, action="default") as seen:
        for _ in range(3):
            operation(net(torch.ones(SHAPE, dtype=torch.float64)))
    return [str(each.message) for each in seen]


def refused(operation_name: str) -> str:
    """What a network says that refuses to gather."""
    net, _ = network({"h": 4}, refuse=True)
    out = net(torch.ones(SHAPE, dtype=torch.float64))
    try:
        OPERATIONS[operation_name](out)
    except NotImplementedError as fault:
        return str(fault)
    return "nothing"


def alone(plan: Any) -> dict[str, str]:
    """What each operation leads to that the first rank alone calls; all ranks then make another step."""
    net, _ = network(plan)
    batch, found = torch.ones(SHAPE, dtype=torch.float64), {}
    for name, operation in OPERATIONS.items():
        try:
            out = net(batch)
            with warnings.catch_warnings(action="ignore"):
                if torch.distributed.get_rank() == 0:
                    operation(out)
                net(batch).mul(2).square().mean().backward()
            found[name] = "nothing"
        except RuntimeError as fault:
            found[name] = str(fault)
    return found
