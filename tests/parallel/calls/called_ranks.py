"""What the ranks of the tests of calls do."""

from __future__ import annotations

import copy
from typing import Any

import torch
from called import Called
from called_tables import TABLES
from refused_calls import DIVIDED, WHOLE, batch_of, model_of
from torch import nn

import synth

PLANS = {2: "spatial", 4: "filter"}  # by the number of ranks


def compared(table: str, name: str) -> dict[str, Any]:
    """What differs between ranks and one process: outputs, gradients of inputs and parameters, buffers.

    In training, in evaluation, and in training again, then without a gradient of the input. "words": received
    in the last pass, and planned, where they differ.
    """
    found: dict[str, Any] = {}
    torch.manual_seed(0)
    whole: Called = TABLES[table][name]().double()
    plan = PLANS[torch.distributed.get_world_size()]
    net = synth.parallelize(copy.deepcopy(whole), whole.shape, plan=plan, input_gradient=True)
    torch.manual_seed(1)
    for number, training in enumerate((True, False, True)):
        pair = [net.train(training), whole.train(training)]
        x = torch.randn(whole.shape, dtype=torch.float64)
        inputs = [x.clone().requires_grad_(number < 2) for _ in pair]
        received = net.received()
        outs = [model(each) for model, each in zip(pair, inputs, strict=True)]
        weights = torch.randn(outs[1].shape, dtype=torch.float64).to(outs[1].dtype)
        if outs[1].requires_grad:
            for each in outs:
                (each * weights).sum().abs().backward()
        if number == 2:
            words = net.received() - received, net.planned_words().step[net.ranks.me]
            found |= {"words": words} if words[0] != words[1] else {}
        found[f"output {number}"] = _apart(*outs)
        found[f"input {number}"] = _apart(*(each.grad for each in inputs))
        for (key, one), other in zip(net.named_parameters(), whole.parameters(), strict=True):
            found[f"{key} {number}"] = _apart(one.grad, other.grad)
            one.grad = other.grad = None
    for key, values in net.full_state_dict().items():
        found[f"state {key}"] = _apart(values, whole.state_dict()[key])
    return {key: each for key, each in found.items() if key == "words" or each > 1e-8}


def wrong_label(label: int) -> list[str]:
    """What passes with a loss in forward say: for labels, one that is no class, and labels again."""
    model = Called(lambda m, h, g: nn.functional.cross_entropy(h, g.sum(1).round().long())).double()
    nn.init.zeros_(model.other.weight)
    net = synth.parallelize(model, model.shape, plan="spatial", check=False)
    x, found = torch.randn(model.shape, dtype=torch.float64), list[str]()
    for bias in (0.0, float(label), 0.0):
        with torch.no_grad():
            net.other.bias.fill_(bias / 8)
        try:
            found.append(f"{float(net(x)):.12f}")
        except IndexError as error:
            found.append(str(error))
    return found


def refused(name: str, plan: str) -> list[str]:
    """What passes say of samples that torch takes, of one that it refuses, and again; and one process."""
    torch.manual_seed(0)
    whole = model_of({**DIVIDED, **WHOLE}[name])
    net = synth.parallelize(copy.deepcopy(whole), whole.shape, plan=plan, check=False)
    found = list[str]()
    for bad in (False, True, False):
        batch, received = batch_of(bad), net.received()
        said, losses = list[str](), list[torch.Tensor]()
        for model in (net, whole):
            try:
                losses.append(model(batch))
                said.append("taken")
            except (IndexError, RuntimeError) as error:
                said.append(f"{type(error).__name__}: {error}")
        if len(losses) == 2:
            for each in losses:
                each.sum().backward()
            apart = [_apart(*losses), _apart(net.get_parameter("last.weight").grad, whole.last.weight.grad)]
            words = net.received() - received, net.planned_words().step[net.ranks.me]
            said += [f"apart by {apart}"] * (max(apart) > 1e-9) + [f"words {words}"] * (words[0] != words[1])
        found.append(" | ".join(said))
    return found


def _apart(mine: Any, right: Any) -> float:
    """The largest difference, in parts of the largest word; infinite for another shape or dtype."""
    if mine is None or right is None:
        return 0.0 if mine is right else torch.inf
    mine = mine.full_tensor() if hasattr(mine, "full_tensor") else mine
    if mine.shape != right.shape or mine.dtype != right.dtype:
        return torch.inf
    if not right.numel():
        return 0.0
    kind = torch.complex128 if right.is_complex() else torch.float64
    mine, right = (each.detach().to(kind).nan_to_num(9e9, 8e8, -8e8) for each in (mine, right))
    return float((mine - right).abs().max()) / max(1.0, float(right.abs().max()))
