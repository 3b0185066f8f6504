"""What the ranks of the tests of wild models do."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from replica_copies import average_gradients, mesh_of, share_statistics
from torch import nn
from wild import IMAGES, Deep, Noisy, Sharp, wild

import synth

Measured = dict[str, Any]


def compare(name: str, plan: Any, members: tuple[int, ...] = (), passes: int = 1) -> Measured:
    """A model on the ranks and in one process, in float64: outputs, two steps, state and evaluation.

    members: the ranks of a group that runs it, while the others do nothing; {} on those.
    passes: of a step, before its backward pass.
    error: relative to the largest word. gathered: names of layers that are computed on every rank.
    words: received in the first step, counted and planned.
    """
    torch.manual_seed(3)
    whole, shape = wild()[name]()
    whole.double()
    group = dist.new_group(members) if members else None
    if members and dist.get_rank() not in members:
        return {}
    net = synth.parallelize(whole, shape, group, plan)
    pair, errors = (net, whole), dict[str, float]()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1) for m in pair]
    torch.manual_seed(4)
    for step in range(2):
        batch = torch.randn(shape, dtype=torch.float64)
        outs = [sum(each(batch * (1 + k)) for k in range(passes)) for each in pair]
        outs[0] = outs[0].full_tensor()
        errors[f"output {step}"] = _apart(*outs)
        target = torch.randn(outs[1].shape, dtype=torch.float64)
        for out, optimizer in zip(outs, optimizers, strict=True):
            optimizer.zero_grad()
            nn.functional.mse_loss(out, target).backward()
        if not step:
            words = net.received(), passes * net.planned_words().step[net.ranks.me]
        for (key, one), other in zip(net.named_parameters(), whole.parameters(), strict=True):
            mine, right = one.grad, other.grad
            assert (mine is None) == (right is None), key
            if right is not None:
                errors[f"gradient {step} of {key}"] = _apart(mine.full_tensor(), right)
        for optimizer in optimizers:
            optimizer.step()
    state, right = net.full_state_dict(), whole.state_dict()
    assert list(state) == list(right)
    errors |= {key: _apart(state[key], values) for key, values in right.items()}
    for model in pair:
        model.eval()
    with torch.no_grad():
        errors["evaluation"] = _apart(net(batch).full_tensor(), whole(batch))
    kinds = {name: type(step).__name__ for name, step in net.program.steps.items()}
    gathered = [name for name, kind in kinds.items() if kind == "GatheredStep"]
    return {"errors": errors, "gathered": gathered, "kinds": kinds, "words": words}


def compare_replicas(name: str) -> Measured:
    """Two replicas with a batch each, beside two copies in one process whose gradients are averaged."""
    made = list[nn.Module]()
    for _ in range(3):
        torch.manual_seed(3)
        model, shape = wild()[name]()
        made.append(model.double())
    first, *copies = made
    net, me = synth.parallelize(first, shape, mesh_of(2)), dist.get_rank() // 2
    models, errors = [net, *copies], dict[str, float]()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in models]
    torch.manual_seed(4)
    for step in range(2):
        batches = [torch.randn(shape, dtype=torch.float64) for _ in copies]
        share_statistics(copies)
        outs = [net(batches[me]), *(each(batch) for each, batch in zip(copies, batches, strict=True))]
        outs[0] = outs[0].full_tensor()
        errors[f"output {step}"] = _apart(outs[0], outs[1 + me])
        targets = [torch.randn(outs[1].shape, dtype=torch.float64) for _ in copies]
        for out, target, optimizer in zip(outs, [targets[me], *targets], optimizers, strict=True):
            optimizer.zero_grad()
            nn.functional.mse_loss(out, target).backward()
        if not step:
            words = net.received(), net.planned_words().step[net.ranks.me]
        average_gradients(copies)
        for (key, own), right in zip(net.named_parameters(), copies[0].parameters(), strict=True):
            assert (own.grad is None) == (right.grad is None), key
            if own.grad is not None:
                errors[f"gradient {step} of {key}"] = _apart(own.grad.full_tensor(), right.grad)
        for optimizer in optimizers:
            optimizer.step()
    state, whole = net.full_state_dict(), copies[0].state_dict()
    errors |= {key: _apart(state[key], values) for key, values in whole.items() if me == 0}
    return {"errors": errors, "words": words, "gathered": []}


def left_out(seed: int) -> Measured:
    """Which samples of a batch lose their branch in two passes, with generators that differ by rank.

    error: of outputs and gradients beside one process that leaves out the same.
    """
    torch.manual_seed(3)
    whole = Deep().double()
    torch.manual_seed(seed + torch.distributed.get_rank())
    net = synth.parallelize(whole, (8, 4, 8, 8), plan="spatial")
    batch, found, errors = torch.arange(8 * 4 * 64.0).double().sin().view(8, 4, 8, 8), [], []
    for _ in range(2):
        out, branch = net(batch).full_tensor(), whole.conv(batch)
        kept = (out - batch).flatten(1).abs().sum(1).detach() > 1e-9
        right = batch + branch * (2 * kept).view(-1, 1, 1, 1)
        for each, model in ((out, net), (right, whole)):
            model.zero_grad()
            each.square().sum().backward()
        gradients = net.conv.weight.grad.full_tensor(), whole.conv.weight.grad
        errors += [_apart(out, right), _apart(*gradients)]
        found.append(kept.tolist())
    net.eval(), whole.eval()
    errors.append(_apart(net(batch).full_tensor(), whole(batch)))
    return {"kept": found, "error": max(errors)}


def modes_of_parts() -> Measured:
    """Errors in both modes, with a frozen normalization in training, and whether noise is drawn alike."""
    torch.manual_seed(3)
    whole = Noisy().double()
    torch.manual_seed(torch.distributed.get_rank())
    net = synth.parallelize(whole, IMAGES, plan="spatial")
    batch = torch.arange(4 * 4 * 64.0).double().sin().view(IMAGES)
    errors = {}
    for model in (net, whole):
        model.eval()
    errors["evaluation"] = _apart(net(batch).full_tensor(), whole(batch))
    for model in (net, whole):
        model.train()
        model.norm.eval()
    first, second = (net(batch).full_tensor().detach() for _ in range(2))
    told = [torch.empty_like(first) for _ in range(4)]
    torch.distributed.all_gather(told, first)
    state, right = net.full_state_dict(), whole.state_dict()
    errors["frozen statistics"] = max(_apart(state[key], right[key]) for key in right)
    sharp = Sharp().double()
    other = synth.parallelize(sharp, IMAGES, plan="filter")
    for mode in (True, False, True):
        errors[f"sharp {mode}"] = _apart(other.train(mode)(batch).full_tensor(), sharp.train(mode)(batch))
    alike = all(torch.equal(each, told[0]) for each in told)
    return {"errors": errors, "alike": alike, "anew": not torch.equal(first, second)}


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    assert one.shape == other.shape
    if not other.numel():
        return 0.0
    one, other = one.detach().double(), other.detach().double()
    return float((one - other).abs().max() / (1e-3 + other.abs().max()))
