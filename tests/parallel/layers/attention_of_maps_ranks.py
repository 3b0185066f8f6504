"""Attention over the positions of a map, on ranks beside one process."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import torch
from shared_plan import shared_plan
from torch import nn
from torch.nn import functional

import synth


class Attention(nn.Module):
    """Heads over all positions, as in decoders of images; the layers of q, k and v are apart."""

    def __init__(self, channels: int, heads: int, places: int, masked: bool = False) -> None:
        super().__init__()
        self.masked, self.dropout = masked, nn.Dropout(0.0)
        self.norm, self.heads = nn.GroupNorm(2, channels), heads
        self.query, self.key, self.value, self.out = (nn.Linear(channels, channels) for _ in range(4))
        self.places = nn.Parameter(torch.randn(places, 1)) if places else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, c, h, w = x.shape
        y = self.norm(x).flatten(2).transpose(1, 2)
        if self.places is not None:
            y = y + self.places
        parts = (each(y) for each in (self.query, self.key, self.value))
        q, k, v = (each.view(b, h * w, self.heads, -1).transpose(1, 2) for each in parts)
        mask = torch.ones(h * w, h * w, dtype=torch.bool).tril() if self.masked else None
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        y = self.dropout(self.out(y.transpose(1, 2).reshape(b, h * w, c)))
        return x + y.transpose(1, 2).reshape(x.shape)


class Joint(nn.Module):
    """Query, keys and values of one layer, or of convolutions of the map.

    how: "map": a convolution whose channels are divided, as in Wan. "heads": a linear layer of which each
    head has query, keys and values side by side. "apart": three convolutions. "pair": keys and values of one
    linear layer, and a query of its own.
    """

    def __init__(self, channels: int, how: str) -> None:
        super().__init__()
        self.how, self.norm = how, nn.GroupNorm(2, channels)
        layers: dict[str, list[nn.Module]] = {
            "map": [nn.Conv2d(channels, 3 * channels, 1)],
            "heads": [nn.Linear(channels, 3 * channels, bias=False)],
            "apart": [nn.Conv2d(channels, channels, 1) for _ in range(3)],
            "pair": [nn.Linear(channels, channels), nn.Linear(channels, 2 * channels)],
        }
        self.layers, self.out = nn.ModuleList(layers[how]), nn.Conv2d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (b, c, h, w), y = x.shape, self.norm(x)
        rows = y.flatten(2).transpose(1, 2)
        first, *others = self.layers
        if self.how == "map":
            q, k, v = first(y).reshape(b, 1, 3 * c, -1).permute(0, 1, 3, 2).contiguous().chunk(3, dim=-1)
        elif self.how == "heads":
            parts = first(rows).view(b, h * w, 2, 3 * c // 2).transpose(1, 2)
            q, k, v = parts.chunk(3, dim=-1)
        elif self.how == "pair":
            q, (k, v) = first(rows).unsqueeze(1), others[0](rows).view(b, -1, 2, c).unbind(2)
            k, v = k.unsqueeze(1), v.unsqueeze(1)
        else:
            q, k, v = (each(y).reshape(b, 1, c, h * w).transpose(2, 3) for each in self.layers)
        y = functional.scaled_dot_product_attention(q, k, v)
        rows = y.transpose(1, 2).reshape(b, h * w, c)
        return x + self.out(rows.transpose(1, 2).reshape(b, c, h, w))


def model(shape: tuple[int, ...], attention: nn.Module) -> nn.Sequential:
    first, last = nn.Conv2d(shape[1], 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)
    return nn.Sequential(first, attention, last).double()


def of_one_value(shape: tuple[int, ...], axes: str, how: str) -> dict[str, Any]:
    """The same as `compared`, in inference; how: see `Joint`."""
    torch.manual_seed(0)
    return beside_one_process(model(shape, Joint(8, how)), shape, axes, "inference")


def compared(
    shape: tuple[int, ...], axes: str, mode: str, heads: int, places: bool, masked: bool = False
) -> dict[str, Any]:
    """Errors, words counted and planned, by call and in all, and how many steps of each class there are."""
    torch.manual_seed(0)
    attention = Attention(8, heads, shape[2] * shape[3] * places, masked)
    return beside_one_process(model(shape, attention), shape, axes, mode)


def beside_one_process(whole: nn.Module, shape: tuple[int, ...], axes: str, mode: str) -> dict[str, Any]:
    """What `compared` gives."""
    whole.train(mode == "training")
    x = torch.randn(shape).double()
    plan: Any = shared_plan(whole, shape, axes=axes, mode=mode)
    net: Any = synth.parallelize(copy.deepcopy(whole), shape, plan=plan, mode=mode)
    errors, before = list[float](), net.received()
    given, wanted = net(x), whole(x)
    errors.append(float((given.full_tensor() - wanted).detach().abs().max()))
    if mode == "training":
        weights = torch.randn_like(wanted)
        (given * weights).sum().backward()
        (wanted * weights).sum().backward()
        for one, other in zip(net.parameters(), whole.parameters(), strict=True):
            errors.append(float((one.grad.full_tensor() - other.grad).abs().max()))
    else:
        net(x)  # what is shared in a pass is gathered anew in the next one
        before += (net.received() - before) // 2
    words = net.planned_words()
    return {
        "error": max(errors),
        "words": (net.received() - before, words.step[net.ranks.me]),
        "planned": plan.words.step[net.ranks.me],
        "calls": {name: each[0][net.ranks.me] for name, each in words.calls.items()},
        "steps": Counter(type(step).__name__ for step in net.program.steps.values()),
    }
