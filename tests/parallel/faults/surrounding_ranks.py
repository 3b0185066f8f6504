"""Networks that are made inside of modes, contexts and defaults of the user's, and empty batches."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

import synth

SHAPE = (4, 3, 8, 8)
CONTEXTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "inference_mode": torch.inference_mode,
    "no_grad": torch.no_grad,
    "a device": lambda: torch.device("cpu"),
    "the device meta": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


def model() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Conv2d(5, 4, 3)
    return nn.Sequential(*layers).double()


def first_in_float64() -> float:
    """The first network of a machine where float64 is the default: its convolutions are measured then."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        torch.manual_seed(0)
        whole = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3))
        net = synth.parallelize(copy.deepcopy(whole), SHAPE, objective="time")
        assert torch.get_default_dtype() == torch.float64
        batch = torch.randn(SHAPE)
        net(batch).square().mean().backward()
        whole(batch).square().mean().backward()
        pairs = zip(net.parameters(), whole.parameters(), strict=True)
        return max(float((p.grad.full_tensor() - q.grad).abs().max()) for p, q in pairs)  # type: ignore
    finally:
        torch.set_default_dtype(before)


def made_inside(name: str, mode: str) -> float:
    """How far a network is from its model, which both are made in a context or before it."""
    worst, batch = 0.0, torch.linspace(-1, 1, 768, dtype=torch.float64).reshape(SHAPE)
    for early in (True, False):
        if early or name == "the device meta":
            whole = model().train(mode == "training")
        with CONTEXTS[name]():
            if not early and name != "the device meta":
                whole = model().train(mode == "training")
            net: Any = synth.parallelize(copy.deepcopy(whole), SHAPE, mode=mode)
            inside = net(batch) if name != "the device meta" else None
        if mode == "training" and name != "inference_mode":
            for each in (net, whole):
                each(batch).square().mean().backward()
            pairs = zip(net.parameters(), whole.parameters(), strict=True)
            worst = max(worst, *(float((p.grad.full_tensor() - q.grad).abs().max()) for p, q in pairs))
        net.eval()
        with torch.inference_mode(name == "inference_mode"):  # in which its parameters may have been made
            whole.load_state_dict(net.full_state_dict())
        whole.eval()
        with torch.no_grad():
            out = net(batch).full_tensor()
            worst = max(worst, float((out - whole(batch)).abs().max()))
        assert inside is None or not inside.requires_grad or name in ("a device", "autocast")
    return worst


def empty() -> list[str]:
    """What is said of empty batches; the network is right afterwards."""
    said, whole = [], model().eval()
    net = synth.parallelize(copy.deepcopy(whole), SHAPE)
    net.eval()
    for run in (
        lambda: net(torch.zeros(0, 3, 8, 8, dtype=torch.float64)),
        lambda: synth.parallelize(model(), (0, 3, 8, 8)),
        lambda: synth.plan_model(model(), (0, 3, 8, 8), 2),
        lambda: net.program_for(0),
    ):
        try:
            run()
            said.append("nothing")
        except ValueError as fault:
            said.append(str(fault))
    for samples in (4, 3, 1):
        batch = torch.ones(samples, 3, 8, 8, dtype=torch.float64)
        apart = float((net(batch).full_tensor() - whole(batch)).abs().max())
        said.append("right" if apart < 1e-10 else f"{apart} off")
    return said
