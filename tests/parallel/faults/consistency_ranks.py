"""What the ranks of the consistency tests do: rank 2 is given something else than the others."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import synth
from synth.runtime.model.checks import consistency

SHAPE = (4, 4, 8, 8)


class Fails(nn.Module):
    """A forward that raises on rank 2 while it is traced."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same tensor."""
        if dist.get_rank() == 2:
            raise KeyError("no such branch")
        return x


def model_of(what: str = "") -> nn.Sequential:
    """The model of all ranks, or one that differs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 1))
    if what == "dtype":
        model[3].double()
    if what == "width":
        model[0], model[1] = nn.Conv2d(4, 6, 5, padding=2), nn.BatchNorm2d(6)
    if what == "mode":
        model.eval()
    if what == "frozen":
        model[0].weight.requires_grad_(False)
    return model.append(Fails()) if what == "tracing" else model


def said(what: str, folder: str) -> str:
    """What this rank is told if rank 2 is given something else, and then a sum of all ranks."""
    odd = dist.get_rank() == 2
    arguments: dict[str, Any] = {"plan": {"h": 4}}
    if what in ("plan", "file", "missing file") and odd:
        arguments["plan"] = {"plan": {"n": 4}, "file": Path(folder, "old.json")}.get(
            what, Path(folder, "none.json")
        )
    if what == "option" and odd:
        arguments["bucket_bytes"] = 0
    if what == "all fail":
        arguments["plan"] = {"nothing": "spatial"}
    version, shape = torch.__version__, (8, *SHAPE[1:]) if what == "input" and odd else SHAPE
    digest = consistency.source_digest
    try:
        if odd and what == "torch":
            torch.__version__ = "1.0"
        if odd and what == "code":
            consistency.source_digest = lambda: "0.0.9, sources 0"  # type: ignore[assignment]
        synth.parallelize(model_of(what if odd or what == "tracing" else ""), shape, **arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        torch.__version__, consistency.source_digest = version, digest
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total == 4
    return ""


def replicas(what: str) -> str:
    """What `check_replicas` says after some steps, and after a change on rank 2."""
    net = synth.parallelize(model_of(), SHAPE, plan={"h": 4})
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for _ in range(2):
        net(torch.ones(SHAPE)).square().mean().backward()
        optimizer.step()
    synth.check_replicas(net)
    tensors = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    names = {"bias": "0.bias", "statistics": "1.running_var", "count": "1.num_batches_tracked"}
    name = names.get(what)
    if name and dist.get_rank() == 2:
        values = getattr(tensors[name], "_local", tensors[name])
        with torch.no_grad():
            flat = values.view(-1)[-1:]
            flat += 1 if what == "count" else flat * 1e-6
    try:
        synth.check_replicas(net)
    except RuntimeError as error:
        return str(error)
    return ""


def kept_gradients(plan: dict[str, int]) -> float:
    """The largest error of parameters after three steps in which rank 2 alone keeps the gradients.

    A gradient that somebody keeps is copied by autograd, which takes one operation more.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1))
    net = synth.parallelize(copy.deepcopy(model), SHAPE, plan=plan)
    kept: list[torch.Tensor] = []

    def keep(gradient: torch.Tensor) -> None:
        if dist.get_rank() == 2:
            kept.append(gradient)

    for values in net.parameters():
        values.register_hook(keep)
    pairs = [(each, torch.optim.SGD(each.parameters(), 0.1, momentum=0.9)) for each in (model, net)]
    for _ in range(3):
        for each, optimizer in pairs:
            optimizer.zero_grad()
            each(torch.ones(SHAPE)).square().mean().backward()
            optimizer.step()
    wholes = net.full_state_dict()
    return max(float((wholes[key] - values).abs().max()) for key, values in model.state_dict().items())
