"""What four ranks of the tests of batch normalization do: local statistics beside those of one process."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import torch
import torch.distributed as dist
from batch_norm_layout_ranks import LAYOUTS, bind
from replica_copies import average_gradients, mesh_of, share_statistics
from shared_plan import shared_plan
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import synth
from synth.runtime.comm.layout import Layout
from synth.runtime.comm.process_groups import ProcessGroups
from synth.runtime.grid.ranks import Ranks
from synth.runtime.layers.norms.batch_norm import BatchNorm
from synth.runtime.layers.steps.held import Held
from synth.runtime.model.network import Network
from synth.runtime.model.step_graph import StepGraph

PLANS: dict[str, tuple[int, Any]] = {  # samples of a batch, and the plan
    "samples": (8, "data"),
    "samples and rows": (8, {"b": 2, "h": 2}),
    "samples and filters": (8, {"b": 2, "k": 2}),
    "other per layer": (8, {"one": {"b": 4}, "two": {"h": 2, "k": 2}, "head": {"b": 2, "c": 2}}),
    "uneven": (5, {"one": {"b": 2, "w": 2}, "two": {"b": 2, "k": 2}, "head": {"k": 4}}),
    "two ranks": (4, {"one": {"b": 2}, "two": {"h": 2}, "head": {"b": 2}}),
    "free": (8, None),
}


class Model(nn.Module):
    """Normalizations with and without parameters, of maps and of features, one used twice."""

    def __init__(self, groups: int = 1) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1, groups=groups)
        self.norm, self.again = nn.BatchNorm2d(6), nn.BatchNorm2d(6, momentum=None)
        self.bare = nn.BatchNorm2d(6, affine=False)
        self.head, self.last = nn.Linear(6, 5), nn.BatchNorm1d(5)
        nn.init.uniform_(self.norm.weight, 0.5, 2.0)

    def block(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.again(self.two(x)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.one(x)))
        x = self.bare(x + checkpoint(self.block, x, use_reentrant=False))
        return self.last(self.head(x.mean((2, 3))))


def groups_of(boxes: Any, samples: int) -> list[tuple[int, int]]:
    """The samples between positions that no box crosses."""
    held = [box[0] for box in boxes if all(high > low for low, high in box)]
    ends = [s for s in range(samples + 1) if not any(low < s < high for low, high in held)]
    return list(itertools.pairwise(ends))


def norms_of(program: StepGraph) -> dict[str, list[tuple[int, int]]]:
    """Normalization -> the groups of samples that the layout of its input makes."""
    layouts = program.layouts
    return {
        program.names[call]: groups_of(layouts[sources[0]].boxes, layouts[sources[0]].whole[0])
        for call, sources in program.calls
        if program.names.get(call, "").rpartition(".")[2] in ("norm", "again", "bare", "last")
    }


def normalize(norm: Any, groups: list[tuple[int, int]], x: torch.Tensor) -> torch.Tensor:
    """Each group of samples by its own statistics; the first group's are the running ones."""
    if not norm.training:
        return functional.batch_norm(
            x, norm.running_mean, norm.running_var, norm.weight, norm.bias, False, 0.0, norm.eps
        )
    norm.num_batches_tracked += 1
    momentum = norm.momentum or 1 / int(norm.num_batches_tracked)
    parts = []
    for number, (low, high) in enumerate(groups):
        kept = (None, None) if number else (norm.running_mean, norm.running_var)
        parts.append(
            functional.batch_norm(x[low:high], *kept, norm.weight, norm.bias, True, momentum, norm.eps)
        )
    return torch.cat(parts)


class Errors(dict[str, float]):
    """How far tensors are apart, relative to the largest word, by what they are."""

    def near(self, what: str, one: Any, other: torch.Tensor) -> None:
        one = one.detach()
        one = (one.full_tensor() if hasattr(one, "full_tensor") else one).double()
        other = other.detach().double()
        error = float((one - other).abs().max() / (1 + other.abs().max()))
        self[what] = max(self.get(what, 0.0), error if error == error else 1.0)


def train(word: str, rows: int = 1) -> dict[str, Any]:
    """Three steps and an evaluation, on the rows of a mesh, and of as many models in one process.

    The models in one process normalize the groups of samples that ranks hold. Their gradients are averaged,
    and their buffers are those of the first one, as DDP has it.
    """
    samples, plan = PLANS[word]
    torch.manual_seed(5)
    copies: list[Any] = [Model().double() for _ in range(rows)]
    for each in copies[1:]:
        each.load_state_dict(copies[0].state_dict())
    shape = (samples, 3, 8, 8)
    model = copy.deepcopy(copies[0])
    net = synth.parallelize(model, shape, mesh_of(rows), plan, batch_norm="local", input_gradient=True)
    groups, me, errors = norms_of(net.program), dist.get_rank() * rows // 4, Errors()
    for each in copies:
        for name, norm in each.named_modules():
            if name in groups:
                norm.forward = lambda x, norm=norm, name=name: normalize(norm, groups[name], x)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (net, *copies)]
    for _ in range(3):
        share_statistics(copies)
        batches = torch.randn(rows, *shape, dtype=torch.float64)
        targets = torch.randn(rows, samples, 5, dtype=torch.float64)
        given = batches[me].clone().requires_grad_()
        outs = [each(batch) for each, batch in zip(copies, batches, strict=True)]
        out = net(given)
        errors.near("forward", out, outs[me])
        functional.mse_loss(out, targets[me]).backward()
        for right, target in zip(outs, targets, strict=True):
            functional.mse_loss(right, target).backward()
        average_gradients(copies)
        for p, right in zip(net.parameters(), copies[0].parameters(), strict=True):
            errors.near("gradients", p.grad, right.grad)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return {"groups": groups, **finished(net, copies, me, batches[me], errors)}


def finished(net: Network, copies: list[Any], me: int, batch: torch.Tensor, errors: Errors) -> Errors:
    """The errors with those of parameters, running statistics and outputs in evaluation."""
    synth.check_replicas(net)
    states = net.full_state_dict(), copies[me].state_dict()
    assert states[0].keys() == states[1].keys()
    for key, values in states[1].items():
        errors.near("running statistics" if "running" in key else "state", states[0][key], values)
    for mode in (torch.no_grad(), torch.enable_grad()):
        with mode:
            errors.near("evaluation", net.eval()(batch), copies[me].eval()(batch))
    return errors


def ddp() -> Errors:
    """A plan of samples alone and DDP itself: each rank has a model for its own samples."""
    torch.manual_seed(5)
    model, shape, errors = Model().double(), (8, 3, 8, 8), Errors()
    net = synth.parallelize(copy.deepcopy(model), shape, 4, "data", batch_norm="local")
    alone = nn.parallel.DistributedDataParallel(model)
    mine = slice(2 * dist.get_rank(), 2 * dist.get_rank() + 2)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (net, alone)]
    for _ in range(2):
        batch, target = torch.randn(shape).double(), torch.randn(8, 5).double()
        out, own = net(batch), alone(batch[mine])
        errors.near("forward", out.full_tensor()[mine], own)
        functional.mse_loss(out, target).backward()
        functional.mse_loss(own, target[mine]).backward()
        for p, q in zip(net.parameters(), alone.parameters(), strict=True):
            errors.near("gradients", p.grad, q.grad)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for key, values in model.state_dict().items():
        values = values.clone()
        dist.broadcast(values, 0)  # DDP does so before the next pass
        errors.near("state", net.full_state_dict()[key], values)
    return errors


def other_batches() -> Errors:
    """A smaller last batch: its groups are others, and the first of them update the running statistics."""
    torch.manual_seed(5)
    model, errors = Model().double(), Errors()
    net = synth.parallelize(copy.deepcopy(model), (8, 3, 8, 8), 4, {"b": 2, "h": 2}, batch_norm="local")
    groups = dict[str, list[tuple[int, int]]]()
    for name in norms_of(net.program):
        norm: Any = model.get_submodule(name)
        norm.forward = lambda x, norm=norm, name=name: normalize(norm, groups[name], x)
    seen = []
    for size in (8, 6, 8):
        batch = torch.randn(size, 3, 8, 8).double()
        out = net(batch)
        groups |= norms_of(net._programs.forward(net).of({"x": batch}, net))
        seen.append(groups["norm"])
        errors.near("forward", out, model(batch))
    assert seen == [[(0, 4), (4, 8)], [(0, 3), (3, 6)], [(0, 4), (4, 8)]]
    return finished(net, [model], 0, batch, errors)


def words(axes: str, statistics: Any) -> tuple[int, int]:
    """Words of the exchanges of statistics in one step: counted on this rank, and planned for the most."""
    torch.manual_seed(0)
    shape = (8, 3, 8, 8)
    plan = shared_plan(Model(2), shape, axes=axes, batch_norm=statistics)
    net = synth.parallelize(Model(2), shape, plan=plan, batch_norm=statistics)
    net(torch.randn(shape)).square().sum().backward()
    steps = net.program.context.traffic.steps.items()
    counted = sum(number for (phase, _, _), number in steps if phase == "statistics")
    return counted, plan.statistics_words + _again(plan)


def _again(plan: Any) -> int:
    from synth.network.plan.statistics import recomputed_statistics

    return recomputed_statistics(plan)


def layer(name: str) -> Errors:
    """One layer whose input lies in a given way: also where the channels of ranks overlap only in part."""
    lies, errors = Layout((6, 8, 5), LAYOUTS[name], Ranks.world()), Errors()
    mine, groups = tuple(slice(*interval) for interval in lies.mine), groups_of(LAYOUTS[name], 6)
    torch.manual_seed(0)
    whole: Any = nn.BatchNorm1d(8).double()
    nn.init.uniform_(whole.weight, 0.5, 2)
    made = BatchNorm(whole, lies, ProcessGroups(), local=True)
    bind(made, whole)
    batch, dout = torch.randn(6, 8, 5).double(), torch.randn(6, 8, 5).double()
    given, shard = batch.clone().requires_grad_(), batch[mine].clone().requires_grad_()
    for mode in (True, False):
        whole.train(mode)
        right, out = normalize(whole, groups, given), made.train(mode)(shard)
        right.backward(dout)
        out.backward(dout[mine])
        if shard.numel():
            errors.near("forward", out, right[mine])
            errors.near("gradients", shard.grad, given.grad[mine])
        for name, place in made.held_tensors().items():
            wanted = getattr(whole, name)
            if name in ("weight", "bias"):
                near_gradient(errors, place, getattr(made, name).grad, wanted.grad)
            elif place.partition and place.partition.local_words:
                errors.near("running statistics", getattr(made, name), place.partition.cut(wanted))
    return errors


def near_gradient(errors: Errors, place: Held, own: torch.Tensor, right: torch.Tensor) -> None:
    """Parts of a gradient add up to the whole one; else every rank has it."""
    assert place.partition is not None
    if place.copies:
        total = torch.zeros_like(right)
        total[slice(*place.partition.box[0])] = own
        dist.all_reduce(total)
        errors.near("gradients", total, right)
    elif own.numel():
        errors.near("gradients", own, place.partition.cut(right))


class Frames(nn.Module):
    """Frames as samples: dimension 0 is no longer that of the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(x.flatten(0, 1)))


def refused(what: str) -> str:
    """The error of a wrong use."""
    shape: tuple[int, ...] = (8, 3, 8, 8)
    model: nn.Module = Model()
    statistics, plan, mode = "local", PLANS["samples"][1], "training"
    if what == "word":
        statistics = "none"
    elif what == "inference":
        mode = "inference"
    elif what == "rank":
        statistics = "local" if dist.get_rank() else "global"
    elif what == "frames":
        model, shape = Frames(), (2, 4, 3, 8, 8)
    elif what == "gathered":
        model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.InstanceNorm2d(4, track_running_stats=True))
    elif what == "one":
        shape = (5, 3, 8, 8)
    try:
        net = synth.parallelize(model, shape, 4, plan, batch_norm=statistics, mode=mode)  # type: ignore[arg-type]
        net(torch.randn(shape))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
