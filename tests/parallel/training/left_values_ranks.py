"""A model whose forward leaves losses, features and numbers in attributes, on ranks."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

import synth

SHAPE = 4, 3, 8, 6


class Leaves(nn.Module):
    """Each attribute is left in another way."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 4, 1)
        self.loss: Any = 0.0
        self.used: Any = None
        self.losses: list[Any] = [0.0, 7.0]
        self.features: list[Any] = []
        self.extents: Any = None
        self.options: dict[str, Any] = {"scale": 2.0, "last": None}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The output; all else is left."""
        y = torch.tanh(self.body(x)) * self.options["scale"]
        self.loss, self.losses[0], self.used = y.square().mean(), y.mean(), y.abs()
        self.features.append(y)
        self.options["last"], self.extents = y, tuple(x.shape[2:])
        made: torch.Tensor = self.head(y) + self.used[:, :4]
        return made

    def regularizer(self) -> Any:
        """A method that reads what a pass left."""
        return 2 * self.loss


def said(read: Any) -> str:
    """What reading raises; "" for nothing."""
    try:
        read()
    except RuntimeError as error:
        return str(error)
    return ""


def left() -> dict[str, Any]:
    """What reading raises after a pass, on the network, the given model and a copy."""
    torch.manual_seed(0)
    model = Leaves().double()
    alone = copy.deepcopy(model)
    net = synth.parallelize(model, SHAPE, plan="data")
    batch = torch.randn(SHAPE, dtype=torch.float64)
    before = net.loss, net.losses[0], net.options["last"], len(net.features)
    errors = [_apart(net, alone, batch)]
    reads = {
        "loss": lambda: 1 + net.loss,
        "loss of the model": lambda: float(model.loss),
        "loss of a copy": lambda: copy.deepcopy(net).loss.item(),
        "used": lambda: torch.stack([net.used]),
        "losses": lambda: net.losses[0] * 2,
        "features": lambda: net.features[0].mean(),
        "options": lambda: net.options["last"] - torch.ones(()),
        "loss by a method": net.regularizer,
    }
    found = {name: said(read) for name, read in reads.items()}
    kept = net.losses[1], net.options["scale"], net.extents
    program = net.program
    net.loss, net.used = 0.0, None  # as loops do before a pass
    errors.append(_apart(net, alone, batch))
    same = net.program is program
    alone.options["scale"] = net.options["scale"] = 3.0  # which forward reads
    errors.append(_apart(net, alone, batch))
    errors.append(_apart(net, alone, batch[..., :4]))
    again = synth.parallelize(model, SHAPE, plan="data", check=False)
    again(batch)
    more = {"loss of another": lambda: bool(again.loss)}
    found |= {name: said(read) for name, read in more.items()}
    return {
        "before": before,
        "found": found,
        "kept": (*kept, net.extents),
        "same": same,
        "error": max(errors),
    }


def _apart(net: Any, alone: nn.Module, batch: torch.Tensor) -> float:
    return float((net(batch).full_tensor() - alone(batch)).detach().abs().max())
