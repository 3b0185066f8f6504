"""What the ranks of the tests of sequence models do: models on cut positions, compared with one process."""

from __future__ import annotations

import copy
from typing import Any

import torch
from loop_models import LOOPS, SHORT, Looped
from sequence_models import BETWEEN, Between, Documents, Hard
from shared_plan import shared_plan
from torch import nn

import synth
from synth.runtime.layers.steps.gathered_step import GatheredStep
from synth.runtime.layers.steps.pulled import Pulled
from synth.runtime.model.network import Network
from synth.runtime.rules.scans import CutIndices, CutScan

Measured = dict[str, Any]


def sequence_model(name: str, length: int) -> nn.Module:
    """A model of the table, in float64, with weights from a seed."""
    torch.manual_seed(len(name))
    if name.startswith("loop"):
        return Looped(SHORT if name == "loops" else LOOPS).double()
    model = Documents() if name == "documents" else Between(BETWEEN[name](length))
    return model.double()


def given_to(name: str, batch: int, length: int) -> list[torch.Tensor]:
    """Its inputs, the same on all ranks."""
    torch.manual_seed(length)
    found = [torch.randn(batch, 3, length, dtype=torch.float64)]
    if name == "documents":
        ends = torch.rand(batch, length) < 0.2
        found.append(ends.cumsum(-1))
    return found


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference, relative to the largest word."""
    one = one.full_tensor() if hasattr(one, "full_tensor") else one
    return float((one - other).abs().max() / other.abs().max().clamp(min=1e-30))


def gathered(net: Network) -> list[str]:
    """The calls that every rank computes."""
    return [name for name, step in net.program.steps.items() if isinstance(step, GatheredStep)]


def hard_values() -> Measured:
    """Scans of rows that are hard, and the gradients of these rows, beside one process."""
    model, rows = Hard().double(), torch.tensor(Hard.ROWS, dtype=torch.float64)[None]
    net = synth.parallelize(copy.deepcopy(model), rows.shape, plan={"w": 4}, input_gradient=True, check=False)
    given, found = [rows.clone().requires_grad_() for _ in range(2)], []
    for each, values in zip((net, model), given, strict=True):
        found.append(each(values))
        (found[-1] * torch.arange(1.0, 13).double()).sum().backward()
    grads = [torch.nan_to_num(each.grad) for each in given]
    rules = [step.rule for step in net.program.steps.values() if isinstance(step, Pulled)]
    scans = sum(isinstance(rule.combined, CutScan | CutIndices) for rule in rules)
    return {"values": apart(*found), "gradients": apart(*grads), "scans": scans}


def half(name: str) -> Measured:
    """By how far a model under autocast to bfloat16 is from float64: on the ranks, and in one process."""
    model, given = sequence_model(name, 32).float(), given_to(name, 1, 32)
    right = copy.deepcopy(model).double()(*given)
    net = synth.parallelize(copy.deepcopy(model), (1, 3, 32), plan={"w": 4}, check=False)
    with torch.autocast("cpu", torch.bfloat16):
        outs = net(given[0].float()), model(given[0].float())
    for out in outs:
        out.float().square().sum().backward()
    grads = [(a.grad, b.grad) for a, b in zip(net.parameters(), model.parameters(), strict=True)]
    ours, plain = (apart(out.double(), right) for out in outs)
    return {"ours": ours, "one process": plain, "gradients": max(apart(*pair) for pair in grads)}


def compared(
    names: list[str], length: int, batch: int = 1, axes: str = "w", inference: bool = True
) -> Measured:
    """By name: the largest error of outputs and gradients; words; what is gathered.

    inference: whether the forward pass of inference is planned and compared, too.
    """
    return {name: _compared(name, length, batch, axes, inference) for name in names}


def _compared(name: str, length: int, batch: int, axes: str, inference: bool) -> Measured:
    whole, given = sequence_model(name, length), given_to(name, batch, length)
    alone = copy.deepcopy(whole)
    plan = shared_plan(whole, given, axes=axes)
    net = synth.parallelize(whole, given, plan=plan, check=False)
    before, errors = net.received(), []
    for step in range(2):  # gradients are accumulated
        given[0] = given[0] + step
        outs = net(*given), alone(*given)
        errors.append(apart(*outs))
        for out in outs:
            out.square().sum().backward()
    words = net.received() - before, 2 * plan.words.step[net.ranks.me]
    for one, other in zip(net.parameters(), alone.parameters(), strict=True):
        errors.append(apart(one.grad, other.grad))
    found = {"error": max(errors), "words": words, "gathered": gathered(net)}
    if not inference:
        return found
    plain = copy.deepcopy(alone).eval().requires_grad_(False)
    plan = shared_plan(plain, given, axes=axes, mode="inference")
    served = synth.parallelize(plain, given, plan=plan, mode="inference", check=False)
    before = served.received()
    with torch.no_grad():
        found["error"] = max(*errors, apart(served(*given), alone(*given)))
    found["forward"] = served.received() - before, plan.words.forward[net.ranks.me]
    return found
