"""Normalizations on real ranks, beside torch's own in one process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

from synth.runtime.comm import messages
from synth.runtime.comm.layout import Layout
from synth.runtime.comm.process_groups import ProcessGroups
from synth.runtime.grid.boxes import Box, within
from synth.runtime.grid.ranks import Ranks
from synth.runtime.grid.rules import shared_rounds
from synth.runtime.layers.norms.batch_norm import BatchNorm
from synth.runtime.layers.norms.rule_norms import norm_step

GATHER = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
CALLS = ("all_to_all_single", "isend", "all_reduce", GATHER)
MADE: dict[str, Callable[[], nn.Module]] = {
    "group": lambda: nn.GroupNorm(4, 12),
    "one group": lambda: nn.GroupNorm(1, 12),
    "instance": lambda: nn.InstanceNorm2d(12, affine=True),
    "layer": lambda: nn.LayerNorm(12),
    "batch": lambda: nn.BatchNorm2d(12),
}


def normalized(kind: str, whole: tuple[int, ...], boxes: tuple[Box, ...], most: int = 1024) -> dict[str, Any]:
    """Errors, words and collectives of both passes. most: words that one round may move more than two."""
    draw = torch.Generator().manual_seed(0)
    plain: Any = MADE[kind]().double()
    for values in plain.parameters():
        values.data.normal_(generator=draw)
    x = torch.randn(whole, generator=draw, dtype=torch.float64) * 0.1 + 1e3  # a mean far above the deviation
    gradient = torch.randn(whole, generator=draw, dtype=torch.float64)
    given = x.clone().requires_grad_()
    out = plain(given)
    out.backward(gradient)
    ranks, counted = Ranks.world(), list[int]()
    layout = Layout(whole, boxes, ranks)
    with mock.patch.object(shared_rounds, "ROUND", most):
        norm = made(kind, plain, layout, ProcessGroups(ranks), counted.append)
        for name, held in norm.held_tensors().items():
            held.bind(nn.Parameter(held.partition.cut(getattr(plain, name).detach()).clone()))
        frame = tuple((0, n) for n in whole)
        mine = within(layout.mine, frame)
        shard = x[mine].clone().requires_grad_()
        calls = list[str]()
        with watched(calls):
            own = norm(shard)
        forward = counted[:], calls[:]
        norm.module.requires_grad_(False)
        calls.clear()
        (dshard,) = torch.autograd.grad(own, shard, gradient[mine])
        (words,) = norm.rule.combined.exchanges()
    assert given.grad is not None
    pairs = (own.detach(), out[mine].detach()), (dshard, given.grad[mine])
    return {
        "errors": [float((a - b).abs().sum()) for a, b in pairs],
        "forward": (sum(forward[0]), words.forward[ranks.me]),
        "calls": forward[1],
    }


def gradients(
    kind: str, whole: tuple[int, ...], boxes: tuple[Box, ...], dtype: torch.dtype
) -> dict[str, float]:
    """Largest differences of values and gradients from those of one process in double precision."""
    draw = torch.Generator().manual_seed(0)
    plain: Any = MADE[kind]().to(dtype)
    for values in plain.parameters():
        values.data.normal_(generator=draw)
    plain = plain.double()
    x, gradient = (torch.randn(whole, generator=draw).to(dtype) for _ in range(2))
    given = x.double().requires_grad_()
    out = plain(given)
    out.backward(gradient.double())
    assert given.grad is not None
    ranks = Ranks.world()
    layout = Layout(whole, boxes, ranks)
    norm = made(kind, plain, layout, ProcessGroups(ranks), list[int]().append)
    leaves, right = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
    for name, held in norm.held_tensors().items():
        values = getattr(plain, name).detach()
        own = values if held.partition is None else held.partition.cut(values)
        own = own.to(dtype) if own.is_floating_point() else own
        trained = name in dict(plain.named_parameters())
        held.bind(nn.Parameter(own.clone()) if trained else own.clone())
        if trained:
            leaves[name] = getattr(held.module, held.name)
            right[name] = held.partition.cut(getattr(plain, name).grad)
    mine = within(layout.mine, tuple((0, n) for n in whole))
    shard = x[mine].clone().requires_grad_()
    made_here = norm(shard)
    leaves["shard"], right["shard"] = shard, given.grad[mine]
    grads = torch.autograd.grad(made_here, list(leaves.values()), gradient[mine])
    found = {name: far(grad, right[name]) for name, grad in zip(leaves, grads, strict=True)}
    return {**found, "values": far(made_here, out[mine])}


def far(found: torch.Tensor, right: torch.Tensor) -> float:
    return float((found.double() - right).abs().max()) if right.numel() else 0.0


def made(kind: str, plain: Any, layout: Layout, groups: ProcessGroups, count: Any) -> Any:
    if kind == "batch":
        return BatchNorm(plain, layout, groups)
    kind = "group" if kind == "one group" else kind
    return norm_step(f"{kind}norm", plain, layout, groups, count)


def watched(calls: list[str]) -> Any:
    """Notes the collectives and exchanges of messages that are called."""
    stack = ExitStack()
    stack.enter_context(mock.patch.multiple(dist, **{name: noted(dist, name, calls) for name in CALLS}))
    noting = noted(messages, "start_messages", calls)
    stack.enter_context(mock.patch.object(messages, "start_messages", noting))
    return stack


def noted(place: Any, name: str, calls: list[str]) -> Callable[..., Any]:
    call = getattr(place, name)

    def run(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return call(*args, **kwargs)

    return run
