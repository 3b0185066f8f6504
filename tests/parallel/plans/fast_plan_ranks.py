"""What the ranks of the tests of plans for time do."""

from __future__ import annotations

import copy
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from shared_plan import shared_plan
from torch import nn

from synth.parallel.layer_plans import LayerPlans
from synth.parallel.machine_here import measured_here
from synth.parallel.parallelize import parallelize
from synth.parallel.plan_model import plan_model
from synth.runtime.grid.ranks import Ranks
from synth.runtime.program import first_use

BATCH = (4, 3, 12, 12)


class Mixed(nn.Module):
    """Plain, strided, transposed and grouped convolutions, a batch normalization and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.down = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(8, 6, 2, stride=2)
        self.grouped = nn.Conv2d(6, 6, 3, padding=1, groups=3)
        self.last = nn.Linear(6, 5)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        made = torch.relu(self.norm(self.first(given)))
        return self.last(self.grouped(self.up(self.down(made))).mean((2, 3)))


def three_steps(net: Any, model: nn.Module, shape: tuple[int, ...]) -> dict[str, float]:
    """Errors after three steps with momentum and clipped gradients."""
    batch = torch.randn(shape, dtype=torch.float64)
    pairs = [(each, torch.optim.SGD(each.parameters(), 0.1, 0.9)) for each in (model, net)]
    losses: list[list[float]] = [[], []]
    for _ in range(3):
        for place, (each, optimizer) in enumerate(pairs):
            optimizer.zero_grad()
            loss = each(batch).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(each.parameters(), 0.5)
            optimizer.step()
            losses[place].append(float(loss))
    state, expected = net.full_state_dict(), model.state_dict()
    error = max(float((state[key] - values).abs().max()) for key, values in expected.items())
    return {"loss": max(abs(a - b) for a, b in zip(*losses, strict=True)), "state": error}


def copied(axes: str) -> dict[str, float]:
    """Train with copies of all weights, on grids that cut some axes. moved: words that no plan has."""
    torch.manual_seed(0)
    model = Mixed().double()
    plan = shared_plan(model, BATCH, axes=axes)
    made = LayerPlans.of(plan)
    made = replace(made, whole=frozenset(made.placed), programs={})
    with patch.object(LayerPlans, "of", lambda plan: made):
        net = parallelize(copy.deepcopy(model), BATCH, plan=plan)
    found = three_steps(net, model, BATCH)
    weight: Any = dict(net.named_parameters())["first.weight"]
    moved = net.received() - 3 * net.planned_words().step[dist.get_rank()]
    steps: Any = net.program.steps.values()
    calls = [getattr(getattr(each, "module", None), "one_call", None) for each in steps]
    called = [each for each in calls if each is not None]
    halos = sum(each.halo is not None for each in called)
    found |= {"called": len(called), "halos": halos}
    return {**found, "words": weight.to_local().numel(), "moved": moved}


def from_file(folder: str) -> dict[str, float]:
    """Train by the file of a plan for time in which some layers have whole weights."""
    torch.manual_seed(0)
    model, path = Mixed().double(), Path(folder, "plan.json")
    ranks = dist.get_world_size()
    if dist.get_rank() == 0:
        plan = plan_model(model, BATCH, ranks, objective="time", machine="lassen", whole_weights=True)
        path.write_text(json.dumps(plan.to_json()))
    dist.barrier()
    net = parallelize(copy.deepcopy(model), BATCH, plan=path)
    whole = [row["name"] for row in json.loads(path.read_text())["layers"] if row["whole"]]
    weights = dict(net.named_parameters())
    held = sum(weights[f"{name}.weight"].to_local().numel() for name in whole)
    found = three_steps(net, model, BATCH)
    moved = net.received() - 3 * net.planned_words().step[dist.get_rank()]
    return {**found, "whole": len(whole), "held": held, "moved": moved}


def fastest(folder: str) -> dict[str, Any]:
    """Train by a plan for time, measured into an empty folder; another for inference has the same numbers."""
    os.environ["XDG_CACHE_HOME"] = folder
    torch.manual_seed(0)
    model = Mixed().double()
    with patch.object(first_use, "SECONDS", 0.0):
        net = parallelize(copy.deepcopy(model), BATCH, objective="time")
    kept = sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())
    with patch.object(first_use, "measure", None):  # a second measurement would fail
        numbers = measured_here(Ranks.world(), torch.device("cpu"), torch.float64)
        errors = three_steps(net, model, BATCH)
        image = torch.randn((1, 3, 24, 24), dtype=torch.float64)
        one = model.eval()(image)
        applied = parallelize(model, image.shape, mode="inference", objective="time")
        errors["applied"] = float((applied(image).full_tensor() - one).abs().max())
    planned = applied.planned_words().forward[dist.get_rank()]
    return {"errors": errors, "kept": kept, "numbers": numbers, "moved": applied.received() - planned}


def normalized(shape: tuple[int, ...]) -> dict[str, float]:
    """A local batch normalization on whole samples, beside torch's own of these samples."""
    torch.manual_seed(0)
    ranks, rank = dist.get_world_size(), dist.get_rank()
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, momentum=None)).double()
    net = parallelize(copy.deepcopy(model), shape, plan="data", batch_norm="local")
    batch = torch.randn(shape, dtype=torch.float64)
    mine = batch.chunk(ranks)[rank]
    errors = []
    for _ in range(2):
        errors.append(float((net(batch).to_local() - model(mine)).abs().max()))
    running = net.full_state_dict()["1.running_var"]
    expected = model[1].running_var.clone()
    dist.broadcast(expected, 0)  # running statistics are those of the first samples
    errors.append(float((running - expected).abs().max()))
    return {"error": max(errors)}
