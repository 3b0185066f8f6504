"""Normalizations on real ranks, beside torch's own in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

from synth.runtime.comm import shared_parts
from synth.runtime.comm.layout import Layout
from synth.runtime.comm.process_groups import ProcessGroups
from synth.runtime.grid.boxes import Box, within
from synth.runtime.grid.ranks import Ranks
from synth.runtime.layers.norms.group_norm import GroupNorm
from synth.runtime.layers.norms.layer_norm import LayerNorm

GATHER = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
CALLS = ("all_to_all_single", "isend", "all_reduce", GATHER)
MADE: dict[str, Callable[[], nn.Module]] = {
    "group": lambda: nn.GroupNorm(4, 12),
    "instance": lambda: nn.InstanceNorm2d(12, affine=True),
    "layer": lambda: nn.LayerNorm(12),
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
    with mock.patch.object(shared_parts, "ROUND", most):
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
        norm.affine.requires_grad_(False)
        calls.clear()
        (dshard,) = torch.autograd.grad(own, shard, gradient[mine])
        words = norm.exchanges()[0]
    assert given.grad is not None
    pairs = (own.detach(), out[mine].detach()), (dshard, given.grad[mine])
    return {
        "errors": [float((a - b).abs().sum()) for a, b in pairs],
        "forward": (sum(forward[0]), words.forward[ranks.me]),
        "calls": forward[1],
    }


def made(kind: str, plain: Any, layout: Layout, groups: ProcessGroups, count: Any) -> Any:
    if kind == "layer":
        return LayerNorm(plain, layout, groups, count)
    return GroupNorm(plain, 4 if kind == "group" else 12, layout, groups, count)


def watched(calls: list[str]) -> Any:
    """Notes the collectives and exchanges of messages that are called."""
    return mock.patch.multiple(dist, **{name: noted(name, calls) for name in CALLS})


def noted(name: str, calls: list[str]) -> Callable[..., Any]:
    call = getattr(dist, name)

    def run(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return call(*args, **kwargs)

    return run
